"""The requests of the REST API about uploaded code, as data."""

from __future__ import annotations

from gpu_platform.client.calls import Call, given, quoted

_PATIENCE_S = 60.0
"""After the last part the service reads and checks the whole archive."""


def find(namespace: str, sha256: str) -> Call:
    """Ask how much of an archive is there: ``GET /v1/uploads/{namespace}/{sha256}``."""
    return Call("GET", f"/v1/uploads/{quoted(namespace)}/{quoted(sha256)}")


def send_part(namespace: str, sha256: str, content: bytes, offset: int, size_bytes: int) -> Call:
    """Send a part of an archive: ``PUT /v1/uploads/{namespace}/{sha256}``."""
    return Call(
        "PUT",
        f"/v1/uploads/{quoted(namespace)}/{quoted(sha256)}",
        given(size_bytes=size_bytes, offset=offset),
        body=content,
        headers={"Content-Type": "application/octet-stream"},
        patience_s=_PATIENCE_S,
    )

"""A registry of container images that does not do what registries do (OCI distribution specification)."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal

Wrong = Literal["nothing", "broken", "slow", "digest", "endless"]
_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_CONFIG = "application/vnd.docker.container.image.v1+json"
_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


class HostileRegistry:
    """Serves one image under every name. ``wrong``: what it does wrong. ``files``: for each layer, what is in it."""

    def __init__(
        self,
        wrong: Wrong = "nothing",
        files: list[dict[str, bytes]] | None = None,
        *,
        sends_to: str | None = None,
        token_at: str | None = None,
    ) -> None:
        """``sends_to``: an address to which it redirects whoever asks for a blob. ``token_at``: the address of a server
        whose token it wants."""
        self.wrong, self.sends_to, self.token_at = wrong, sends_to, token_at
        self.asked: Counter[str] = Counter()
        """How often it was asked for ``manifests`` and ``blobs``."""
        tars = [_tar(layer) for layer in (files or [{"hello": b"hello"}])]
        layers = [gzip.compress(tar, 1, mtime=0) for tar in tars]
        config = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "rootfs": {"type": "layers", "diff_ids": [_digest(t) for t in tars]},
            }
        ).encode()
        self.blobs = {_digest(blob): blob for blob in (config, *layers)}
        self.config = _digest(config)
        self.manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "config": {"mediaType": _CONFIG, "size": len(config), "digest": self.config},
                "layers": [
                    {
                        "mediaType": _LAYER,
                        "size": 100 << 30 if wrong == "endless" else len(layer),
                        "digest": _digest(layer),
                    }
                    for layer in layers
                ],
            }
        ).encode()
        self.port = 0

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"

    @contextmanager
    def serve(self, directory: Path) -> Iterator[Path]:
        """Serve until the end of the block. Gives the file that makes podman accept it without TLS."""
        registry = self

        class Handler(_Handler):
            of = registry

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            file = directory / "registries.conf"
            file.write_text(f'[[registry]]\nlocation = "127.0.0.1:{self.port}"\ninsecure = true\n')
            yield file
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    of: HostileRegistry

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        what, _, digest = self.path.rpartition("/")
        kind = what.rpartition("/")[2]
        self.of.asked[kind] += 1
        with suppress(OSError):  # podman has ended
            if self.of.wrong == "slow":
                time.sleep(5)
            elif self.of.wrong == "broken":
                self._answer(500, b"{}")
            elif self.of.token_at is not None:
                self.send_response(401)
                self.send_header("WWW-Authenticate", f'Bearer realm="{self.of.token_at}/token",service="x"')
                self.send_header("Content-Length", "0")
                self.end_headers()
            elif self.of.sends_to is not None and kind == "blobs":
                self.send_response(307)
                self.send_header("Location", f"{self.of.sends_to}{self.path}")
                self.send_header("Content-Length", "0")
                self.end_headers()
            elif self.path.startswith("/v2/") and kind == "manifests":
                self._answer(200, self.of.manifest, _MANIFEST)
            elif kind == "blobs" and digest in self.of.blobs:
                self._blob(digest)
            else:
                self._answer(200 if self.path == "/v2/" else 404, b"{}")

    do_HEAD = do_GET

    def _blob(self, digest: str) -> None:
        blob = self.of.blobs[digest]
        if digest == self.of.config or self.of.wrong not in ("digest", "endless"):
            return self._answer(200, blob)
        if self.of.wrong == "digest":
            return self._answer(200, bytes(len(blob)))
        self.send_response(200)
        self.send_header("Content-Length", str(100 << 30))
        self.end_headers()
        while True:
            self.wfile.write(bytes(1 << 20))

    def _answer(self, status: int, body: bytes, kind: str = "application/octet-stream") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _tar(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()

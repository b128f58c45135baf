# Generated from aio/uploads.py (make client): do not edit, change that one.
"""Uploaded code, as ``client.uploads``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_platform.client import models
from gpu_platform.client import upload_calls as calls
from gpu_platform.domain.errors import Unavailable
from gpu_platform.domain.jobs.upload_limits import CHUNK_BYTES

if TYPE_CHECKING:
    from gpu_platform.client.archive import Archive
    from gpu_platform.client.sync import Client
    from gpu_platform.domain.jobs.uploads import Upload

_STUCK = 8
"""After so many parts that the service had already, somebody else sends other content under this hash."""


class Uploads:
    """Sends directories of code, which jobs of the namespace name by their hash. :mod:`gpu_platform.client.archive`
    makes archives."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def find(self, namespace: str, sha256: str) -> Upload:
        """How much of an upload the namespace has."""
        return self._client.send(calls.find(namespace, sha256), models.Upload)

    def send(self, namespace: str, archive: Archive) -> Upload:
        """Send what the namespace does not have yet. It may be called again after any failure: it goes on where it
        stopped. Raises :class:`InvalidRequest` and :class:`OverQuota`."""
        found = self.find(namespace, archive.sha256)
        stuck = 0
        while not found.complete:
            before = found.received
            part = archive.read(before, CHUNK_BYTES)
            if not part or stuck > _STUCK:
                raise Unavailable(f"the upload {archive.sha256[:12]}… is being sent by somebody else: try again")
            found = self._client.send(
                calls.send_part(namespace, archive.sha256, part, before, archive.size_bytes), models.Upload
            )
            stuck = 0 if found.received > before else stuck + 1
        return found

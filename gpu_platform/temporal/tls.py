"""TLS to Temporal, or to the node gateway in front of it, by the settings."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from temporalio.service import TLSConfig

from gpu_platform.domain.errors import CannotStart
from gpu_platform.settings import TemporalSettings


class TlsFiles(NamedTuple):
    """What the files of TLS to Temporal hold. None: no such file is set."""

    ca: bytes | None
    certificate: bytes | None
    key: bytes | None


def read_files(temporal: TemporalSettings) -> TlsFiles:
    """Read the files now. Raises :class:`CannotStart` if one cannot be read."""
    try:
        return TlsFiles(_read(temporal.tls_ca), _read(temporal.tls_cert), _read(temporal.tls_key or temporal.tls_cert))
    except OSError as error:
        raise CannotStart(f"a file of TLS to Temporal cannot be read: {error}; see temporal.tls_*") from error


def tls_of(temporal: TemporalSettings) -> TLSConfig | bool:
    """What the Temporal client is given. False: no TLS. Raises :class:`CannotStart` if a file cannot be read."""
    if not temporal.tls:
        return False
    files = read_files(temporal)
    return TLSConfig(
        server_root_ca_cert=files.ca,
        domain=temporal.tls_server_name,
        client_cert=files.certificate,
        client_private_key=files.key,
    )


def versions_of(temporal: TemporalSettings) -> list[tuple[int, int] | None]:
    """Changes when one of the files does."""
    return [_version(path) for path in (temporal.tls_ca, temporal.tls_cert, temporal.tls_key)]


def _read(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes()


def _version(path: Path | None) -> tuple[int, int] | None:
    try:
        seen = None if path is None else path.stat()
    except OSError:
        seen = None
    return None if seen is None else (seen.st_mtime_ns, seen.st_ino)

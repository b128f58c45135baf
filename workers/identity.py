"""The certificate of a process: where it comes from at the start, and how it stays young."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gpu_platform.domain.errors import CannotStart, Forbidden, InvalidRequest, PlatformError, Unavailable
from gpu_platform.identity import names
from gpu_platform.identity.ca import CertificateAuthority
from gpu_platform.identity.certificates import CertificateFiles, TlsContexts
from gpu_platform.identity.enrolment import Issued, JoinToken, enroll, renew
from gpu_platform.identity.renewal import Obtain, from_ca, keep_renewed, renew_now, watch_expiry
from gpu_platform.observability import get_logger
from gpu_platform.private_files import write_file
from gpu_platform.settings import Settings
from workers.starting import Waiting

_RETRY_S = 1.0

log = get_logger(__name__)


@dataclass(frozen=True)
class ProcessIdentity:
    """The certificate of this process."""

    path: str
    """Its name: ``service``, ``node/dgx-a``, …"""
    contexts: TlsContexts
    obtain: Obtain | None
    """Gives the next certificate. None: another PKI renews the files."""
    ca: Path | None = None
    """The CA on this machine, if this process can read its key."""

    @classmethod
    async def begin(cls, settings: Settings, path: str, addresses: Iterable[str] = ()) -> ProcessIdentity | None:
        """The certificate of ``path``, made now if there is none that is valid. None: TLS is off.

        It comes from the CA on this machine if this process can read it; else it is renewed by the service, the first
        time with a join token. Waits for a service that does not answer. Raises :class:`CannotStart`.
        """
        tls = settings.tls
        if not tls.enabled:
            return None
        files = CertificateFiles.of(tls, settings.state_dir, path)
        contexts = TlsContexts(files)
        if tls.certificate is not None:
            contexts.client()
            return cls(path, contexts, None)
        ca = tls.ca_directory(settings.state_dir)
        if CertificateAuthority.is_in(ca):
            made = cls(path, contexts, from_ca(ca, path, [*tls.names, *addresses], tls.life), ca)
            assert made.obtain is not None
            await renew_now(files, made.obtain)
            return made
        await _join(settings, files, path)
        return cls(path, contexts, _from_service(_urls(settings), contexts))

    async def keep(self) -> None:
        """Keep the certificate young, until cancelled."""
        if self.obtain is None:
            watch_expiry(self.contexts.files, self.path)
            return
        await keep_renewed(self.contexts.files, self.obtain, self.path, self.ca)


def service_addresses(settings: Settings) -> list[str]:
    """The names and addresses at which clients reach a service on this machine."""
    wildcard = settings.service.host in ("0.0.0.0", "::", "")
    found = ["localhost", "127.0.0.1", "::1", socket.gethostname(), *([] if wildcard else [settings.service.host])]
    found += [host for url in _urls(settings) if (host := urlsplit(url).hostname)]
    return list(dict.fromkeys(found))


async def _join(settings: Settings, files: CertificateFiles, path: str) -> None:
    """Get the first certificate, unless there is one that is valid. A new join token is used all the same: the machine
    was enrolled again, because the one that it has is not believed any more."""
    found = files.read()
    if found is not None and found.is_valid():
        await _join_again(settings, files, path)
        return
    token = _join_token(settings)
    if token is None:
        state = "has expired" if found is not None else "does not exist"
        raise CannotStart(
            f"the certificate of {path} {state} ({files.certificate}). On a GPU host: `gpu-platform hosts enroll "
            f"{names.host_of(path) or path}` makes a join token for node.join_token. For a process of the control "
            f"plane: `gpu-platform ca issue {path}` on the machine of the CA"
        )
    waiting = Waiting("service", address=", ".join(_urls(settings)))
    while True:
        try:
            await _use(settings, files, path, token)
        except Unavailable as error:
            waiting.still(error.message)
            await asyncio.sleep(_RETRY_S)
        else:
            waiting.over()
            return


async def _join_again(settings: Settings, files: CertificateFiles, path: str) -> None:
    """Use the join token, if it is another one than before. If it does not work, the certificate stays."""
    try:
        token = _join_token(settings)
    except (CannotStart, InvalidRequest):  # its file was removed when it had been used
        return
    if token is None or _was_used(files, token):
        return
    try:
        await _use(settings, files, path, token)
    except Forbidden:
        _note_use(files, token)
    except PlatformError as error:
        log.warning("certificate.join_token_not_used", name=path, error=error.message)


async def _use(settings: Settings, files: CertificateFiles, path: str, token: JoinToken) -> None:
    async def obtain(request_pem: bytes) -> Issued:
        return await enroll(_urls(settings), token, path, request_pem)

    await renew_now(files, obtain)
    _note_use(files, token)
    log.info("certificate.first", name=path)


def _note_use(files: CertificateFiles, token: JoinToken) -> None:
    write_file(files.certificate.with_suffix(".joined"), _fingerprint(token).encode())


def _was_used(files: CertificateFiles, token: JoinToken) -> bool:
    with suppress(OSError):
        return files.certificate.with_suffix(".joined").read_text() == _fingerprint(token)
    return False


def _fingerprint(token: JoinToken) -> str:
    return hashlib.sha256(str(token).encode()).hexdigest()


def _join_token(settings: Settings) -> JoinToken | None:
    node = settings.node
    if node.join_token_file is not None:
        try:
            return JoinToken.parse(node.join_token_file.read_text())
        except OSError as error:
            raise CannotStart(f"the join token cannot be read: {error}") from error
    return None if node.join_token is None else JoinToken.parse(node.join_token)


def _from_service(urls: Sequence[str], contexts: TlsContexts) -> Obtain:
    async def obtain(request_pem: bytes) -> Issued:
        return await renew(urls, contexts.client(), request_pem)

    return obtain


def _urls(settings: Settings) -> list[str]:
    return [url.rstrip("/") for url in (settings.api_url, *settings.api_urls)]

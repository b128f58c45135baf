"""How a machine gets its first certificate, and each one after it. As kubeadm does it: by a join token with a pin.

1. An operator makes a join token for one name. It works once, and not for long.
2. The machine asks the service for the authorities, without trusting the answer, and takes the one whose SHA-256 is in
   the token. So nobody between the two can pass for the service.
3. It makes a key, which never leaves it, and sends a certificate request with the token.
4. After two thirds of its life it renews the certificate, with a new key; the certificate itself says who asks.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpu_platform.domain.errors import CannotStart, InvalidRequest, PlatformError, Unavailable
from gpu_platform.identity.ca import fingerprint

AUTHORITIES = "/v1/identity/authorities"
ENROLL = "/v1/identity/enroll"
RENEW = "/v1/identity/renew"
_TOKEN = re.compile(r"gpj_([0-9a-f]{32})_([0-9a-f]{64})")
_PATIENCE = httpx.Timeout(10.0, connect=5.0)
_WHOLE_ANSWER_S = 30.0
_LONGEST_ANSWER = 1 << 20
Pem = Annotated[str, Field(max_length=20_000)]


class FirstCertificate(BaseModel):
    """A request for the first certificate of a machine."""

    model_config = ConfigDict(extra="forbid")

    identity: Annotated[str, Field(max_length=200, examples=["node/dgx-a"])]
    secret: Annotated[str, Field(max_length=200, description="The secret in the join token")]
    request: Pem
    """PKCS #10 in PEM. Only its key counts."""


class NextCertificate(BaseModel):
    """A request for a certificate in place of the one that the client shows."""

    model_config = ConfigDict(extra="forbid")

    request: Pem


class Authorities(BaseModel):
    """The authorities that sign this cluster's certificates (PEM)."""

    authorities: str


class Issued(BaseModel):
    """A new certificate, and whom to trust from now on."""

    certificate: str
    authorities: str


@dataclass(frozen=True)
class JoinToken:
    """A secret that is worth one certificate, and the authority that will sign it."""

    secret: str
    pin: str
    """SHA-256 of the authority's certificate, in hex."""

    @classmethod
    def make(cls, pin: str) -> JoinToken:
        """A new token."""
        return cls(secrets.token_hex(16), pin)

    @classmethod
    def parse(cls, text: str) -> JoinToken:
        """Read a token. Raises :class:`InvalidRequest`."""
        if (found := _TOKEN.fullmatch(text.strip())) is None:
            raise InvalidRequest("this is no join token: `gpu-platform hosts enroll HOST` prints one (gpj_…)")
        return cls(found[1], found[2])

    def __str__(self) -> str:
        return f"gpj_{self.secret}_{self.pin}"


async def enroll(urls: Sequence[str], token: JoinToken, path: str, request_pem: bytes) -> Issued:
    """The first certificate of ``path``, from the first service that answers.

    Raises :class:`CannotStart` if a service has another authority than the token, the service's own error if the token
    is refused, and :class:`Unavailable` if none answers.
    """
    last: Exception | None = None
    body = FirstCertificate(identity=path, secret=token.secret, request=request_pem.decode())
    for url in urls:
        try:
            authority = await _pinned_authority(url, token.pin)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_verify_locations(cadata=authority)
            return await _post(url, ENROLL, body, context)
        except httpx.TransportError as error:
            last = error
    raise Unavailable(f"no service answers at {', '.join(urls)}, so there is no certificate yet ({last!r})")


async def renew(urls: Sequence[str], context: ssl.SSLContext, request_pem: bytes) -> Issued:
    """A certificate in place of the one in ``context``. Raises the service's error, and :class:`Unavailable`."""
    last: Exception | None = None
    body = NextCertificate(request=request_pem.decode())
    for url in urls:
        try:
            return await _post(url, RENEW, body, context)
        except httpx.TransportError as error:
            last = error
    raise Unavailable(f"no service answers at {', '.join(urls)}, so the certificate was not renewed ({last!r})")


async def _pinned_authority(url: str, pin: str) -> str:
    unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    async with httpx.AsyncClient(verify=unverified, trust_env=False, timeout=_PATIENCE) as http:
        answer = await _read(http, "GET", url + AUTHORITIES)
    try:
        found = x509.load_pem_x509_certificates(Authorities.model_validate_json(answer).authorities.encode())
    except (ValidationError, ValueError) as error:
        raise CannotStart(f"{url} does not say who signs its certificates; is it the service, with TLS?") from error
    for certificate in found:
        if fingerprint(certificate) == pin:
            return certificate.public_bytes(serialization.Encoding.PEM).decode()
    raise CannotStart(
        f"the service at {url} has another authority than the join token: somebody else answers there, or the token is "
        "of another cluster or from before a rotation. Make a new one with `gpu-platform hosts enroll`"
    )


async def _post(url: str, path: str, body: BaseModel, context: ssl.SSLContext) -> Issued:
    async with httpx.AsyncClient(verify=context, trust_env=False, timeout=_PATIENCE) as http:
        headers = {"Content-Type": "application/json"}
        content = await _read(http, "POST", url + path, content=body.model_dump_json(), headers=headers)
    try:
        return Issued.model_validate_json(content)
    except ValidationError as error:
        raise Unavailable(f"{url} answered with no certificate") from error


async def _read(http: httpx.AsyncClient, method: str, url: str, **options: Any) -> bytes:
    if not url.lower().startswith("https://"):
        raise CannotStart(
            f"{url} is no https address, so anybody may answer there: join tokens and certificates go over TLS only; "
            "set api_url and api_urls to https addresses"
        )
    content = bytearray()
    try:
        async with asyncio.timeout(_WHOLE_ANSWER_S), http.stream(method, url, **options) as answer:
            async for piece in answer.aiter_raw():
                content += piece
                if len(content) > _LONGEST_ANSWER:
                    raise Unavailable(f"{url} answered too much")
    except TimeoutError as error:
        raise httpx.ReadTimeout(f"{url} did not answer within {_WHOLE_ANSWER_S:g} s") from error
    if not answer.is_success:
        raise _refusal(answer.status_code, bytes(content), url)
    return bytes(content)


class _Problem(BaseModel):
    detail: str = ""


def _refusal(status: int, content: bytes, url: str) -> PlatformError:
    try:
        said = _Problem.model_validate_json(content).detail
    except ValidationError:
        said = ""
    message = said or f"{url} answered {status}"
    return Unavailable(message) if status in (408, 429) or status >= 500 else CannotStart(message)

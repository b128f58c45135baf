"""People who sign in at an OpenID Connect provider: their tokens (JWT, RFC 7519) are verified against its keys.

Only asymmetric signatures are taken, from the keys that the provider publishes (JWKS). A key that is not known makes
this fetch them anew, so a provider may change its keys at any time; but not more often than ``FETCH_AT_MOST_S``, so
nobody makes the service ask the provider all the time.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Mapping
from typing import Any

from joserfc import jwt
from joserfc.errors import BadSignatureError, ExpiredTokenError, JoseError
from joserfc.jwk import JWKRegistry, RSAKey

from gpu_platform.client.sign_in import discover, read_json
from gpu_platform.domain.access.principal import Principal, PrincipalKind
from gpu_platform.domain.access.roles import Role
from gpu_platform.domain.errors import NotSignedIn, Unavailable
from gpu_platform.domain.jobs.notify import check_address
from gpu_platform.domain.texts import check_name
from gpu_platform.observability import get_logger
from gpu_platform.settings.access import OidcSettings

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA")
FETCH_AT_MOST_S = 10.0
KEPT_S = 600.0
"""How long keys are used without asking for them again. A key that the provider withdraws is used
no longer than that."""
WAIT_S = 5.0
"""How long a request waits for keys that are being read."""
WAIT_AT_ONCE = 4
"""So many requests wait for them at the same time. Others are answered from what there is: threads are for all."""
LEEWAY_S = 30
"""How much the clocks of provider and service may differ."""
MOST_KEYS = 100
"""Of one provider. It has two or three."""
RSA_BITS = range(2048, 16_385)
"""Shorter keys are forbidden (RFC 7518, 3.3); OpenSSL takes no longer ones."""
_TYPES = ("jwt", "at+jwt", "application/jwt", "application/at+jwt")
"""Of tokens that say who asks (RFC 9068). A provider signs others with the same keys: logout tokens, events."""
_KTY = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
"""The first letters of an algorithm -> the kind of its keys (RFC 7518, 3.1; RFC 8037)."""
_NOT_FOR_SIGNATURES = ("X25519", "X448")

log = get_logger(__name__)


def is_jwt(credential: str) -> bool:
    """True if it looks like a JWT: three parts with dots between them. API tokens have no dots."""
    return credential.count(".") == 2


class OidcVerifier:
    """Verifies tokens of one provider."""

    def __init__(self, settings: OidcSettings) -> None:
        assert settings.issuer is not None, "no provider is configured"
        self._settings = settings
        self._issuer = settings.issuer
        self._keys = ProviderKeys(settings)
        self._claims = jwt.JWTClaimsRegistry(
            leeway=LEEWAY_S,
            iss={"essential": True, "value": self._issuer},
            aud={"essential": True, "value": settings.audience},
            exp={"essential": True},
            sub={"essential": True},
        )

    def principal(self, token: str) -> Principal:
        """The person whose token it is. Raises :class:`NotSignedIn`, or :class:`Unavailable` without any keys."""
        claims = self._verified(token)
        name = _text_at(claims, self._settings.user_claim)
        try:
            check_name(name or "")
        except ValueError as error:
            raise NotSignedIn(
                f"the token of {self._issuer} names its user by {self._settings.user_claim} = {name!r}: {error}. An "
                "administrator sets access.oidc.user_claim to a claim that is a name"
            ) from None
        return Principal(
            kind=PrincipalKind.PERSON,
            name=name or "",
            roles=self._roles(claims),
            signed_in_by=self._issuer,
            mail=self._mail(claims),
            ends_at=claims["exp"] + LEEWAY_S,
        )

    def _verified(self, token: str) -> dict[str, Any]:
        try:
            header = jwt_header(token)
            try:
                found = jwt.decode(token, self._key_for(header), algorithms=[*ALGORITHMS])
            except BadSignatureError:
                # The provider may have another key of this name by now.
                found = jwt.decode(token, self._key_for(header, anew=True), algorithms=[*ALGORITHMS])
            self._claims.validate(found.claims)
            if self._settings.use_id_token and found.claims.get("azp", self._settings.client_id) != (
                self._settings.client_id
            ):  # OpenID Connect Core, 3.1.3.7
                raise ValueError(f"it was made for the client {str(found.claims['azp'])[:100]!r}")
            return {**found.claims, "exp": float(found.claims["exp"])}
        except ExpiredTokenError:
            raise NotSignedIn(f"the token of {self._issuer} has expired: run `gpu-platform login` again") from None
        except (JoseError, ValueError, TypeError, OverflowError) as error:
            reason = str(error)[:200] or type(error).__name__
            raise NotSignedIn(
                f"the token is not one of {self._issuer} for {self._settings.audience} ({reason}): run `gpu-platform "
                "login`"
            ) from None

    def _key_for(self, header: Mapping[str, Any], *, anew: bool = False) -> Any:
        """The key that the token names. It must name one, unless the provider has only one of its kind."""
        wanted, algorithm = header.get("kid"), header["alg"]
        usable = [
            key
            for key in self._keys.usable(wanted, anew=anew)
            if (wanted is None or key.kid == wanted) and key.key_type == _KTY.get(algorithm[:2])
        ]
        if len(usable) != 1:
            raise ValueError(f"no key {wanted!r} of the provider" if wanted else "it does not say which key signed it")
        return usable[0]

    def _mail(self, claims: Mapping[str, Any]) -> str | None:
        """The address of the claims, unless the provider says that it is not verified: anybody may claim one."""
        if claims.get("email_verified") in (False, "false"):
            return None
        try:
            return check_address(_text_at(claims, self._settings.mail_claim) or "")
        except ValueError:
            return None

    def _roles(self, claims: Mapping[str, Any]) -> dict[str, Role]:
        found = dict(self._settings.everybody)
        given = _at(claims, self._settings.roles_claim)
        groups = [given] if isinstance(given, str) else given if isinstance(given, list) else []
        for group in groups:
            for namespace, role in self._settings.roles.get(str(group), {}).items():
                if namespace not in found or role.includes(found[namespace]):
                    found[namespace] = role
        return found


class ProviderKeys:
    """The keys of one provider, which one thread reads while others go on with those that there are.

    A provider that is slow holds up few requests, and only those that cannot go on without it.
    """

    def __init__(self, settings: OidcSettings) -> None:
        assert settings.issuer is not None, "no provider is configured"
        self._issuer, self._reach = settings.issuer, settings.reach
        self._found: list[Any] = []
        self._fetched_at = self._tried_at = float("-inf")
        self._lock = threading.Lock()
        self._fetch: threading.Thread | None = None
        self._waiting = threading.Semaphore(WAIT_AT_ONCE)

    def usable(self, kid: str | None, *, anew: bool = False) -> list[Any]:
        """The keys that count now, read anew if ``kid`` is not among them, or with ``anew``; but not more often than
        ``FETCH_AT_MOST_S``. Raises :class:`Unavailable` without any."""
        asked_at = time.monotonic()
        if self._is_enough(kid) and not anew:
            if time.monotonic() - self._fetched_at > KEPT_S / 2:
                self._begin()
        else:
            self._wait_for(self._begin())
        with self._lock:
            if self._found and (self._is_fresh() or self._fetched_at >= asked_at):
                return self._found
        raise Unavailable(f"the keys of {self._issuer} cannot be read now; try again in a moment")

    def _is_fresh(self) -> bool:
        return time.monotonic() - self._fetched_at <= KEPT_S

    def _is_enough(self, kid: str | None) -> bool:
        with self._lock:
            return self._is_fresh() and any(kid is None or key.kid == kid for key in self._found)

    def _begin(self) -> threading.Thread | None:
        """The thread that reads the keys. None: they were read just now, or tried to."""
        with self._lock:
            if self._fetch is not None and self._fetch.is_alive():
                return self._fetch
            if time.monotonic() - self._tried_at < FETCH_AT_MOST_S:
                return None
            self._tried_at = time.monotonic()
            self._fetch = threading.Thread(target=self._read, name="oidc-keys", daemon=True)
            self._fetch.start()
            return self._fetch

    def _wait_for(self, fetch: threading.Thread | None) -> None:
        if fetch is not None and self._waiting.acquire(blocking=False):
            try:
                fetch.join(WAIT_S)
            finally:
                self._waiting.release()

    def _read(self) -> None:
        try:
            listed = read_json(discover(self._issuer, self._reach)["jwks_uri"], self._reach)["keys"]
            if not isinstance(listed, list):
                raise TypeError(f"`keys` is a {type(listed).__name__}")
            keys = [key for one in listed[:MOST_KEYS] if (key := _key_of(one)) is not None]
        except Exception as error:
            log.warning("oidc.keys_not_read", issuer=self._issuer, error=repr(error)[:300])
            return
        with self._lock:
            self._found, self._fetched_at = keys, time.monotonic()


def jwt_header(token: str) -> dict[str, Any]:
    """The header of a JWT, unverified. Raises :class:`ValueError`."""
    part = token.split(".", 1)[0]
    found = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    if not isinstance(found, dict) or not all(
        isinstance(found.get(name, default), str) for name, default in (("alg", None), ("kid", ""), ("typ", ""))
    ):
        raise ValueError("its header is no header of a JWT")
    if found.get("typ", "jwt").lower() not in _TYPES:
        raise ValueError(f"it is a {found['typ'][:40]!r}, which says not who asks")
    return found


def _key_of(found: Any) -> Any | None:
    """A public key that verifies signatures. None: it is none, or of a kind that is not known here. Such a key must not
    keep the others from being used (RFC 7517, 5), and a symmetric one must never come from a public document."""
    try:
        if found["kty"] not in _KTY.values() or found.get("use", "sig") != "sig":
            return None
        if "verify" not in found.get("key_ops", ("verify",)) or found.get("alg", ALGORITHMS[0]) not in ALGORITHMS:
            return None
        key = JWKRegistry.import_key(found)
        if isinstance(key, RSAKey):
            return key if key.raw_value.key_size in RSA_BITS else None
        return key if found["crv"] not in _NOT_FOR_SIGNATURES else None
    except Exception as error:  # whatever a provider writes there
        log.info("oidc.key_not_usable", error=repr(error)[:200])
        return None


def _at(claims: Mapping[str, Any], path: str) -> Any:
    found: Any = claims
    # A claim may have dots in its own name, as addresses do.
    if path in claims:
        return claims[path]
    for part in path.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _text_at(claims: Mapping[str, Any], path: str) -> str | None:
    found = _at(claims, path)
    return found if isinstance(found, str) else None

"""Sign-in of a page at the identity provider: the authorization code grant with PKCE (RFC 6749, 4.1; RFC 7636).

The dashboard begins it and keeps the tokens. The service carries its requests to the provider, so the provider needs
no CORS headers and the page's policy names no foreign address. The service keeps nothing: the verifier that proves who
began is made by the page and stays there until the code is exchanged.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

from pydantic import BaseModel

from gpu_platform.client.sign_in import discover, post_form, tokens_of
from gpu_platform.domain.errors import InvalidRequest, NotSignedIn, Unavailable
from gpu_platform.observability import get_logger
from gpu_platform.settings.access import OidcSettings

KEPT_S = 600.0
"""How long the provider's addresses are used without asking for them again."""
RETURN_PATH = "/sign-in"
"""The page to which the provider sends people back."""

log = get_logger(__name__)
T = TypeVar("T")


class PageTokens(BaseModel):
    """What a page gets from the provider."""

    token: str
    """What it sends to this service: the access token, or with ``access.oidc.use_id_token`` the ID token."""
    expires_in_s: float
    refresh_token: str | None = None
    """For the next token. None: the provider gives none, and people sign in again."""


class CodeFlow:
    """The requests of pages to one provider."""

    def __init__(self, settings: OidcSettings) -> None:
        self._settings = settings
        self._found: dict[str, Any] = {}
        self._found_at = float("-inf")
        self._lock = threading.Lock()

    def address(self, origin: str, state: str, challenge: str) -> str:
        """Where a browser goes to sign in. ``challenge``: the SHA-256 of the page's verifier (RFC 7636, 4.2)."""
        endpoint = self._endpoint("authorization_endpoint", "let people sign in on a page")
        methods = self._asked(self._provider).get("code_challenge_methods_supported")
        if isinstance(methods, list) and "S256" not in methods:  # it would take a stolen code
            raise InvalidRequest(
                f"the identity provider {self._settings.issuer} does not check S256 challenges (RFC 7636), so nobody "
                "signs in on a page: use `gpu-platform login`, or an API token"
            )
        asked = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": origin + RETURN_PATH,
            "scope": " ".join(self._settings.scopes),
            "state": state,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        return _with_query(endpoint, asked)

    def exchange(self, origin: str, code: str, verifier: str) -> PageTokens:
        """The tokens for a code. Raises :class:`NotSignedIn` for a code that was used, is old or is another page's."""
        return self._tokens(
            {
                "grant_type": "authorization_code",
                "code": code,
                "code_verifier": verifier,
                "redirect_uri": origin + RETURN_PATH,
            }
        )

    def refresh(self, refresh_token: str) -> PageTokens:
        """Fresh tokens. Raises :class:`NotSignedIn` once the provider takes the refresh token no more."""
        found = self._tokens({"grant_type": "refresh_token", "refresh_token": refresh_token})
        # A provider that gives no new refresh token keeps taking the one that was used (RFC 6749, 6).
        return found if found.refresh_token else found.model_copy(update={"refresh_token": refresh_token})

    def revoke(self, refresh_token: str | None) -> str | None:
        """End a refresh token (RFC 7009), and return the page where one signs out at the provider, if it has one.

        A provider without revocation, or one that is away, is no error: who signs out here is signed out here.
        """
        provider = self._asked(self._provider)
        endpoint = provider.get("revocation_endpoint")
        if endpoint and refresh_token:
            form = {"token": refresh_token, "token_type_hint": "refresh_token", "client_id": self._settings.client_id}
            try:
                post_form(endpoint, form, self._settings.reach, empty=True)
            except (NotSignedIn, Unavailable) as error:
                log.warning("oidc.token_not_revoked", issuer=self._settings.issuer, error=str(error))
        end = provider.get("end_session_endpoint")
        return None if end is None else _with_query(end, {"client_id": self._settings.client_id})

    def _tokens(self, form: dict[str, str]) -> PageTokens:
        endpoint = self._endpoint("token_endpoint", "give tokens")
        form = {**form, "client_id": self._settings.client_id}
        answer = self._asked(partial(post_form, endpoint, form, self._settings.reach))
        found = tokens_of(answer, self._settings.use_id_token)
        return PageTokens(
            token=found["access_token"],
            expires_in_s=max(0.0, found["expires_at"] - time.time()),
            refresh_token=found.get("refresh_token"),
        )

    def _endpoint(self, name: str, what: str) -> str:
        found = self._asked(self._provider).get(name)
        if found is None:
            raise InvalidRequest(
                f"the identity provider {self._settings.issuer} has no {name}, so it cannot {what}: use an API token"
            )
        return found

    def _provider(self) -> dict[str, Any]:
        issuer = self._settings.issuer
        if issuer is None:
            raise InvalidRequest(
                "nobody signs in here at an identity provider: access.oidc.issuer is not set. Use an API token"
            )
        with self._lock:
            if time.monotonic() - self._found_at > KEPT_S:
                self._found = discover(issuer, self._settings.reach)
                self._found_at = time.monotonic()
            return self._found

    def _asked(self, ask: Callable[[], T]) -> T:
        """What the provider answers. Strangers ask, too, so whatever goes wrong on the way to it is one message."""
        try:
            return ask()
        except Unavailable as error:
            log.warning("oidc.no_answer", issuer=self._settings.issuer, error=error.message)
            raise Unavailable(
                f"the identity provider {self._settings.issuer} does not answer as one; try again in a moment, or ask "
                "an operator: the service's log says more (oidc.no_answer)"
            ) from None


def _with_query(address: str, asked: dict[str, str]) -> str:
    return f"{address}{'&' if urlsplit(address).query else '?'}{urlencode(asked)}"

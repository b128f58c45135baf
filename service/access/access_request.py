"""A request as it came, and the decision about it as it is recorded."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import Scope

from gpu_platform.client.calls import BREAK_GLASS_HEADER, USER_HEADER
from gpu_platform.domain.access.principal import Principal
from gpu_platform.domain.access.rules import AccessVerdict, Subject
from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.texts import check_name
from service.access import authentication
from service.access.decisions import AccessDecision
from service.access.routes import MatchedRoute

_LONGEST_REASON = 500
_BROWSER_ROUTES = (
    *("GET /docs", "GET /docs/start.js", "GET /docs/{asset}", "GET /openapi.json"),
    "POST /v1/temporal/decode",
)
"""Pages that people open in a browser, which asks for a password, and what the Temporal UI asks from such a browser. No
other route takes one: browsers send passwords along with requests of foreign pages. The last one changes nothing, and
``browsers.py`` lets no page but the Temporal UI send or read it."""


@dataclass(frozen=True)
class AccessRequest:
    """A request as it came."""

    matched: MatchedRoute
    path: str
    as_user: str | None
    break_glass: str | None
    peer: str | None
    request_id: str | None
    scope: Scope

    def user_to_act_for(self) -> str | None:
        """The user in whose name the request is made. None: one's own. Raises :class:`InvalidRequest`."""
        if self.as_user is not None:
            try:
                check_name(self.as_user)
            except ValueError as error:
                raise InvalidRequest(f"{USER_HEADER}: {error}") from None
        return self.as_user

    def credential(self) -> str | None:
        """The token. None: there is none. Raises :class:`NotSignedIn` for a header of another kind."""
        return authentication.credential_of(self.scope, basic=self.matched.route in _BROWSER_ROUTES)


def asked_of(scope: Scope, matched: MatchedRoute) -> AccessRequest:
    """What the headers say."""
    headers = Headers(scope=scope)
    reason = headers.get(BREAK_GLASS_HEADER, "").strip()[:_LONGEST_REASON]
    client = scope.get("client")
    return AccessRequest(
        matched=matched,
        path=scope["path"],
        as_user=headers.get(USER_HEADER),
        break_glass=reason or None,
        peer=client[0] if client else None,
        request_id=scope.get("request_id"),
        scope=scope,
    )


def decision_about(
    asked: AccessRequest,
    principal: Principal | None,
    subject: Subject,
    verdict: AccessVerdict,
    acting_as: str | None = None,
    message: str = "",
) -> AccessDecision:
    """The decision, for recorders."""
    return AccessDecision(
        verdict=verdict,
        route=asked.matched.route,
        path=asked.path,
        rule=asked.matched.rule,
        subject=subject,
        principal=principal,
        acting_as=acting_as,
        peer=asked.peer,
        request_id=asked.request_id,
        break_glass=asked.break_glass,
        message=message,
    )

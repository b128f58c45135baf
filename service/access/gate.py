"""The one place where it is decided whether a request goes on.

Each request is looked up in the table of routes. Then one transaction finds who asks and whose job the path names, so
that a revoked token is refused at once, by every service process. What depends on the body, a submission, is
decided in :mod:`service.access.submissions`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from anyio import to_thread
from sqlalchemy.orm import Session
from starlette.datastructures import Headers
from starlette.types import Scope

from gpu_platform.access_settings import AccessSettings
from gpu_platform.client.wire import BREAK_GLASS_HEADER, USER_HEADER
from gpu_platform.domain.access.principal import Principal, PrincipalKind
from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.domain.access.rules import Reach, Subject, Verdict, judge
from gpu_platform.domain.errors import Forbidden, InvalidRequest, NotFound, NotSignedIn, PlatformError
from gpu_platform.domain.texts import check_name
from gpu_platform.store import Store
from gpu_platform.store.access import sessions, tokens
from gpu_platform.store.jobs import owners
from service.access import authentication
from service.access.decisions import Decision, Recorder
from service.access.oidc import OidcVerifier, is_jwt
from service.access.routes import MatchedRoute

_LONGEST_REASON = 500
_BROWSER_ROUTES = ("GET /docs", "GET /docs/start.js", "GET /docs/{asset}", "GET /openapi.json")
"""Pages that people open in a browser, which asks for a password. No other route takes one: browsers send passwords
along with requests of foreign pages."""


@dataclass(frozen=True)
class Access:
    """What was found out about a request before its handler runs."""

    settings: AccessSettings
    route: str
    principal: Principal | None = None
    acting_as: str | None = None
    subject: Subject = field(default_factory=Subject)
    verdict: Verdict = Verdict.ALLOWED

    @property
    def actor(self) -> str:
        """The name for events: the user in whose name an operator acts, or the one who asks."""
        return self.acting_as or (self.principal.actor if self.principal else "anonymous")

    @property
    def who(self) -> Principal:
        """The principal. Raises :class:`NotSignedIn`."""
        if self.principal is None:
            raise NotSignedIn(authentication.WHAT_TO_DO)
        return self.principal

    @property
    def user(self) -> str:
        """The user whose jobs one's own are: of a job, its own user."""
        return self.who.user or self.who.name

    @property
    def namespaces(self) -> frozenset[str] | None:
        """The namespaces whose jobs may be shown. None: all."""
        return self.who.namespaces()

    def sees(self, namespace: str | None) -> bool:
        """True if jobs of the namespace may be shown."""
        return namespace is not None and self.who.role_in(namespace) is not None


@dataclass(frozen=True)
class _Asked:
    """A request as it came."""

    matched: MatchedRoute
    path: str
    credential: str | None
    as_user: str | None
    break_glass: str | None
    peer: str | None
    request_id: str | None


class Gate:
    """Decides about requests. ``recorders`` are told of each decision."""

    def __init__(self, settings: AccessSettings, store: Store, recorders: Sequence[Recorder] = ()) -> None:
        self._settings = settings
        self._store = store
        self._recorders = [*recorders]
        self._noted: dict[str, float] = {}
        self._oidc = None if settings.oidc.issuer is None else OidcVerifier(settings.oidc)

    async def admit(self, scope: Scope, matched: MatchedRoute) -> Access:
        """What the handler may know. Raises :class:`NotSignedIn`, :class:`Forbidden` or :class:`NotFound`."""
        if matched.rule.reach is Reach.PUBLIC:
            return Access(self._settings, matched.route)
        asked = _asked(scope, matched)
        if matched.rule.reach is Reach.NODE:
            host = matched.path_params["name"]
            principal = authentication.node_principal(scope)
            return self._decide(asked, principal, Subject(host=host))
        return await to_thread.run_sync(self._look_and_decide, asked)

    async def is_valid_still(self, scope: Scope, matched: MatchedRoute) -> bool:
        """False if the request would be refused now. For streams, which last long."""
        try:
            await to_thread.run_sync(self._look_again, _asked(scope, matched))
        except (NotSignedIn, Forbidden, NotFound):
            return False
        except PlatformError:  # the database is away
            return True
        return True

    def _look_again(self, asked: _Asked) -> None:
        principal, subject = self._look(asked)
        verdict = judge(asked.matched.rule, principal, subject, break_glass=asked.break_glass is not None)
        if not verdict.is_allowed:
            raise Forbidden("no longer allowed")

    def _look_and_decide(self, asked: _Asked) -> Access:
        try:
            principal, subject = self._look(asked)
        except NotSignedIn as refusal:
            self._record(_decision(asked, None, Subject(), Verdict.NOT_SIGNED_IN, message=refusal.message))
            raise
        if principal is not None:
            self._note_use(principal)
        return self._decide(asked, principal, subject)

    def _look(self, asked: _Asked) -> tuple[Principal | None, Subject]:
        principal, credential = None, asked.credential
        if credential is not None and self._oidc is not None and is_jwt(credential):
            principal, credential = self._oidc.principal(credential), None
        with self._store.read() as session:
            if credential is not None:
                principal = authentication.check_token(session, credential, datetime.now(UTC)).principal()
            return principal, _subject(session, asked.matched.path_params)

    def _decide(self, asked: _Asked, principal: Principal | None, subject: Subject) -> Access:
        rule = asked.matched.rule
        verdict = judge(rule, principal, subject, break_glass=asked.break_glass is not None)
        refusal = None if verdict.is_allowed else self._refusal(asked, principal, subject, verdict)
        acting_as = None
        if refusal is None and principal is not None and asked.as_user not in (None, principal.name):
            acting_as = asked.as_user
            if not _may_act_for_others(principal):
                verdict = Verdict.FORBIDDEN
                refusal = Forbidden(
                    f"{principal.described()} may not act as {acting_as} ({USER_HEADER}): that takes the role operator "
                    "in the cluster. Leave the user out: it is known from the token",
                    needs="operator",
                )
        message = "" if refusal is None else refusal.message
        self._record(_decision(asked, principal, subject, verdict, acting_as, message))
        if refusal is not None:
            raise refusal
        return Access(self._settings, asked.matched.route, principal, acting_as, subject, verdict)

    def _refusal(self, asked: _Asked, principal: Principal | None, subject: Subject, verdict: Verdict) -> PlatformError:
        rule, route = asked.matched.rule, asked.matched.route
        if rule.reach is Reach.NODE:
            return _not_that_host(principal, subject.host or "")
        if principal is None:
            return NotSignedIn(f"{route} needs a token, and there is none. {authentication.WHAT_TO_DO}")
        if verdict is Verdict.UNSEEN:
            job_id = asked.matched.path_params.get("job_id", "")
            return NotFound(f"there is no job {job_id!r}", job_id=job_id)
        if verdict is Verdict.OUT_OF_SCOPE:
            scopes = ", ".join(sorted(principal.permissions or ()))
            return Forbidden(
                f"{route} needs the scope {rule.permission}, and this token ({principal.signed_in_by}) has {scopes}: "
                "use another token",
                needs=rule.permission.value,
            )
        if rule.reach is Reach.SESSION:
            return NotFound("there is no such command beside a rank, or somebody else started it")
        return Forbidden(
            f"{principal.described()} may not {route}: it needs {rule.needs(subject.namespace)}. "
            + self._who_has(rule.role, CLUSTER if rule.reach is Reach.CLUSTER else subject.namespace or CLUSTER)
            + (f" An operator may, with a reason: {BREAK_GLASS_HEADER}" if rule.break_glass else ""),
            needs=rule.role.value,
        )

    def _who_has(self, role: Role, namespace: str) -> str:
        found = tokens.holders_of(self._store, role, namespace, datetime.now(UTC))
        found += [f"the group {group}" for group in sorted(self._groups_with(role, namespace))[:3]]
        return f"Who has it: {', '.join(found)}." if found else "Nobody who has a token has it."

    def _groups_with(self, role: Role, namespace: str) -> list[str]:
        """Groups of the identity provider with this role."""
        return [
            group
            for group, roles in self._settings.oidc.roles.items()
            if any(roles[place].includes(role) for place in (namespace, CLUSTER) if place in roles)
        ]

    def _record(self, decision: Decision) -> None:
        for recorder in self._recorders:
            recorder(decision)

    def _note_use(self, principal: Principal) -> None:
        token_id = principal.token_id
        if token_id is None:
            return
        at = time.monotonic()
        if at - self._noted.get(token_id, float("-inf")) >= tokens.USED_EVERY.total_seconds():
            self._noted[token_id] = at
            tokens.note_use(self._store, token_id, datetime.now(UTC))


def _asked(scope: Scope, matched: MatchedRoute) -> _Asked:
    headers = Headers(scope=scope)
    as_user = headers.get(USER_HEADER)
    if as_user is not None:
        try:
            check_name(as_user)
        except ValueError as error:
            raise InvalidRequest(f"{USER_HEADER}: {error}") from None
    reason = headers.get(BREAK_GLASS_HEADER, "").strip()[:_LONGEST_REASON]
    client = scope.get("client")
    return _Asked(
        matched=matched,
        path=scope["path"],
        credential=authentication.credential_of(scope, basic=matched.route in _BROWSER_ROUTES),
        as_user=as_user,
        break_glass=reason or None,
        peer=client[0] if client else None,
        request_id=scope.get("request_id"),
    )


def _decision(
    asked: _Asked,
    principal: Principal | None,
    subject: Subject,
    verdict: Verdict,
    acting_as: str | None = None,
    message: str = "",
) -> Decision:
    return Decision(
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


def _subject(session: Session, path_params: Mapping[str, str]) -> Subject:
    job_id = path_params.get("job_id")
    if job_id is None:
        return Subject(host=path_params.get("name"))
    owner = owners.owners_of(session, [job_id]).get(job_id)
    if owner is None:
        return Subject(job_id=job_id)
    session_id = path_params.get("session_id")
    starter = None if session_id is None else sessions.starter_of(session, session_id, job_id)
    return Subject(owner.namespace, owner.user, job_id, session_of=starter)


def _not_that_host(principal: Principal | None, host: str) -> PlatformError:
    needed = (
        f"a report of host {host!r} needs the certificate of node/{host}, or, without TLS, its node token: "
        f"`gpu-platform hosts enroll {host}` (a node worker with the service's own state_dir finds its token by itself)"
    )
    if principal is None:
        return NotSignedIn(needed)
    return Forbidden(f"{principal.id} may not report for another; {needed}", needs=f"node/{host}")


def _may_act_for_others(principal: Principal) -> bool:
    return principal.kind is PrincipalKind.PERSON and principal.has(Role.OPERATOR, CLUSTER)

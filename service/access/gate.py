"""The one place where it is decided whether a request goes on.

Each request is looked up in the table of routes. Then one transaction finds who asks and whose job the path names, so
that a revoked token is refused at once, by every service process. What depends on the body, a submission, is
decided in :mod:`service.access.submissions`.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from anyio import to_thread
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from starlette.datastructures import Headers
from starlette.types import Scope

from gpu_platform.client.calls import BREAK_GLASS_HEADER, USER_HEADER
from gpu_platform.domain.access.principal import Principal, PrincipalKind
from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.domain.access.rules import AccessVerdict, Reach, Subject, judge
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import (
    Forbidden,
    InvalidRequest,
    NotFound,
    NotSignedIn,
    PlatformError,
    TooManyRequests,
)
from gpu_platform.lanes import Lane, Stuck
from gpu_platform.observability import get_logger
from gpu_platform.settings import AccessSettings
from gpu_platform.settings.service import RateLimit
from gpu_platform.store import Store
from gpu_platform.store.access import job_tokens, sessions, tokens
from gpu_platform.store.jobs import owners
from gpu_platform.store.jobs.pipelines import no_such_pipeline
from gpu_platform.store.jobs.schedules import no_such_schedule
from service.access import authentication
from service.access.access_request import AccessRequest, asked_of, decision_about
from service.access.decisions import AccessDecision, Recorder
from service.access.guesses import Guesses
from service.access.oidc import OidcVerifier, is_jwt
from service.access.routes import MatchedRoute

log = get_logger(__name__)

_LONG_NUMBER = 10
_SHOWS_MORE = ("GET /readyz",)
"""Public routes that show more to who has signed in."""
_LOOK_S = 2.0
"""They wait so long for the database to know who has."""

E = TypeVar("E", bound=PlatformError)
Note = Callable[[AccessVerdict, str, Principal | None], None]


def _nothing(verdict: AccessVerdict, message: str, principal: Principal | None) -> None:
    """For requests that were not decided by a gate."""


@dataclass(frozen=True)
class Access:
    """What was found out about a request before its handler runs."""

    settings: AccessSettings
    route: str
    principal: Principal | None = None
    acting_as: str | None = None
    subject: Subject = field(default_factory=Subject)
    verdict: AccessVerdict = AccessVerdict.ALLOWED
    note: Note = _nothing
    """Records what the handler decides itself, e.g. about the body: verdict, why, and who asks if the gate does not
    know. Call it in a thread."""

    def refused(self, refusal: E, verdict: AccessVerdict = AccessVerdict.FORBIDDEN) -> E:
        """Record that the handler refuses the request, and return the refusal.

        For refusals that look like something else, so that nobody learns what there is. A :class:`Forbidden` or
        :class:`NotSignedIn` that a handler raises is recorded by itself.
        """
        self.note(verdict, refusal.message, None)
        return refusal

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


class Gate:
    """Decides about requests. ``recorders`` are told of each decision. ``guesses``: how many requests without a valid
    token one address may send."""

    def __init__(
        self,
        settings: AccessSettings,
        store: Store,
        recorders: Sequence[Recorder] = (),
        guesses: RateLimit | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._recorders = [*recorders]
        self._looks = Lane("who asks", patience_s=_LOOK_S)
        self._noted: dict[str, float] = {}
        self._oidc = None if settings.oidc.issuer is None else OidcVerifier(settings.oidc)
        self._guesses = Guesses(guesses, lambda: tokens.valid_hashes(store, datetime.now(UTC)))

    async def admit(self, scope: Scope, matched: MatchedRoute) -> Access:
        """What the handler may know. Raises :class:`NotSignedIn`, :class:`Forbidden`, :class:`NotFound` or
        :class:`TooManyRequests`."""
        asked = asked_of(scope, matched)
        try:
            return await self._admit(scope, asked)
        except UnreadableProof as error:
            raise await to_thread.run_sync(
                self._unreadable, asked, error.credential, error.__cause__ or error
            ) from None

    async def note_failed(self, scope: Scope, matched: MatchedRoute, error: Exception) -> PlatformError:
        """A handler for anybody raised ``error``, which it did not expect: count and record the request as one with a
        wrong token. Returns what to answer."""
        return await to_thread.run_sync(self._unreadable, asked_of(scope, matched), None, error)

    async def _admit(self, scope: Scope, asked: AccessRequest) -> Access:
        matched = asked.matched
        if matched.rule.reach is Reach.PUBLIC:
            access = Access(self._settings, matched.route, note=self._note_of(asked, None, Subject()))
            if matched.route in _SHOWS_MORE and Headers(scope=scope).get("authorization") is not None:
                try:
                    return await self._looks.run(partial(self._known_or_nobody, asked, access))
                except Stuck:  # the database stands still, and that is what the answer is to say
                    return access
            return access
        if matched.rule.reach.is_of_nodes:
            host = matched.path_params["name"]
            with _reading(None):
                principal = authentication.node_principal(scope)
            if principal is None:
                raise self._not_signed_in(asked, None, NotSignedIn(_needed_of(asked, host)), Subject(host=host))
            if matched.rule.reach is Reach.NODE:
                return self._decide(asked, principal, Subject(host=host))
            subject = await to_thread.run_sync(self._of_attempt, matched.path_params)
            return await to_thread.run_sync(self._decide, asked, principal, subject)
        return await to_thread.run_sync(self._look_and_decide, asked)

    async def is_valid_still(self, scope: Scope, matched: MatchedRoute) -> bool:
        """False if the request would be refused now. For streams, which last long.

        While nobody can look, e.g. since the database or the identity provider is away, it goes on until its token
        ends by itself.
        """
        access: Access = scope["access"]
        return await to_thread.run_sync(self._look_again, asked_of(scope, matched), access.who)

    def _look_again(self, asked: AccessRequest, admitted: Principal) -> bool:
        principal, subject, message = None, Subject(), ""
        try:
            principal, subject = self._look(asked, asked.credential())
            verdict = judge(asked.matched.rule, principal, subject, break_glass=asked.break_glass is not None)
        except (NotSignedIn, UnreadableProof) as refusal:
            verdict, message = AccessVerdict.NOT_SIGNED_IN, str(refusal)
        except Exception as error:
            if not isinstance(error, PlatformError):  # nobody waits for this look: it would end without a trace
                log.warning("request.not_judged_again", route=asked.matched.route, error=repr(error))
            if admitted.ends_at is None or time.time() < admitted.ends_at:
                return True
            verdict, message = AccessVerdict.NOT_SIGNED_IN, "its token has expired"
        if not verdict.is_allowed:
            try:
                self._record(
                    decision_about(asked, principal, subject, verdict, message=f"ended before it was over. {message}")
                )
            except PlatformError as error:  # it ends all the same
                log.warning("request.end_not_recorded", route=asked.matched.route, error=error.message)
        return verdict.is_allowed

    def _look_and_decide(self, asked: AccessRequest) -> Access:
        credential = None
        try:
            with _reading(None):
                credential = asked.credential()
            if credential is None:
                raise NotSignedIn(
                    f"{asked.matched.route} needs a token, and there is none. {authentication.WHAT_TO_DO}"
                )
            if not self._is_of_oidc(credential):
                self._guesses.check(asked.peer, credential)
            principal, subject = self._look(asked, credential)
        except NotSignedIn as refusal:
            raise self._not_signed_in(asked, credential, refusal, Subject()) from None
        except TooManyRequests:
            self._record_held(asked)
            raise
        self._note_use(principal)
        return self._decide(asked, principal, subject)

    def _look(self, asked: AccessRequest, credential: str | None) -> tuple[Principal, Subject]:
        principal = None
        if credential is None:
            raise NotSignedIn(authentication.WHAT_TO_DO)
        if self._oidc is not None and self._is_of_oidc(credential):
            with _reading(credential):
                principal = self._oidc.principal(credential)
        with self._store.read() as session:
            if principal is None:
                with _reading(credential):
                    principal = _holder(session, credential)
            subject = _subject(session, asked.matched.path_params)
            if asked.matched.rule.shared and subject.job_id is not None:
                subject = replace(subject, is_shared=owners.is_shared(session, subject.job_id))
            return principal, subject

    def _of_attempt(self, path_params: Mapping[str, str]) -> Subject:
        host, job_id, attempt = (path_params[name] for name in ("name", "job_id", "attempt"))
        held = None
        if attempt.isascii() and attempt.isdecimal() and len(attempt) < _LONG_NUMBER:
            held = job_tokens.held_attempt(self._store, AttemptKey(job_id=job_id, attempt=int(attempt)), host)
        return Subject(job_id=job_id, host=host, is_held=held is not None)

    def _is_of_oidc(self, credential: str) -> bool:
        return self._oidc is not None and is_jwt(credential)

    def _unreadable(self, asked: AccessRequest, credential: str | None, error: BaseException) -> PlatformError:
        at = traceback.extract_tb(error.__traceback__)[-1:]
        where = [f"{frame.filename}:{frame.lineno}" for frame in at]
        log.warning(
            "request.not_readable", route=asked.matched.route, peer=asked.peer, error=repr(error)[:300], where=where
        )
        refusal: PlatformError
        if asked.matched.rule.reach is Reach.PUBLIC:
            refusal = InvalidRequest("this request cannot be read: send what /docs says")
        else:
            refusal = NotSignedIn(f"the token of this request cannot be read. {authentication.WHAT_TO_DO}")
        answer = self._guesses.note(asked.peer, credential, NotSignedIn(refusal.message))
        if isinstance(answer, NotSignedIn):
            self._record(decision_about(asked, None, Subject(), AccessVerdict.NOT_SIGNED_IN, message=refusal.message))
            return refusal
        self._record_held(asked)
        return answer

    def _known_or_nobody(self, asked: AccessRequest, access: Access) -> Access:
        """For a public route: who asks, if that can be known."""
        credential = None
        try:
            credential = asked.credential()
            if credential is not None and not self._is_of_oidc(credential):
                self._guesses.check(asked.peer, credential)
            principal, _ = self._look(asked, credential)
        except NotSignedIn as refusal:
            self._not_signed_in(asked, credential, refusal, Subject())
            return access
        except UnreadableProof as error:
            self._unreadable(asked, credential, error.__cause__ or error)
            return access
        except PlatformError:
            return access
        return replace(access, principal=principal)

    def _not_signed_in(
        self, asked: AccessRequest, credential: str | None, refusal: NotSignedIn, subject: Subject
    ) -> NotSignedIn | TooManyRequests:
        """Count and record a request without a valid token. Returns what to answer."""
        answer = self._guesses.note(asked.peer, credential, refusal)
        if answer is refusal:
            self._record(decision_about(asked, None, subject, AccessVerdict.NOT_SIGNED_IN, message=refusal.message))
        else:
            self._record_held(asked)
        return answer

    def _record_held(self, asked: AccessRequest) -> None:
        if (message := self._guesses.to_record(asked.peer)) is not None:
            self._record(decision_about(asked, None, Subject(), AccessVerdict.NOT_SIGNED_IN, message=message))

    def _note_of(
        self, asked: AccessRequest, principal: Principal | None, subject: Subject, acting_as: str | None = None
    ) -> Note:
        def note(verdict: AccessVerdict, message: str, who: Principal | None) -> None:
            self._record(decision_about(asked, who or principal, subject, verdict, acting_as, message))

        return note

    def _decide(self, asked: AccessRequest, principal: Principal, subject: Subject) -> Access:
        rule = asked.matched.rule
        verdict = judge(rule, principal, subject, break_glass=asked.break_glass is not None)
        refusal = None if verdict.is_allowed else self._refusal(asked, principal, subject, verdict)
        acting_as = None
        if refusal is None and asked.user_to_act_for() not in (None, principal.name):
            acting_as = asked.as_user
            if not _may_act_for_others(principal):
                verdict = AccessVerdict.FORBIDDEN
                refusal = Forbidden(
                    f"{principal.described()} may not act as {acting_as} ({USER_HEADER}): that takes the role operator "
                    "in the cluster. Leave the user out: it is known from the token",
                    needs="operator",
                )
        message = "" if refusal is None else refusal.message
        self._record(decision_about(asked, principal, subject, verdict, acting_as, message))
        if refusal is not None:
            raise refusal
        note = self._note_of(asked, principal, subject, acting_as)
        return Access(self._settings, asked.matched.route, principal, acting_as, subject, verdict, note)

    def _refusal(
        self, asked: AccessRequest, principal: Principal, subject: Subject, verdict: AccessVerdict
    ) -> PlatformError:
        rule, route = asked.matched.rule, asked.matched.route
        if rule.reach.is_of_nodes:
            return _not_that_host(asked, principal, subject)
        if verdict is AccessVerdict.UNSEEN:
            return _not_there(asked.matched.path_params)
        if verdict is AccessVerdict.OUT_OF_SCOPE:
            scopes = ", ".join(sorted(principal.permissions or ()))
            return Forbidden(
                f"{route} needs the scope {rule.permission}, and this token ({principal.signed_in_by}) has {scopes}: "
                "use another token",
                needs=rule.permission.value,
            )
        if principal.kind is PrincipalKind.JOB and not rule.of_jobs:
            return Forbidden(
                f"{route} is not for job tokens: a job reads itself and submits jobs as its user, nothing else",
                needs=rule.role.value,
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

    def _record(self, decision: AccessDecision) -> None:
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


class UnreadableProof(Exception):
    """What somebody sent as proof of who they are made the code that reads it fail."""

    def __init__(self, credential: str | None) -> None:
        super().__init__("the token cannot be read")
        self.credential = credential


@contextmanager
def _reading(credential: str | None) -> Iterator[None]:
    """Nobody is known yet: whatever goes wrong here is about what a stranger sent."""
    try:
        yield
    except (PlatformError, SQLAlchemyError):  # neither depends on what was sent
        raise
    except Exception as error:
        raise UnreadableProof(credential) from error


def _holder(session: Session, credential: str) -> Principal:
    if credential.startswith(job_tokens.PREFIX):
        return authentication.job_principal(session, credential)
    return authentication.check_token(session, credential, datetime.now(UTC)).principal()


_OWNED = {"schedule_id": owners.owner_of_schedule, "pipeline_id": owners.owner_of_pipeline}
"""What is judged as a job is, besides jobs."""


def _not_there(path_params: Mapping[str, str]) -> NotFound:
    if (schedule_id := path_params.get("schedule_id")) is not None:
        return no_such_schedule(schedule_id)
    if (pipeline_id := path_params.get("pipeline_id")) is not None:
        return no_such_pipeline(pipeline_id)
    if (array_id := path_params.get("array_id")) is not None:
        return owners.no_such_array(array_id)
    return owners.no_such_job(path_params.get("job_id", ""))


def _subject(session: Session, path_params: Mapping[str, str]) -> Subject:
    for name, owner_of in _OWNED.items():
        if (wanted := path_params.get(name)) is not None:
            found = owner_of(session, wanted)
            return Subject() if found is None else Subject(found.namespace, found.user)
    job_id = path_params.get("job_id", path_params.get("array_id"))
    if job_id is None:
        return Subject(path_params.get("namespace"), host=path_params.get("name"))
    owner = owners.owners_of(session, [job_id]).get(job_id)
    if owner is None:
        return Subject(job_id=job_id)
    session_id = path_params.get("session_id")
    starter = None if session_id is None else sessions.starter_of(session, session_id, job_id)
    return Subject(owner.namespace, owner.user, job_id, session_of=starter)


def _not_that_host(asked: AccessRequest, principal: Principal, subject: Subject) -> Forbidden:
    host = subject.host or ""
    is_report = asked.matched.rule.reach is Reach.NODE
    if not is_report and principal.id == f"node/{host}":
        attempt = f"{subject.job_id}#{asked.matched.path_params['attempt']}"
        return Forbidden(f"attempt {attempt} holds nothing on host {host}, or has ended", needs="a reservation")
    return Forbidden(
        f"{principal.id} may not {'report' if is_report else 'ask'} for another; {_needed_of(asked, host)}",
        needs=f"node/{host}",
    )


def _needed_of(asked: AccessRequest, host: str) -> str:
    what = "a report" if asked.matched.rule.reach is Reach.NODE else "asking for what an attempt gets"
    return (
        f"{what} of host {host!r} needs the certificate of node/{host}, or, without TLS, its node token: "
        f"`gpu-platform hosts enroll {host}` (a node worker with the service's own state_dir finds its token by itself)"
    )


def _may_act_for_others(principal: Principal) -> bool:
    return principal.kind is PrincipalKind.PERSON and principal.has(Role.OPERATOR, CLUSTER)

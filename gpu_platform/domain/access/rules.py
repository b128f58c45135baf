"""The rule of a route, and the judgement: may this principal do that to this subject?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpu_platform.domain.access.principal import Principal, PrincipalKind
from gpu_platform.domain.access.roles import CLUSTER, Permission, Role


class Reach(StrEnum):
    """Where the role of a rule must be held."""

    PUBLIC = "public"
    """Nowhere: anybody may ask, also without signing in."""
    SIGNED_IN = "signed_in"
    """Nowhere, but one must have signed in. The handler decides the rest."""
    SOMEWHERE = "somewhere"
    """In any namespace. The answer holds only what the asking principal may see."""
    JOB = "job"
    """In the namespace of the job that the path names."""
    SESSION = "session"
    """In the namespace of the job, and the command beside its rank must have been started by the same principal."""
    CLUSTER = "cluster"
    """In the whole cluster."""
    NODE = "node"
    """Only the node worker of the host that the path names."""
    ATTEMPT = "attempt"
    """Only the node worker of the host that the path names, while the attempt in the path holds something there."""
    NAMESPACE = "namespace"
    """In the namespace that the path names."""

    @property
    def is_of_nodes(self) -> bool:
        """True for routes that only node workers use."""
        return self in (Reach.NODE, Reach.ATTEMPT)


@dataclass(frozen=True)
class RouteRule:
    """Who may use a route."""

    permission: Permission
    role: Role = Role.VIEWER
    reach: Reach = Reach.JOB
    owner: bool = False
    """The user of the job may, too, with the role ``user`` in its namespace."""
    break_glass: bool = False
    """An operator may, too, who gives a reason. It is recorded."""
    shared: bool = False
    """Whoever sees the job may, too, if the job says so (``readable_by: namespace``)."""
    of_jobs: bool = False
    """Ranks may, too, by their job token. They may use no other route."""

    def needs(self, namespace: str | None) -> str:
        """What it takes, for messages: ``the role operator in the cluster``."""
        if self.reach.is_of_nodes:
            return "the certificate of that host"
        where = {Reach.CLUSTER: "in the cluster", Reach.SOMEWHERE: "in some namespace"}.get(
            self.reach, f"in namespace {namespace}"
        )
        role = f"the role {self.role} {where}"
        return f"to be the job's user, or {role}" if self.owner else role


@dataclass(frozen=True)
class Subject:
    """What a request is about."""

    namespace: str | None = None
    user: str | None = None
    """Of the job."""
    job_id: str | None = None
    is_shared: bool = False
    """The job says that its namespace may read what it leaves behind."""
    host: str | None = None
    session_of: str | None = None
    """The id of the principal that started the command beside a rank."""
    is_held: bool = False
    """The attempt that the path names holds something on the host."""


class AccessVerdict(StrEnum):
    """The judgement about a request."""

    ALLOWED = "allowed"
    BROKE_GLASS = "broke_glass"
    """Allowed to an operator, because of the reason that was given."""
    NOT_SIGNED_IN = "not_signed_in"
    UNSEEN = "unseen"
    """As if it did not exist: the principal must not learn that it does."""
    OUT_OF_SCOPE = "out_of_scope"
    """The token is limited to other permissions."""
    FORBIDDEN = "forbidden"

    @property
    def is_allowed(self) -> bool:
        """True if the request goes on."""
        return self in (AccessVerdict.ALLOWED, AccessVerdict.BROKE_GLASS)


def judge(
    rule: RouteRule, principal: Principal | None, subject: Subject, *, break_glass: bool = False
) -> AccessVerdict:
    """May the principal do what the rule is about? ``break_glass``: a reason was given."""
    if rule.reach is Reach.PUBLIC:
        return AccessVerdict.ALLOWED
    if principal is None:
        return AccessVerdict.NOT_SIGNED_IN
    if not principal.may(rule.permission):
        return AccessVerdict.OUT_OF_SCOPE
    if rule.reach.is_of_nodes or principal.kind is PrincipalKind.NODE:
        held = rule.reach is not Reach.ATTEMPT or subject.is_held
        return _yes(_is_that_host(rule, principal, subject) and held)
    if principal.kind is PrincipalKind.JOB and not rule.of_jobs:
        return AccessVerdict.FORBIDDEN
    match rule.reach:
        case Reach.SIGNED_IN:
            return AccessVerdict.ALLOWED
        case Reach.SOMEWHERE:
            return _yes(any(principal.has(rule.role, namespace) for namespace in principal.roles))
        case Reach.CLUSTER:
            return _yes(principal.has(rule.role, CLUSTER))
        case Reach.NAMESPACE:
            return _yes(subject.namespace is not None and principal.has(rule.role, subject.namespace))
        case _:
            return _of_job(rule, principal, subject, break_glass)


def _of_job(rule: RouteRule, principal: Principal, subject: Subject, break_glass: bool) -> AccessVerdict:
    if subject.namespace is None or principal.role_in(subject.namespace) is None:
        return AccessVerdict.UNSEEN
    if principal.kind is PrincipalKind.JOB and subject.job_id != principal.name:
        return AccessVerdict.UNSEEN  # a job reaches only itself
    if rule.reach is Reach.SESSION:
        return _yes(subject.session_of == principal.id and principal.has(Role.USER, subject.namespace))
    if rule.owner and is_owner(principal, subject):
        return AccessVerdict.ALLOWED
    if principal.has(rule.role, subject.namespace) or (rule.shared and subject.is_shared):
        return AccessVerdict.ALLOWED
    if rule.break_glass and break_glass and principal.has(Role.OPERATOR, subject.namespace):
        return AccessVerdict.BROKE_GLASS
    return AccessVerdict.FORBIDDEN


def is_owner(principal: Principal, subject: Subject) -> bool:
    """True if the job is this person's own, or is this job itself."""
    if subject.namespace is None or not principal.has(Role.USER, subject.namespace):
        return False
    if principal.kind is PrincipalKind.JOB:
        return subject.job_id == principal.name
    return principal.kind is PrincipalKind.PERSON and subject.user == principal.name


def _is_that_host(rule: RouteRule, principal: Principal, subject: Subject) -> bool:
    return rule.reach.is_of_nodes and principal.kind is PrincipalKind.NODE and principal.name == subject.host


def _yes(allowed: bool) -> AccessVerdict:
    return AccessVerdict.ALLOWED if allowed else AccessVerdict.FORBIDDEN

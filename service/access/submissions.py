"""Whose job is it? Namespace, user and highest priority come from the token, not from the body."""

from __future__ import annotations

from gpu_platform.domain.access.principal import Principal, PrincipalKind
from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.domain.access.rules import AccessVerdict
from gpu_platform.domain.errors import Forbidden, InvalidRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.texts import duration
from gpu_platform.settings import AccessSettings, Settings
from gpu_platform.store import Store, windows
from gpu_platform.store.jobs import dependencies, owners
from gpu_platform.store.leadership import leader
from service.access.gate import Access
from service.access.naming import why_not_named

DEFAULT_NAMESPACE = "default"


def as_allowed(settings: Settings, store: Store, access: Access, spec: JobSpec) -> JobSpec:
    """The job with its namespace and user filled in. Its priority is not checked: see :func:`check_priority`.

    Raises :class:`Forbidden` and :class:`InvalidRequest`.
    """
    if spec.artifacts is not None:
        raise InvalidRequest("artifacts are directories of a pipeline, which sets them itself: leave the field out")
    principal = access.who
    namespace = spec.namespace if "namespace" in spec.model_fields_set else _own_namespace(principal)
    if not principal.has(Role.USER, namespace):
        allowed = principal.namespaces(Role.USER) or ()
        raise Forbidden(
            f"{principal.described()} may not submit jobs to namespace {namespace}: it needs the role user there. "
            f"{'Possible: ' + ', '.join(sorted(allowed)) if allowed else 'Ask an administrator for it'}",
            needs=Role.USER.value,
        )
    check_namespace(store, access, namespace)
    check_dependencies(store, access, spec)
    user = _user(settings, store, access, spec.model_copy(update={"namespace": namespace}))
    spec = spec.model_copy(update={"namespace": namespace, "user": user})
    _check_resume(store, access, spec)
    return spec


def check_priority(principal: Principal, spec: JobSpec, highest: int) -> None:
    """Raise :class:`Forbidden` for a job whose priority is above ``highest``."""
    if spec.priority > highest:
        raise Forbidden(
            f"priority {spec.priority} was asked for; {principal.described()} may give at most {highest} in namespace "
            f"{spec.namespace}: lower it, or ask an operator",
            asked=spec.priority,
            highest=highest,
        )


def check_reservation(store: Store, spec: JobSpec) -> None:
    """Raise :class:`InvalidRequest` if the job could never run in the advance reservation for which it asks.

    One that is not for this job looks like one that is not there.
    """
    if spec.reservation is None:
        return
    window = windows.get_row(store, spec.reservation)
    if window is None or not window.allows(spec.namespace, spec.user):
        raise InvalidRequest(
            f"there is no advance reservation {spec.reservation!r} for jobs of {spec.user} in namespace "
            f"{spec.namespace}: see gpu-platform reservations list"
        )
    if spec.time_limit_s is None:
        raise InvalidRequest(
            f"a job in an advance reservation must end before that ends: give it a time limit of at most "
            f"{duration(window.duration_s)} (--time)"
        )
    if spec.time_limit_s > window.duration_s:
        raise InvalidRequest(
            f"{window.name} lasts {duration(window.duration_s)}, and the job may run {duration(spec.time_limit_s)}: "
            "give it a shorter time limit"
        )
    there = sum(place.gpus for place in windows.get_window(store, window.name).hosts)
    if spec.gpu_count > there and all(request.share is None for request in spec.requests):
        raise InvalidRequest(f"asked for {spec.gpu_count} GPUs; {window.name} has {there}: ask for at most {there}")


def highest_priority(settings: AccessSettings, principal: Principal, namespace: str) -> int:
    """The highest priority that the principal may give to jobs of the namespace."""
    if principal.max_priority is not None:
        return principal.max_priority
    role = principal.role_in(namespace)
    return 0 if role is None else settings.highest_priority(role)


def known_namespaces(store: Store, settings: AccessSettings) -> set[str]:
    """The namespaces that the configuration names."""
    named = {namespace.name for namespace in leader.current_quotas(store).namespaces}
    return {DEFAULT_NAMESPACE, *settings.namespaces, *named}


def _user(settings: Settings, store: Store, access: Access, spec: JobSpec) -> str:
    own, principal, namespace = access.acting_as or access.user, access.who, spec.namespace
    if "user" not in spec.model_fields_set or spec.user == own:
        return own
    if principal.kind is PrincipalKind.PERSON and principal.has(Role.OPERATOR, namespace):
        why_not = why_not_named(settings, store, principal, spec.user, Role.OPERATOR)
        if why_not is None:
            return spec.user
        raise Forbidden(f"the job names the user {spec.user}: {why_not}", needs=Role.OPERATOR.value)
    raise Forbidden(
        f"the job names the user {spec.user}, and the token belongs to {principal.described()}: leave `user` out. Only "
        f"an operator of namespace {namespace} submits jobs for others",
        needs=Role.OPERATOR.value,
    )


def _check_resume(store: Store, access: Access, spec: JobSpec) -> None:
    """A job that one may not see is not there to resume from. One's own is, and one that is shared: whoever begins with
    a checkpoint reads it, as somebody who reads the output does."""
    point = spec.checkpoint.resume_point
    if point is None:
        return
    owner = owners.owners_of(store, [point.job_id]).get(point.job_id)
    if owner is not None and not access.sees(owner.namespace):
        raise access.refused(
            InvalidRequest(f"the job is to resume from {point}, but there is no job {point.job_id!r}"),
            AccessVerdict.UNSEEN,
        )
    if owner is None or owner.user == spec.user or access.who.has(Role.ADMIN, owner.namespace):
        return
    with store.read() as session:
        if owner.namespace != spec.namespace or not owners.is_shared(session, point.job_id):
            raise Forbidden(
                f"the job is to resume from {point}, a job of {owner.user} in namespace {owner.namespace}, and would "
                f"read its checkpoints as {spec.user}: they are for {owner.user} alone, unless that job was submitted "
                "with --readable-by namespace, and is in the same namespace",
                needs=Role.ADMIN.value,
            )


def check_dependencies(store: Store, access: Access, spec: JobSpec) -> None:
    """A job that one may not see is not there to wait for. Raises :class:`NotFound`."""
    found = owners.owners_of(store, [one.job_id for one in spec.after]) if spec.after else {}
    for one in spec.after:
        owner = found.get(one.job_id)
        if owner is None:
            raise dependencies.no_such_job(one.job_id)
        if not access.sees(owner.namespace):
            raise access.refused(dependencies.no_such_job(one.job_id), AccessVerdict.UNSEEN)


def _own_namespace(principal: Principal) -> str:
    own = principal.namespaces(Role.USER)
    if own is None or DEFAULT_NAMESPACE in own or not own:
        return DEFAULT_NAMESPACE
    if len(own) == 1:
        return next(iter(own))
    raise InvalidRequest(f"say which namespace the job is for; possible are {', '.join(sorted(own))}")


def check_namespace(store: Store, access: Access, namespace: str) -> None:
    """Raise :class:`InvalidRequest` for a namespace that neither the settings nor the principal's roles name."""
    settings, principal = access.settings, access.who
    if settings.open_namespaces or (namespace in principal.roles and namespace != CLUSTER):
        return
    if namespace == DEFAULT_NAMESPACE or namespace in settings.namespaces:
        return
    known = known_namespaces(store, settings)
    if namespace not in known:
        raise access.refused(
            InvalidRequest(
                f"there is no namespace {namespace!r}; there are {', '.join(sorted(known))}. An administrator adds one "
                "with access.namespaces or a quota, or opens all with access.open_namespaces",
                namespace=namespace,
            )
        )

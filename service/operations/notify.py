"""Who is told of a job: what a submission may say of it, and the cluster's defaults.

Users name targets that operators opened, never addresses of their own choice: a URL of a user would make control
workers send requests anywhere. A mail address is the user's own, or of a domain that the operator allows.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpu_platform.domain.access.principal import PrincipalKind
from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.jobs.notify import NotifyRule, check_address
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.notifications import OpenTarget
from gpu_platform.store import Store
from gpu_platform.store.jobs import notices
from service.access.gate import Access


def rules_of(store: Store, access: Access, spec: JobSpec) -> tuple[NotifyRule, ...]:
    """Who is told of the job, with targets and addresses filled in. Its namespace and user are known already.

    Raises :class:`InvalidRequest`.
    """
    said = "notify" in spec.model_fields_set
    if said and not spec.notify:
        return ()
    opened = notices.open_targets(store)
    targets = opened.of(spec.namespace)
    if said:
        return tuple(_complete(access, spec.namespace, spec.user, targets, rule) for rule in spec.notify)
    by_name = {target.name: target for target in targets}
    found: list[NotifyRule] = []
    for default in opened.defaults:
        target = by_name.get(default.target)
        if target is None or not ("*" in default.namespaces or spec.namespace in default.namespaces):
            continue
        address = own_address(access, target, spec.user)
        if address is not None or not target.personal:
            found.append(NotifyRule(events=default.events, target=target.name, address=address))
    return tuple(found)


def own_address(access: Access, target: OpenTarget, user: str) -> str | None:
    """The user's own address for a personal target. None: nobody knows it, or the target is not personal."""
    if not target.personal:
        return None
    who = access.who
    if who.kind is PrincipalKind.PERSON and who.name == user and access.acting_as is None and who.mail is not None:
        return who.mail
    if target.user_domain is None:
        return None
    try:
        return check_address(f"{user}@{target.user_domain}")
    except ValueError:
        return None


def recipient(access: Access, target: OpenTarget, user: str, asked: str | None) -> str | None:
    """The address to which messages go. None: the target is not personal. Raises :class:`InvalidRequest`."""
    if not target.personal:
        if asked is not None:
            raise InvalidRequest(f"target {target.name} has its own recipients: leave the address {asked} out")
        return None
    own = own_address(access, target, user)
    if asked is None:
        if own is None:
            raise InvalidRequest(
                f"target {target.name} sends to a user's own address, and nobody told that of {user}: sign in with "
                f"`gpu-platform login`, if your identity provider gives it{_or_an_address(target)}"
            )
        return own
    if asked == own or asked.rpartition("@")[2] in target.domains:
        return asked
    allowed = f"addresses of {', '.join(target.domains)}" if target.domains else "only your own"
    raise InvalidRequest(
        f"target {target.name} was asked to send to {asked}; allowed: {allowed}" + (f" ({own})" if own else "")
    )


def named(targets: Sequence[OpenTarget], name: str, where: str) -> OpenTarget:
    """The target of this name. Raises :class:`InvalidRequest`, also for one that is not open."""
    found = next((target for target in targets if target.name == name), None)
    if found is None:
        raise InvalidRequest(f"there is no target {name!r} {where}; {_listed(targets)}")
    return found


def _complete(access: Access, namespace: str, user: str, targets: Sequence[OpenTarget], rule: NotifyRule) -> NotifyRule:
    where = f"for jobs of namespace {namespace}"
    if rule.target is not None:
        target = named(targets, rule.target, where)
    else:
        able = [target for target in targets if target.personal or rule.address is None]
        if len(able) != 1:
            what = "sends to addresses of users" if rule.address is not None else "is open"
            many = "more than one target" if able else "no target"
            raise InvalidRequest(f"{many} {what} {where}, so say which in `notify`; {_listed(targets)}")
        [target] = able
    address = recipient(access, target, user, rule.address)
    return rule.model_copy(update={"target": target.name, "address": address})


def _listed(targets: Sequence[OpenTarget]) -> str:
    if not targets:
        return "there is none: an operator opens one with notifications.targets"
    return f"there are: {', '.join(target.name for target in targets)}"


def _or_an_address(target: OpenTarget) -> str:
    return f", or name an address of {', '.join(target.domains)}" if target.domains else ""

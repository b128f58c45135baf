"""The cluster's defaults for fields that a job leaves out.

They are filled in once, when the job is submitted. So Temporal, the scheduler and people see the values that count,
and a changed configuration changes no job that was accepted.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from gpu_platform.domain.jobs.fencing import Fencing
from gpu_platform.domain.jobs.resources import ResourceRequest, Strategy
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.settings import Settings
from gpu_platform.settings.service import KindDefaults
from gpu_platform.store import Store
from gpu_platform.store.leadership import leader
from service.access import submissions
from service.access.gate import Access
from service.operations import notify


def accepted(settings: Settings, store: Store, access: Access, spec: JobSpec) -> tuple[JobSpec, str]:
    """The job with its namespace, its user and the defaults, and a digest of what was said: without the defaults.

    Raises :class:`Forbidden` and :class:`InvalidRequest`.
    """
    spec = submissions.as_allowed(settings, store, access, spec)
    highest = submissions.highest_priority(access.settings, access.who, spec.namespace)
    complete = with_defaults(spec, settings, highest, _longest_s(settings, store, spec.namespace))
    submissions.check_priority(access.who, complete, highest)
    submissions.check_reservation(store, complete)
    rules = notify.rules_of(store, access, complete)
    return complete.model_copy(update={"notify": rules}) if rules else complete, _digest(spec)


def with_defaults(spec: JobSpec, settings: Settings, highest_priority: int, longest_s: int | None = None) -> JobSpec:
    """Fill fields that the user did not give. A field that was given stays, even if it equals the platform's
    default: a time limit of null is no limit.

    ``highest_priority``: what the user may give; a default gives no more. ``longest_s``: the longest time limit in the
    job's namespace, in seconds; a default gives no more. None: there is no such limit.
    """
    defaults, said = settings.service.job_defaults, spec.model_fields_set
    kind = spec.kind or defaults.kind
    of_kind = KindDefaults() if kind is None else defaults.kinds.of(kind)
    update: dict[str, Any] = {} if kind is None else {"kind": kind}
    for name in ("max_retries", "max_hardware_retries"):
        if name not in said and (value := getattr(defaults, name)) is not None:
            update[name] = value
    for name in ("retry_wait_s", "retry_longest_wait_s"):
        if getattr(spec, name) is None and (value := getattr(defaults, name)) is not None:
            update[name] = value
    policy = spec.checkpoint
    more = {
        field: value
        for field, value in (("every_s", defaults.checkpoint_every_s), ("keep", defaults.checkpoint_keep))
        if value is not None and field not in policy.model_fields_set
    }
    if more:
        update["checkpoint"] = policy.model_copy(update=more)
    if spec.fencing is None and settings.fencing != Fencing.LEASE:
        update["fencing"] = Fencing(settings.fencing)
    priority = defaults.priority_of(of_kind)
    if priority is not None and "priority" not in said:
        update["priority"] = min(settings.access.level(priority), highest_priority)
    if of_kind.strategy is not None:
        update |= _placed(spec, of_kind.strategy)
    # A deadline ends a job, too. A limit beside it could refuse a job that its user means to end earlier.
    if defaults.time_limit_s is not None and "time_limit_s" not in said and spec.deadline_at is None:
        update["time_limit_s"] = min(defaults.time_limit_s, longest_s or defaults.time_limit_s)
    return spec.model_copy(update=update) if update else spec


def _longest_s(settings: Settings, store: Store, namespace: str) -> int | None:
    """The longest time limit that the quotas allow. It is only read where there is a default that it limits."""
    if settings.service.job_defaults.time_limit_s is None:
        return None
    return leader.current_quotas(store).longest_s(namespace)


def _placed(spec: JobSpec, strategy: Strategy) -> dict[str, Any]:
    """The requests of the job with this strategy, where they do not say one."""
    if not spec.groups:
        return {"gpus": _with_strategy(spec.gpus, strategy)}
    groups = (group.model_copy(update={"gpus": _with_strategy(group.gpus, strategy)}) for group in spec.groups)
    return {"groups": tuple(groups)}


def _with_strategy(request: ResourceRequest, strategy: Strategy) -> ResourceRequest:
    said = "strategy" in request.model_fields_set
    return request if said else request.model_copy(update={"strategy": strategy})


def _digest(spec: JobSpec) -> str:
    """The same for two submissions that say the same, whatever the defaults were."""
    said = json.dumps(spec.model_dump(mode="json", exclude_unset=True), sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()

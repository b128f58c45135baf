"""The cluster's defaults for fields that a job leaves out.

They are filled in once, when the job is submitted. So Temporal, the scheduler and people see the values that count,
and a changed configuration changes no job that was accepted.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from gpu_platform.domain.jobs.resources import ResourceRequest, Strategy
from gpu_platform.domain.jobs.spec import Fencing, JobSpec
from gpu_platform.settings import Settings
from gpu_platform.store import Store
from service.access import submissions
from service.access.gate import Access


def accepted(settings: Settings, store: Store, access: Access, spec: JobSpec) -> tuple[JobSpec, str]:
    """The job with its namespace, its user and the defaults, and a digest of what was said: without the defaults.

    Raises :class:`Forbidden` and :class:`InvalidRequest`.
    """
    spec = submissions.as_allowed(settings, store, access, spec)
    highest = submissions.highest_priority(access.settings, access.who, spec.namespace)
    complete = with_defaults(spec, settings, highest)
    submissions.check_priority(access.who, complete, highest)
    return complete, _digest(spec)


def with_defaults(spec: JobSpec, settings: Settings, highest_priority: int) -> JobSpec:
    """Fill fields that the user did not give. A field that was given stays, even if it equals the platform's
    default. ``highest_priority``: what the user may give; a default gives no more."""
    defaults, said = settings.service.job_defaults, spec.model_fields_set
    kind = spec.kind or defaults.kind
    update: dict[str, Any] = {}
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
    if kind is not None:
        of_kind = defaults.kinds.of(kind)
        update["kind"] = kind
        if of_kind.priority is not None and "priority" not in said:
            update["priority"] = min(settings.access.level(of_kind.priority), highest_priority)
        if of_kind.strategy is not None:
            update |= _placed(spec, of_kind.strategy)
    return spec.model_copy(update=update) if update else spec


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

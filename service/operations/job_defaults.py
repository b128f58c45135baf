"""The cluster's defaults for fields that a job leaves out."""

from __future__ import annotations

from typing import Any

from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.settings import JobDefaults


def with_defaults(spec: JobSpec, defaults: JobDefaults) -> JobSpec:
    """Fill fields that the user did not give. A field that was given stays, even if it equals the platform's
    default."""
    wanted = defaults.model_dump(exclude_none=True)
    update: dict[str, Any] = {
        name: wanted[name]
        for name in ("max_retries", "max_hardware_retries")
        if name in wanted and name not in spec.model_fields_set
    }
    policy = spec.checkpoint
    more = {
        field: wanted[name]
        for name, field in (("checkpoint_every_s", "every_s"), ("checkpoint_keep", "keep"))
        if name in wanted and field not in policy.model_fields_set
    }
    if more:
        update["checkpoint"] = policy.model_copy(update=more)
    return spec.model_copy(update=update) if update else spec

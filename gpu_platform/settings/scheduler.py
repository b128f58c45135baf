"""The section ``scheduler`` of the settings: the policy, and how long ended jobs are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from gpu_platform.settings.section import MetricsPort, Section


class SchedulerSettings(Section):
    """The scheduler."""

    poll_ms: Annotated[float, Field(gt=0)] = 5.0
    """How often the scheduler reads the change feed, milliseconds."""
    leader_heartbeat_timeout_s: float = 4.0
    """A leader that is silent for longer is replaced."""
    policy: dict[str, Any] = {}
    """How jobs are ordered and placed, quotas and the fabric: the fields of a policy file, see ``scheduler.policy``
    below. ``kill -HUP`` makes the scheduler read them again."""
    retention_days: Annotated[float, Field(ge=1)] | None = 90.0
    """Reservations, idempotency keys and fault ids of jobs that ended longer ago are deleted, but not what fair share
    still counts (eight half-lives); None: never."""
    job_keep_days: Annotated[float, Field(ge=7)] | None = 365.0
    """Jobs, arrays and pipelines that ended longer ago are moved out of the database, into files of ``job_archive``;
    None: never. A job whose reservation is kept (``retention_days``), or that something else names, stays longer."""
    job_archive: Path | None = None
    """Directory for ended jobs, best one that all schedulers share; None: ``<state_dir>/archive``."""
    event_keep_days: Annotated[float, Field(ge=7)] | None = 400.0
    """Older events are deleted; None: never. Longer than ``job_keep_days``: the archive has the events of its jobs."""
    usage_keep_days: Annotated[float, Field(ge=7)] | None = 400.0
    """Usage that is older is deleted, if its jobs are in the archive, which has it too; None: never. By default 13
    months: each month can be compared with the same one of the year before."""
    audit_keep_days: Annotated[float, Field(ge=1)] | None = None
    """Older records of the audit log are moved out of the database, into ``audit_archive``; None: never."""
    audit_archive: Path | None = None
    """Directory for old records of the audit log, best one that all schedulers share. Needed with
    ``audit_keep_days``."""
    upload_keep_days: Annotated[float, Field(ge=0.01)] | None = 1.0
    """Uploaded code that was not used for so long is removed, if no job, array, schedule or pipeline names it that may
    still run; None: never."""
    metrics_port: MetricsPort = 8702
    """Port of its ``/metrics``, see ``metrics_host``."""

    @model_validator(mode="after")
    def _archives_what_it_removes(self) -> Self:
        if self.audit_keep_days is not None and self.audit_archive is None:
            raise ValueError("audit_keep_days needs audit_archive, a directory: old records are moved there first")
        return self

"""The arguments of JobWorkflow and of its signals: one pydantic model each."""

from __future__ import annotations

from pydantic import BaseModel

from gpu_platform.domain.job import JobSpec


class JobInput(BaseModel):
    job_id: str
    """Also the workflow's id."""
    spec: JobSpec


class Interrupt(BaseModel):
    """Argument of the signals ``cancel``, ``kill`` and ``preempt``."""

    actor: str = "user"
    reason: str = ""

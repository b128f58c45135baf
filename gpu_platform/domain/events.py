"""One event: a line of the event log, and of the change feed that the scheduler and the service read."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel


class Event(BaseModel):
    """One line of the event log and of the change feed."""

    seq: int
    at: datetime
    kind: str
    """What happened, with dots: ``job.placed``, ``gpu.fault``, ``host.lost``."""
    actor: str
    """The user or process that did it, e.g. ``alice``, ``scheduler`` or ``node/dgx-a``."""
    job_id: str | None = None
    attempt: int | None = None
    host: str | None = None
    gpu_uuid: str | None = None
    data: dict[str, Any] = {}

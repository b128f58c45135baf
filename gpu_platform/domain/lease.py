"""What a node worker reports every few seconds, and the answer it gets."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from gpu_platform.domain.attempt import AttemptKey
from gpu_platform.domain.gpu import HostInventory


class GpuTelemetry(BaseModel):
    uuid: str
    temperature_c: int | None = None
    power_w: float | None = None
    utilization_percent: int | None = None
    memory_used_mib: int | None = None


class Checkpoint(BaseModel):
    """The newest complete checkpoint of an attempt, as one of its hosts sees it."""

    key: AttemptKey
    written_at: Annotated[float, Field(ge=0, lt=1e11)]
    """Unix seconds, by the clock of the file system."""
    name: str = ""
    """Its directory below the attempt's; empty: that directory itself."""


class HostReport(BaseModel):
    """Registration and lease renewal in one: the whole truth of the host, every time."""

    name: str
    session: str
    """New at every start of the node worker."""
    boot_id: str | None = None
    """New at every boot of the machine; None: the host does not tell."""
    address: str
    """Where ranks of other hosts reach this one."""
    agent_url: str
    """Where the service fetches logs and runs commands, with the password for it: ``http://service:…@10.0.0.7:41234``."""
    leaf: str | None = None
    spine: str | None = None
    inventory: HostInventory
    attempts: list[AttemptKey] = []
    """Attempts with processes on this host."""
    checkpoints: list[Checkpoint] = []
    """Of those of ``attempts`` that have one."""
    checkpoint_root: str | None = None
    """Identity of the checkpoint root: hosts that report the same one see each other's checkpoints. None: unknown."""
    telemetry: list[GpuTelemetry] = []
    degraded: dict[str, str] = {}
    """GPU uuid -> why the host itself keeps it from new work (temperature, lost device)."""


class LeaseAnswer(BaseModel):
    ttl_s: float
    draining: bool = False
    """The host is being drained: what runs is asked for a checkpoint, once."""
    kill: list[AttemptKey] = []
    """Stale attempts: released meanwhile, so their ranks here must die."""
    online_ms: int | None = None
    """When an operator last put the host online, Unix time: resets before that do not count against it any more."""

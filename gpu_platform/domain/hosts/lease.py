"""The report that a node worker sends every few seconds, and the answer to it.

Fields of the lease protocol are explained in ``lease_protocol``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, Field

from gpu_platform.domain.hosts.gpu import HostInventory
from gpu_platform.domain.jobs.attempt import AttemptKey


class GpuTelemetry(BaseModel):
    uuid: str
    temperature_c: int | None = None
    power_w: float | None = None
    utilization_percent: int | None = None
    memory_used_mib: int | None = None


class SavedCheckpoint(BaseModel):
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
    checkpoints: list[SavedCheckpoint] = []
    """The newest checkpoint of each of ``attempts`` that has one."""
    checkpoint_root: str | None = None
    """Identity of the checkpoint root: hosts that report the same one see each other's checkpoints. None: unknown."""
    telemetry: list[GpuTelemetry] = []
    degraded: dict[str, str] = {}
    """GPU uuid -> why the host itself keeps it from new work (temperature, lost device)."""

    seq: Annotated[int, Field(ge=0)] = 0
    """Grows with each report of this boot of the host; 0: a node worker of an older release."""
    round: Annotated[int, Field(ge=0)] = 0
    """The round that the newest answer brought."""
    voted: bool = False
    """The host has promised not to be heard for a while."""
    members_version: Annotated[int, Field(ge=0)] = 0
    """The list of members that the host knows."""
    lease_s: Annotated[float | None, Field(gt=0, le=3600)] = None
    """The lease asked for, seconds: longer before a planned restart of the node worker. None: the usual one."""


class Member(BaseModel):
    """A host that is not LOST."""

    name: str
    url: str
    """Where its node worker answers other hosts."""


class VerdictHeld(BaseModel):
    """Why silent hosts are not declared LOST: too many are silent at once."""

    since: datetime
    silent: list[str]
    """Hosts whose leases have ended."""
    heard: int
    """Members that the leader hears."""
    members: int

    @property
    def message(self) -> str:
        named = ", ".join(self.silent[:5]) + (", …" if len(self.silent) > 5 else "")
        return (
            f"{len(self.silent)} hosts are silent ({named}) and are not declared LOST: only {self.heard} of "
            f"{self.members} hosts are heard, less than half, so the fault may be on this side. It ends when they "
            "report again; if they are really dead: gpu-platform hosts declare-lost HOST"
        )


class LeaseAnswer(BaseModel):
    ttl_s: float
    draining: bool = False
    """The host is being drained: what runs is asked for a checkpoint, once."""
    kill: list[AttemptKey] = []
    """Stale attempts: released meanwhile, so their ranks here must die."""
    online_ms: int | None = None
    """When an operator last put the host online, Unix time: resets before that do not count against it any more."""
    renewed: bool = True
    """False: the report brought back a round that is too old, so the answers before this one may have been lost. The
    lease is as it was; a report that brings back this answer's round renews it."""
    round: int = 0
    """To be brought back with the next report."""
    term: int = 0
    """A newer one after each time that the host was declared LOST."""
    members_version: int = 0
    members: list[Member] | None = None
    """None: as known."""


@dataclass(frozen=True)
class DomainLoss:
    """Most hosts of a domain are lost."""

    level: str
    name: str
    hosts: tuple[str, ...]
    """Those that were lost, by name."""
    of: int
    """So many hosts the domain has in all."""

    def __str__(self) -> str:
        return f"{self.level} {self.name} ({len(self.hosts)} of {self.of} hosts)"

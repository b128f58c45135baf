"""Tables of hosts and their GPUs: what they have, how much of it is taken, and what is wrong with them."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKeyConstraint, Index, Text
from sqlmodel import Field

from gpu_platform.domain.states import GpuState
from gpu_platform.store.models.columns import (
    Record,
    big_count_column,
    optional_text_column,
    optional_time_column,
    text_column,
    time_column,
)


class HostRecord(Record, table=True):
    """A host: its lease, what its last report said, its CPUs and memory, and what an operator wants."""

    __table_args__ = (
        CheckConstraint("cpus_used BETWEEN 0 AND cpus", name="cpus"),
        CheckConstraint("ram_mib_used BETWEEN 0 AND ram_mib", name="ram"),
        Index("ix_host_state_lease_until", "state", "lease_until"),
    )

    name: str = Field(primary_key=True, sa_type=Text)
    state: str = text_column()
    cordoned: bool = False
    """An operator wants no new work here: a host that comes back from LOST goes on DRAINING."""
    cordoned_for: str | None = optional_text_column()
    """The maintenance window that cordoned it, and will end that. NULL: an operator, a repair or a quarantine did."""
    inventory_version: int = 1
    """Counts changes of the inventory, for caches."""
    lease_until: datetime = time_column()
    lease_s: float | None = None
    """The lease that the last report asked for, seconds; None: the cluster's."""
    report_seq: int = big_count_column()
    """Number of the last report. An older one that arrives late is refused."""
    round: int = big_count_column()
    """The leader's round that the last report brought back; see ``gpu_platform.domain.hosts.lease_protocol``."""
    voted: bool = False
    """The last report said that its host has promised not to be heard."""
    by_temporal: bool = False
    """The last report came through Temporal: no service had answered the host."""
    members_known: int = big_count_column()
    """The list of members that the host had when it sent its last report."""
    members_sent: int = big_count_column()
    """The list of members that the last answer brought, if it arrived."""
    term: int = big_count_column()
    """Never 0, and another one after the host was declared LOST. What was planned in an earlier term starts nothing.

    At least the Unix time of the registration and of each loss: a host that was removed and comes back, or a database
    that was restored to an older point, does not give the same term twice.
    """
    declared_lost: bool = False
    """An operator said that it is LOST."""
    registered_at: datetime = time_column()
    online_at: datetime | None = optional_time_column()
    """When an operator last put it online."""
    session: str = text_column()
    boot_id: str | None = optional_text_column()
    """The boot of the host that sent the last report."""
    address: str = text_column()
    agent_url: str = text_column()
    leaf: str | None = optional_text_column()
    spine: str | None = optional_text_column()
    reason: str | None = optional_text_column()
    degraded: str = text_column()
    """JSON object uuid -> reason, as last reported."""
    telemetry: str = text_column()
    """JSON list, as last reported. Here and not in ``gpu``: a report then never waits for a reservation."""
    checkpoints: str = Field(default="[]", sa_type=Text)
    """JSON list of the attempts' newest, as last reported; here for the same reason."""
    checkpoint_root: str | None = optional_text_column()
    """Hosts with the same one see each other's checkpoints."""
    facts_hash: str = Field(default="", sa_type=Text)
    """Names what its last full report said that heartbeats do not repeat: ``facts_hash`` in
    ``gpu_platform/domain/hosts/lease.py``. Empty: its next heartbeat is answered by asking for a full report."""
    inventory: str = text_column()
    cpus: int = 0
    """As the host reported, but never less than jobs hold. ``ram_mib`` works in the same way."""
    ram_mib: int = 0
    cpus_used: int = 0
    ram_mib_used: int = 0


_HELD = f"('{GpuState.ALLOCATED}', '{GpuState.IN_USE}')"


class GpuRecord(Record, table=True):
    """How much of a GPU is taken. The checks refuse oversubscription, even if other code has a mistake."""

    __table_args__ = (
        ForeignKeyConstraint(["host"], ["host.name"]),
        CheckConstraint("sm_percent_used BETWEEN 0 AND 100", name="sm_percent"),
        CheckConstraint("memory_used_mib BETWEEN 0 AND memory_mib", name="memory"),
        CheckConstraint("exclusive_holders IN (0, 1)", name="exclusive"),
        CheckConstraint(
            "exclusive_holders = 0 OR (sm_percent_used = 100 AND memory_used_mib = memory_mib AND mig_mask = 0)",
            name="exclusive_takes_all",
        ),
        CheckConstraint(f"state <> '{GpuState.AVAILABLE}' OR exclusive_holders = 0", name="available_is_free"),
        CheckConstraint(f"state <> '{GpuState.AVAILABLE}' OR present", name="available_is_present"),
        CheckConstraint(
            f"state NOT IN {_HELD} OR exclusive_holders + sm_percent_used + mig_mask > 0", name="held_is_taken"
        ),
        CheckConstraint("mig_compute_slices BETWEEN 0 AND 7", name="mig_compute"),
        CheckConstraint("mig_media BETWEEN 0 AND 1", name="mig_media"),
        CheckConstraint(
            "(share_mode IS NOT NULL) = (exclusive_holders = 0 AND sm_percent_used > 0)", name="shared_in_parts"
        ),
        CheckConstraint(
            f"state <> '{GpuState.AVAILABLE}' OR (sm_percent_used = 0 AND memory_used_mib = 0 AND mig_mask = 0)",
            name="available_is_whole",
        ),
        Index("ix_gpu_host_index", "host", "index"),
    )

    uuid: str = Field(primary_key=True, sa_type=Text)
    host: str = text_column()
    index: int
    state: str = text_column()
    present: bool = True
    """Its host reports it."""
    exclusive_holders: int = 0
    sm_percent_used: int = 0
    memory_used_mib: int = 0
    memory_mib: int
    mig_mask: int = 0
    mig_compute_slices: int = 0
    mig_media: int = 0
    share_mode: str | None = optional_text_column()
    """How it is shared. None: nobody has a share of it."""
    tenant: str = Field(default="", sa_type=Text)
    """The namespace that shares it; empty with MIG."""
    fault_count: int = 0
    reset_count: int = 0
    reset_failures: int = 0
    """In a row; a reset that succeeds sets it to 0."""
    healed_at: datetime | None = optional_time_column()
    """When remediation last put it back: repaired and verified."""
    state_source: str | None = optional_text_column()
    """Who took it out of service (``host``, ``inventory``, ``fault``, …): only they put it back by themselves."""
    reason: str | None = optional_text_column()
    cordoned: bool = False
    """An operator drains it: once it is healed, or its host reports it again, it goes on DRAINING."""
    cordon_reason: str | None = optional_text_column()
    facts: str = text_column()


class FaultRecord(Record, table=True):
    """Faults seen, by the identity that removes duplicates."""

    fault_id: str = Field(primary_key=True, sa_type=Text)
    gpu_uuid: str = text_column()
    at: datetime = time_column()


class RepairRecord(Record, table=True):
    """The latest repair of a whole host (a reset of all its GPUs, a reboot), and who may act on it meanwhile."""

    host: str = Field(primary_key=True, sa_type=Text)
    gpu_uuid: str = text_column()
    """For whose sake; its remediation does it."""
    step: str = text_column()
    began_at: datetime = time_column()
    renewed_at: datetime = time_column()
    """Whoever repairs says so again and again: one that is silent for long has died."""
    ended_at: datetime | None = optional_time_column()
    """None: it goes on."""
    cordoned: bool
    """An operator had taken the host out of service before: it stays so."""
    boot_id: str | None = optional_text_column()
    """The boot that it began in."""
    reboots: str = text_column()
    """JSON list: when the host was rebooted lately, Unix seconds."""


class FlappingRecord(Record, table=True):
    """GPUs and hosts that fail again and again; see ``flapping``."""

    kind: str = Field(primary_key=True, sa_type=Text)
    """``gpu`` or ``host``."""
    name: str = Field(primary_key=True, sa_type=Text)
    failures: int
    """In a row, each within the window of the one before."""
    last_at: datetime = time_column()
    until: datetime | None = optional_time_column()
    """Kept out of service until then; None: not."""

"""Builders for tests of the store: ``Cluster(store).host("a", gpus=4).running("job", {"a": [0, 1]})``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.hosts.gpu import GpuInfo, HostInventory
from gpu_platform.domain.hosts.lease import HostReport, LeaseAnswer
from gpu_platform.domain.hosts.share import ShareGrant
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.placement import HostSlice, Placement, TopologyLevel
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store, events, models
from gpu_platform.store.database import writing
from gpu_platform.store.hosts import gpus, hosts, reports
from gpu_platform.store.jobs import job_states, jobs, queue
from gpu_platform.store.jobs.job_states import JobUpdate
from gpu_platform.store.leadership import leases
from gpu_platform.store.reservations import attempts, reserving

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
TTL_S = 10.0
LATER = NOW + timedelta(seconds=TTL_S + 1)
"""A host that reported at ``NOW`` has no lease any more."""


def spec(**fields: Any) -> JobSpec:
    shape = {
        name: fields.pop(name) for name in ("hosts", "gpus_per_host", "memory_mib", "model", "share") if name in fields
    }
    return JobSpec(**{"command": ["true"], **fields}, gpus=ResourceRequest(**{"gpus_per_host": 1, **shape}))


def set_job_state(
    store: Store, job_id: str, state: JobState, *, now: datetime, actor: str, update: JobUpdate | None = None
) -> Job:
    """Move the job along the transition table, without the steps that lead there in the platform."""
    update = update or JobUpdate()

    @writing
    def change(session: Session) -> Job:
        row = job_states.lock_job(session, job_id)
        return jobs.job_of(
            job_states.change_job(session, row, state, now, actor, update.columns(), update.event_data())
        )

    return change(store)


def since(store: Store, seq: int) -> list[str]:
    """The kinds of the events after ``seq``."""
    return [event.kind for event in events.read_events(store, seq)]


def uuid_of(host: str, index: int) -> str:
    return f"GPU-{host}-{index}"


def inventory(host: str, gpus: int, **fields: Any) -> HostInventory:
    info = {"model": "NVIDIA H100 80GB HBM3", "memory_mib": 81559, "compute_capability": "9.0", **fields}
    return HostInventory(
        machine="test", gpus=[GpuInfo(uuid=uuid_of(host, index), index=index, **info) for index in range(gpus)]
    )


def placement(
    gpus: dict[str, list[int]], epoch: int = 0, *, grant: ShareGrant | None = None, cpus: int = 0, ram_mib: int = 0
) -> Placement:
    """``grant``: that part of each GPU."""
    return Placement(
        slices=[
            HostSlice(
                host=host,
                gpu_uuids=[uuid_of(host, index) for index in indices],
                gpu_indices=indices,
                shares=[grant] * len(indices) if grant else [],
                cpus=cpus,
                ram_mib=ram_mib,
            )
            for host, indices in gpus.items()
        ],
        level=TopologyLevel.NVLINK_NUMA,
        bandwidth_gb_s=450.0,
        score=1.0,
        why="for a test",
        epoch=epoch,
    )


def key(job_id: str, attempt: int = 1) -> AttemptKey:
    return AttemptKey(job_id=job_id, attempt=attempt)


def expire_leases(store: Store, now: datetime) -> list[leases.LostHost]:
    """Of the hosts whose last report promised less than ``now``."""
    ended = {name: lease for name, lease in read_leases(store).items() if lease < now}
    return leases.expire_leases(store, ended, now)


def read_leases(store: Store) -> dict[str, datetime]:
    return leases.read_leases(store, TTL_S).stamps


class Cluster:
    def __init__(self, store: Store) -> None:
        self.store = store

    def host(self, name: str, gpus: int = 4, **fields: Any) -> Cluster:
        self.report(name, gpus, **fields)
        return self

    def report(self, name: str, gpus: int = 4, *, now: datetime = NOW, **fields: Any) -> LeaseAnswer:
        report = {
            "session": "s1",
            "address": "127.0.0.1",
            "url": "http://127.0.0.1:1",
            "inventory": inventory(name, gpus),
            **fields,
        }
        return reports.report_host(self.store, HostReport(name=name, **report), ttl_s=TTL_S, now=now)

    def queued(self, job_id: str, *, now: datetime = NOW, attempt: int = 1, **fields: Any) -> Job:
        jobs.submit_job(self.store, job_id, spec(**fields), actor="ada", now=now, idempotency_key=None)
        job = jobs.admit_job(self.store, job_id, now)
        self.enqueue(job_id, attempt, now=now)
        return job

    def enqueue(self, job_id: str, attempt: int = 1, *, now: datetime = NOW, **fields: Any) -> None:
        given: dict[str, Any] = {"task_token": b"token", "excluded_gpus": [], "excluded_hosts": [], **fields}
        queue.enqueue(self.store, job_id, attempt, now=now, **given)

    def reserve(self, job_id: str, gpus: dict[str, list[int]], *, attempt: int = 1, epoch: int = 0) -> AttemptKey:
        reserving.reserve_gang(self.store, key(job_id, attempt), placement(gpus, epoch), now=NOW)
        return key(job_id, attempt)

    def running(self, job_id: str, gpus: dict[str, list[int]]) -> AttemptKey:
        self.queued(job_id)
        reserved = self.reserve(job_id, gpus)
        attempts.mark_running(self.store, reserved, NOW)
        return reserved

    def uuid(self, host: str, index: int) -> str:
        return uuid_of(host, index)

    def states(self, host: str) -> list[str]:
        return [gpu.state.value for gpu in gpus.list_gpus(self.store, host=host)]

    def host_state(self, name: str) -> str:
        return hosts.get_host(self.store, name, NOW).state.value


def check_invariants(store: Store) -> None:
    """What must hold between any two transactions."""
    with store.read() as session:
        gpu_rows = {row.uuid: row for row in session.execute(select(models.gpu))}
        host_rows = {row.name: row for row in session.execute(select(models.host))}
        namespaces = {row.id: row.namespace for row in session.execute(select(models.job.c.id, models.job.c.namespace))}
        held = session.execute(select(models.allocation).where(models.allocation.c.released_at.is_(None))).all()
        open_claims = {
            (row.job_id, row.attempt)
            for row in session.execute(select(models.reservation).where(models.reservation.c.released_at.is_(None)))
        }
        placed = {
            row.id: (row.state, row.attempt, Placement.model_validate_json(row.placement))
            for row in session.execute(select(models.job).where(models.job.c.placement.is_not(None)))
        }
    of_gpu: dict[str, list[Any]] = {}
    for row in held:
        if row.gpu_uuid is not None:
            of_gpu.setdefault(row.gpu_uuid, []).append(row)
    for uuid, row in gpu_rows.items():
        holders = of_gpu.get(uuid, [])
        taken, whole = len(holders) > 0, [holder for holder in holders if holder.exclusive]
        assert not whole or len(holders) == 1, f"{uuid} is held twice"
        assert row.exclusive_holders == len(whole), f"{uuid} does not count its holders"
        assert row.sm_percent_used == sum(holder.sm_percent for holder in holders) <= 100
        parts_mib = sum(holder.memory_mib for holder in holders)
        assert row.memory_used_mib == (row.memory_mib if whole else parts_mib) <= row.memory_mib
        assert row.share_mode == (holders[0].share_mode if taken else None)
        assert len({holder.share_mode for holder in holders}) <= 1, f"{uuid} is shared in two modes"
        slices = [s for holder in holders for s in range(8) if holder.mig_mask >> s & 1]
        assert len(set(slices)) == len(slices), f"MIG instances overlap on {uuid}"
        assert row.mig_mask == sum(1 << s for s in slices)
        profiles = [holder.mig_profile for holder in holders if holder.mig_profile]
        assert row.mig_compute_slices == sum(int(profile[0]) for profile in profiles) <= 7
        assert row.mig_media == sum(profile.endswith("+me") for profile in profiles) <= 1
        if row.share_mode in ("mps", "time_slice"):
            assert {namespaces[holder.job_id] for holder in holders} == {row.tenant}, f"{uuid} is shared by two tenants"
        assert row.state not in ("ALLOCATED", "IN_USE") or taken, f"{uuid} is {row.state} by nobody"
        assert row.state != "AVAILABLE" or not taken, f"{uuid} is held and AVAILABLE"
    for name, row in host_rows.items():
        there = [holder for holder in held if holder.host == name]
        assert row.cpus_used == sum(holder.cpus for holder in there) <= row.cpus
        assert row.ram_mib_used == sum(holder.ram_mib for holder in there) <= row.ram_mib
    gangs: dict[tuple[str, int], set[str]] = {}
    for row in held:
        gangs.setdefault((row.job_id, row.attempt), set()).add(row.gpu_uuid or f"room on {row.host}")
    assert set(gangs) == open_claims, "a claim without GPUs, or GPUs without a claim"
    for (job_id, attempt), uuids in gangs.items():
        _, at_attempt, plan = placed[job_id]
        whole = {*plan.gpu_uuids, *(f"room on {part.host}" for part in plan.slices if not part.gpu_uuids)}
        assert at_attempt > attempt or uuids == whole, f"{job_id}#{attempt} holds a part of its gang"

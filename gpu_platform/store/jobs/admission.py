"""Checks whether a job may enter the queue: could the registered hosts ever hold it, and does its quota allow it?"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gpu_platform.domain.errors import ImpossibleRequest, OverQuota
from gpu_platform.domain.hosts.gpu import GpuInfo, HostInventory
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.placing.capacity import largest_gang, shares_of_one_process
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.states import ArrayState, JobState
from gpu_platform.store.database import Store
from gpu_platform.store.leadership.leader import current_quotas
from gpu_platform.store.models import gpu, host, job, job_array

_VERSION = select(func.count(), func.coalesce(func.sum(host.c.inventory_version), 0))
_MEMO = "possible requests"
_LIVE_ARRAYS = [state.value for state in ArrayState if not state.is_terminal]


Refusal = Callable[[Session, JobSpec], str | None]
"""Says why the scheduler could never place a job; None if it could."""


def check_possible(store: Store, session: Session, spec: JobSpec, refusal: Refusal | None = None) -> None:
    """Raise :class:`ImpossibleRequest`, saying what there is, if even the idle cluster could not hold the gang.

    Everything that ever registered counts, drained and lost hosts and GPUs that vanished too: they may come back.
    ``refusal`` knows also what depends on how GPUs and hosts are connected. Answers are remembered until an inventory
    changes.
    """
    version = hosts_version(session)
    known: tuple[tuple[int, ...], set[str]] | None = store.memo.get(_MEMO)
    possible = known[1] if known is not None and known[0] == version else set()
    request = PlacementRequest.from_spec(spec, "", 1, 0.0)
    found: set[str] = set()
    for group in request.rank_groups():
        wanted = f"{group.resources.model_dump_json()} {spec.rank_per}"
        if wanted in possible:
            continue
        inventories = list(ever_registered(session).values())
        capacity = largest_gang(inventories, group.resources)
        if not capacity.fits:
            raise ImpossibleRequest(f"group {group.group} {capacity.message}" if group.group else capacity.message)
        if too_many := shares_of_one_process(group.resources, spec.rank_per, mps=any(one.mps for one in inventories)):
            raise ImpossibleRequest(too_many)
        found.add(wanted)
    if refusal is not None:
        whole = f"{[(group.group, group.resources.model_dump_json()) for group in request.rank_groups()]}"
        if whole not in possible:
            if why := refusal(session, spec):
                raise ImpossibleRequest(why)
            found.add(whole)
    if found and len(possible) < 10_000:
        store.memo[_MEMO] = (version, possible | found)


def check_quotas(session: Session, spec: JobSpec, jobs: int = 1) -> None:
    """Raise :class:`OverQuota` if the namespace never allows such a job, or may not have ``jobs`` more waiting.

    Elements of arrays that have not entered the queue yet count as waiting.
    """
    quotas, waiting = current_quotas(session), 0
    if any(node.name == spec.namespace and node.max_queue_size is not None for node in quotas.namespaces):
        in_line = (job.c.state == JobState.QUEUED.value) & (job.c.namespace == spec.namespace)
        waiting = session.scalar(select(func.count()).select_from(job).where(in_line)) or 0
        to_come = job_array.c.state.in_(_LIVE_ARRAYS) & (job_array.c.namespace == spec.namespace)
        waiting += int(session.scalar(select(func.sum(job_array.c.size - job_array.c.position)).where(to_come)) or 0)
    gpus = PlacementRequest.from_spec(spec, "", 1, 0.0).gpu_count
    if refusal := quotas.refusal(spec.namespace, spec.time_limit_s, waiting, gpus, jobs):
        raise OverQuota(refusal, namespace=spec.namespace)


def hosts_version(session: Session) -> tuple[int, ...]:
    """A value that changes whenever a host comes, goes or reports another inventory."""
    return tuple(session.execute(_VERSION).one())


def ever_registered(session: Session) -> dict[str, HostInventory]:
    """Host -> its inventory, with the GPUs that vanished."""
    vanished = vanished_gpus(session)
    inventories: dict[str, HostInventory] = {}
    for row in session.execute(select(host.c.name, host.c.inventory).order_by(host.c.name)):
        inventory = parse_inventory(row.inventory)
        if row.name in vanished:
            inventory = inventory.model_copy(update={"gpus": inventory.gpus + vanished[row.name]})
        inventories[row.name] = inventory
    return inventories


def vanished_gpus(session: Session) -> dict[str, list[GpuInfo]]:
    """Host -> the GPUs that it reported once and does not report any more."""
    vanished: dict[str, list[GpuInfo]] = {}
    for row in session.execute(select(gpu.c.host, gpu.c.facts).where(gpu.c.present.is_(False)).order_by(gpu.c.uuid)):
        vanished.setdefault(row.host, []).append(GpuInfo.model_validate_json(row.facts))
    return vanished


@lru_cache(maxsize=16_384)
def parse_inventory(text: str) -> HostInventory:
    """The inventory in its JSON text. Each text is parsed once: hosts report the same one again and again."""
    return HostInventory.model_validate_json(text)

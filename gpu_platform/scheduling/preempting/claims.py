"""GPUs that running jobs were stopped for, kept for one waiting job until it starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.backfilling.backfill import PlannedReservation, resources_of
from gpu_platform.scheduling.cluster.snapshot import Snapshot
from gpu_platform.scheduling.queueing.job_queue import JobQueue

CLAIM_S = 600.0
"""How long a claim lasts. Moved jobs need their grace to write a checkpoint."""
RETURN_S = 30.0
"""A job that was stopped, or that lost its hosts, is in the queue again within this time, or has ended."""


@dataclass(frozen=True)
class _Claim:
    reservation: PlannedReservation
    until: float
    seen: float
    """When the job last waited, or was being stopped."""
    facts_version: int
    """After a later version, GPUs may be at other positions, and the claim is not valid."""


class Claims:
    """The claims by job, in the order in which they were made."""

    def __init__(self, snapshot: Snapshot, queue: JobQueue) -> None:
        self._snapshot, self._queue = snapshot, queue
        self._claims: dict[str, _Claim] = {}

    def __bool__(self) -> bool:
        return bool(self._claims)

    def __iter__(self) -> Iterator[PlannedReservation]:
        return (claim.reservation for claim in self._claims.values())

    def make(self, job_id: str, placement: Placement, now: float) -> None:
        """Claim the GPUs of the placement for the job. An earlier claim of the job ends."""
        hosts, own = resources_of(placement, self._snapshot)
        reservation = PlannedReservation(job_id, -math.inf, math.inf, hosts, own.gpus, host_resources=own.takes_room)
        self._claims[job_id] = _Claim(reservation, now + CLAIM_S, now, self._snapshot.facts_version)

    def drop(self, job_id: str) -> None:
        """End the job's claim, if it has one."""
        self._claims.pop(job_id, None)

    def renew(
        self, now: float, stopping: Collection[str], is_allowed: Callable[[PlacementRequest], bool]
    ) -> list[PlannedReservation]:
        """End the claims that nobody can use, and return the others.

        ``stopping``: jobs that were ordered to stop. ``is_allowed`` tells whether the quotas allow a waiting job.
        """
        facts = self._snapshot.facts_version
        for job_id, claim in list(self._claims.items()):
            request = self._queue.get(job_id)
            known = replace(claim, seen=now) if request is not None or job_id in stopping else claim
            is_recent = now < claim.until and now - known.seen < RETURN_S and claim.facts_version == facts
            # What stops still counts for the quota.
            is_usable = request is None or (
                not self._is_excluded(claim.reservation, request) and (stopping or is_allowed(request))
            )
            if is_recent and is_usable and self._is_in_service(claim.reservation):
                self._claims[job_id] = known
            else:
                del self._claims[job_id]
        return list(self)

    def _is_in_service(self, claim: PlannedReservation) -> bool:
        snapshot = self._snapshot
        return bool(snapshot.ready[claim.hosts].all() and not (claim.gpus & ~snapshot.working[claim.hosts]).any())

    def _is_excluded(self, claim: PlannedReservation, request: PlacementRequest) -> bool:
        """Tell whether the job must not use what is claimed. What a running job excludes is not known, so a claim for a
        job that is moved may be of no use once the job waits again.
        """
        if not request.has_exclusions:
            return False
        snapshot, taken = self._snapshot, zip(claim.hosts.tolist(), claim.gpus.tolist(), strict=True)
        if any(snapshot.names[host_index] in request.excluded_hosts for host_index in claim.hosts.tolist()):
            return True
        uuids = (uuid for host_index, gpus in taken for uuid, _ in snapshot.gpus_of(host_index, gpus))
        return any(uuid in request.excluded_gpus for uuid in uuids)

"""Trials: would a gang fit if some of the running jobs had ended? One class for each kind of request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.scheduling.cluster.running_jobs import AttemptId
from gpu_platform.scheduling.cluster.snapshot import ChangeKind, Snapshot
from gpu_platform.scheduling.placing.candidates import host_query
from gpu_platform.scheduling.placing.domains import domains_of, together
from gpu_platform.scheduling.placing.framework import Framework
from gpu_platform.scheduling.preempting.steps import Steps
from gpu_platform.scheduling.preempting.trial_cluster import TrialCluster
from gpu_platform.topology.subsets import best_subset_for

EXACT_UP_TO = 12
"""With at most this many possible victims, every set of them is tried (4,096 sets)."""
GANG_EXACT_UP_TO = 6
"""The same, if the check of each set must place a whole gang."""

JOBS_AT_ONCE, HOSTS_AT_ONCE = 50, 1_000
STEPS_TO_PLACE, STEPS_PER_CHANGE, STEPS_FOR_QUOTAS = 30, 10, 10
"""What trials cost, in the unit of ``steps``. Going through so many jobs or hosts of an array costs one; then come
looking at so many hosts for a group of ranks, each change of a host while it is placed, and looking at the quotas.
"""


def victim_trial(
    request: PlacementRequest,
    snapshot: Snapshot,
    framework: Framework,
    being_preempted: Sequence[RunningRow],
    trial_cluster: TrialCluster | None,
    allowed: Callable[[Iterable[RunningRow]], bool] | None,
) -> VictimTrial:
    """Return the trial for a request. ``allowed``: do the quotas allow it once these jobs have ended? None: no
    quotas.
    """
    trial: VictimTrial
    if request.is_plain and not request.needs_partial_resources and not snapshot.shared.partly.any():
        trial = SliceVictimTrial(request, snapshot, framework, being_preempted)
    else:
        assert trial_cluster is not None, "only plain gangs of whole GPUs can do without"
        trial = GangVictimTrial(request, trial_cluster, being_preempted)
    return trial if allowed is None else QuotaVictimTrial(trial, snapshot, being_preempted, allowed)


class VictimTrial(Protocol):
    """Tells whether a gang would fit if some of the running jobs had ended."""

    exact_up_to: int
    one_host: bool

    def of(self, job: RunningRow) -> dict[int, int]:
        """Return host index -> usable GPUs that the job has there."""
        ...

    def helps(self, job: RunningRow) -> bool:
        """Tell whether stopping the job could help at all."""
        ...

    def fits(self, without: Collection[RunningRow]) -> Steps[bool]:
        """Tell whether the gang fits once the jobs ``without`` have ended."""
        ...

    def domains(self) -> NDArray[np.intp]:
        """Return, for every host, the number of the domain that the gang must not leave."""
        ...


class SliceVictimTrial:
    """The trial for equal slices of whole GPUs. It looks at each host alone and does not change the snapshot."""

    exact_up_to = EXACT_UP_TO

    def __init__(
        self, request: PlacementRequest, snapshot: Snapshot, framework: Framework, being_preempted: Iterable[RunningRow]
    ) -> None:
        self.resources, self._snapshot = request.resources, snapshot
        self.one_host = request.resources.hosts == 1
        host_indices = np.arange(len(snapshot))
        query = host_query(snapshot, request, is_now=True)
        usable = framework.usable(query, snapshot, host_indices, ChangeKind.USE)
        self._usable = usable.tolist()
        self._free = (usable & snapshot.available()).tolist()
        self._of: dict[AttemptId, dict[int, int]] = {}
        for job in being_preempted:
            for host_index, gpus in self.of(job).items():
                self._free[host_index] |= gpus
        self._ready = np.array([self.offers(host_index, 0) for host_index in host_indices.tolist()], bool)
        """The answer for the last set of jobs."""
        self._ended: dict[AttemptId, RunningRow] = {}
        """These jobs."""
        self._freed: dict[int, dict[AttemptId, int]] = {}
        """Host index -> what each of them would free there."""

    @property
    def free(self) -> Sequence[int]:
        """For each host, the usable GPUs that nobody has, or that jobs have which were ordered to stop."""
        return self._free

    def of(self, job: RunningRow) -> dict[int, int]:
        """Return host index -> usable GPUs that the job has there. Remembered: many sets of the same jobs are tried."""
        key = (job.job_id, job.attempt)
        found = self._of.get(key)
        if found is None:
            found = self._of[key] = {}
            for uuid in job.gpu_uuids:
                place = self._snapshot.locate(uuid)
                if place is not None and self._usable[place[0]] >> place[1] & 1:
                    found[place[0]] = found.get(place[0], 0) | 1 << place[1]
        return found

    def helps(self, job: RunningRow) -> bool:
        """Tell whether the job has any usable GPU."""
        return bool(self.of(job))

    def fits(self, without: Collection[RunningRow]) -> Steps[bool]:
        """Tell whether enough hosts of one domain could take a slice."""
        changed = self._end(without)
        resources = self.resources
        fits = int(np.count_nonzero(together(resources, self._snapshot, self._ready))) >= resources.hosts
        yield 1 + len(without) // JOBS_AT_ONCE + len(self._ready) // HOSTS_AT_ONCE + changed // 3
        return fits

    def _end(self, without: Iterable[RunningRow]) -> int:
        """Let these jobs have ended. Return at how many hosts it looked.

        A search asks for many sets that differ by one job. So only hosts of jobs that were not in both the last set
        and this one are looked at.
        """
        ended = {(job.job_id, job.attempt): job for job in without}
        changed = ended.keys() ^ self._ended.keys()
        touched: set[int] = set()
        for key in changed:
            for host_index, gpus in self.of(ended.get(key) or self._ended[key]).items():
                there = self._freed.setdefault(host_index, {})
                if key in ended:
                    there[key] = gpus
                else:
                    del there[key]
                touched.add(host_index)
        for host_index in touched:
            freed = reduce(or_, self._freed[host_index].values(), 0)
            self._ready[host_index] = self.offers(host_index, freed)
        self._ended = ended
        return len(touched)

    def domains(self) -> NDArray[np.intp]:
        """Return, for every host, the number of the domain that the gang must not leave."""
        return domains_of(self.resources, self._snapshot, np.arange(len(self._snapshot)))

    def offers(self, host_index: int, freed: int) -> bool:
        """Tell whether the host could take a slice if the GPUs ``freed`` were free as well."""
        resources, machine = self.resources, self._snapshot.machines[self._snapshot.machine[host_index]]
        free = self._free[host_index] | freed
        if free.bit_count() < resources.gpus_per_host:
            return False
        return best_subset_for(resources, machine, free) is not None


class GangVictimTrial:
    """The trial for rank groups, totals, shares, CPUs and memory. It tries to place the whole gang on a copy of the
    cluster in which the jobs have ended.
    """

    exact_up_to = GANG_EXACT_UP_TO
    one_host = False

    def __init__(
        self, request: PlacementRequest, trial_cluster: TrialCluster, being_preempted: Iterable[RunningRow]
    ) -> None:
        trial_cluster.renew()
        self._row, self._trial_cluster, self._being_preempted = request, trial_cluster, list(being_preempted)
        usable = trial_cluster.placer.usable_hosts(request)
        self._usable_hosts = np.zeros(len(trial_cluster.snapshot), bool) if usable is None else usable
        self._of: dict[AttemptId, dict[int, int]] = {}
        self._enough: set[AttemptId] | None = None
        """If all of these have ended, the place that was found last is free. None: none was found yet."""
        self._cost = STEPS_TO_PLACE * len(request.requests) * (1 + len(trial_cluster.snapshot) // HOSTS_AT_ONCE)

    def of(self, job: RunningRow) -> dict[int, int]:
        """Return host index -> GPUs of the job there. Hosts where it has only CPUs and memory count, too."""
        key = (job.job_id, job.attempt)
        if key not in self._of:
            there = gpus_by_host(job, self._trial_cluster.snapshot)
            self._of[key] = {host_index: gpus for host_index, gpus in there.items() if self._usable_hosts[host_index]}
        return self._of[key]

    def helps(self, job: RunningRow) -> bool:
        """Tell whether the job has anything on a host that the gang could use."""
        return bool(self.of(job))

    def fits(self, without: Collection[RunningRow]) -> Steps[bool]:
        """Tell whether the whole gang has a place once the jobs have ended."""
        ended = {(job.job_id, job.attempt): job for job in (*self._being_preempted, *without)}
        yield len(ended) // JOBS_AT_ONCE
        if self._enough is not None and self._enough <= ended.keys():
            return True
        yield from self._trial_cluster.end(ended)
        version = self._trial_cluster.snapshot.version
        placement = self._trial_cluster.place(self._row)
        yield self._cost + STEPS_PER_CHANGE * (self._trial_cluster.snapshot.version - version)
        if placement is not None:
            self._enough = self._trial_cluster.ended_on([taken.host for taken in placement.slices])
        return placement is not None

    def domains(self) -> NDArray[np.intp]:
        """Return one domain for all hosts: the placer keeps the gang together."""
        return np.zeros(len(self._trial_cluster.snapshot), np.intp)


class QuotaVictimTrial:
    """Adds quotas to another trial: they must also allow the gang. So ending a job may help wherever it runs."""

    one_host = False

    def __init__(
        self,
        trial: VictimTrial,
        snapshot: Snapshot,
        being_preempted: Sequence[RunningRow],
        allowed: Callable[[Iterable[RunningRow]], bool],
    ) -> None:
        self._trial, self._snapshot, self._being_preempted, self._allowed = trial, snapshot, being_preempted, allowed
        self.exact_up_to = trial.exact_up_to

    def of(self, job: RunningRow) -> dict[int, int]:
        """Return host index -> GPUs of the job there."""
        return gpus_by_host(job, self._snapshot)

    def helps(self, job: RunningRow) -> bool:
        """Tell whether the job has anything on a known host."""
        return bool(self.of(job))

    def fits(self, without: Collection[RunningRow]) -> Steps[bool]:
        """Tell whether the quotas allow the gang, and whether it fits."""
        allowed = self._allowed([*self._being_preempted, *without])
        yield STEPS_FOR_QUOTAS + 2 * len(without) // JOBS_AT_ONCE
        return allowed and (yield from self._trial.fits(without))

    def domains(self) -> NDArray[np.intp]:
        """Return one domain for all hosts."""
        return np.zeros(len(self._snapshot), np.intp)


def gpus_by_host(job: RunningRow, snapshot: Snapshot) -> dict[int, int]:
    """Return host index -> GPUs of the job there. Hosts where it has only CPUs and memory count, too."""
    found = dict.fromkeys(snapshot.host_indices_of(job), 0)
    for uuid in job.gpu_uuids:
        place = snapshot.locate(uuid)
        if place is not None:
            found[place[0]] |= 1 << place[1]
    return found

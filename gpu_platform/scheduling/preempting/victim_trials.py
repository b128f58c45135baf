"""Trials: would a gang fit if some of the running jobs had ended? One class for each kind of request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.scheduling.cluster.running_jobs import AttemptId
from gpu_platform.scheduling.cluster.snapshot import ChangeKind, SavedHostState, Snapshot, SnapshotCopy
from gpu_platform.scheduling.cluster.statement import Statement
from gpu_platform.scheduling.placing.candidates import CandidateIndex, host_query
from gpu_platform.scheduling.placing.domains import domains_of, together
from gpu_platform.scheduling.placing.framework import Framework
from gpu_platform.scheduling.placing.gangs import GangPlacer
from gpu_platform.scheduling.preempting.steps import Steps
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
HOSTS_IN_A_STEP = 64
STEPS_PER_HOST = 2
"""What it costs to end the jobs of a host, in the unit of ``steps``."""


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


class TrialCluster:
    """The cluster as it was at the last :meth:`renew`. Only one search can use it at a time.

    It is a copy, because a search goes on over several decisions. On the snapshot itself every trial would also count
    as a change, and rounds would look again at all hosts on which jobs were tried to end.
    """

    def __init__(self, snapshot: Snapshot, framework: Framework) -> None:
        self._framework = framework
        self.snapshot = SnapshotCopy(snapshot)
        self.placer = self._new_placer()
        self._ended: dict[AttemptId, RunningRow] = {}
        self._there: dict[int, dict[AttemptId, RunningRow]] = {}
        """Host index -> what each of these jobs has there."""
        self._before: dict[int, SavedHostState] = {}
        """Host index -> the host before any job of it counted as ended."""

    def renew(self) -> None:
        """Copy the cluster as it is now. No job has ended."""
        self.snapshot.renew()
        self.placer = self._new_placer()
        self._ended, self._there, self._before = {}, {}, {}

    def end(self, jobs: Mapping[AttemptId, RunningRow]) -> Steps[None]:
        """Let exactly these jobs have ended. Only the hosts of jobs that were not in both the last set and this one are
        changed.
        """
        changed = dict[int, None]()
        for key in [key for key in self._ended if key not in jobs]:
            for host_index, _ in self._parts(self._ended.pop(key)):
                del self._there[host_index][key]
                changed[host_index] = None
        for key in [key for key in jobs if key not in self._ended]:
            self._ended[key] = jobs[key]
            for host_index, part in self._parts(jobs[key]):
                self._there.setdefault(host_index, {})[key] = part
                changed[host_index] = None
        for number, host_index in enumerate(changed):
            self._change(host_index)
            if number % HOSTS_IN_A_STEP == HOSTS_IN_A_STEP - 1:
                yield HOSTS_IN_A_STEP * STEPS_PER_HOST

    def place(self, request: PlacementRequest) -> Placement | None:
        """Return a place for the gang, or None. Nothing is held afterwards."""
        with Statement(self.snapshot) as attempt:
            return self.placer.place_in(request, attempt)

    def ended_on(self, hosts: Collection[str]) -> set[AttemptId]:
        """Return which of the ended jobs had anything on these hosts."""
        host_indices = (self.snapshot.host_index(host) for host in hosts)
        return {key for host_index in host_indices if host_index is not None for key in self._there.get(host_index, ())}

    def _change(self, host_index: int) -> None:
        if host_index in self._before:
            self.snapshot.restore_host_state(host_index, self._before[host_index])
        else:
            self._before[host_index] = self.snapshot.save_host_state(host_index)
        for part in self._there[host_index].values():
            self.snapshot.simulate_release(part)

    def _parts(self, job: RunningRow) -> Iterator[tuple[int, RunningRow]]:
        """Yield for each host what the job has there."""
        hosts = sorted(self.snapshot.host_indices_of(job))
        if len(hosts) == 1:
            yield hosts[0], job
            return
        places = [self.snapshot.locate(uuid) for uuid in job.gpu_uuids]
        for host_index in hosts:
            here = [number for number, place in enumerate(places) if place is not None and place[0] == host_index]
            yield (
                host_index,
                replace(
                    job,
                    gpu_uuids=tuple(job.gpu_uuids[number] for number in here),
                    shares=tuple(job.shares[number] for number in here) if job.shares else (),
                    host_use=tuple(use for use in job.host_use if self.snapshot.host_index(use.host) == host_index),
                ),
            )

    def _new_placer(self) -> GangPlacer:
        """Return a placer that remembers nothing: what one search asks for, the next one seldom does."""
        return GangPlacer(self._framework, self.snapshot, CandidateIndex(self._framework, self.snapshot), epoch=0)

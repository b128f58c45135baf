"""Trials: would a gang fit if some of the running jobs had ended? One class for each kind of request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.scheduling.cluster.running_jobs import AttemptId
from gpu_platform.scheduling.cluster.snapshot import ChangeKind, Snapshot
from gpu_platform.scheduling.cluster.statement import Statement
from gpu_platform.scheduling.placing.candidates import host_query
from gpu_platform.scheduling.placing.domains import domains_of, together
from gpu_platform.scheduling.placing.framework import Framework
from gpu_platform.scheduling.placing.gangs import GangPlacer
from gpu_platform.topology.subsets import best_subset_for

EXACT_UP_TO = 12
"""With at most this many possible victims, every set of them is tried (4,096 sets)."""
GANG_EXACT_UP_TO = 6
"""The same, if the check of each set must place a whole gang."""


def victim_trial(
    row: PlacementRequest,
    snapshot: Snapshot,
    framework: Framework,
    being_preempted: Sequence[RunningRow],
    placer: GangPlacer | None,
    allowed: Callable[[Iterable[RunningRow]], bool] | None,
) -> VictimTrial:
    """Return the trial for a request. ``allowed``: do the quotas allow it once these jobs have ended? None: no
    quotas.
    """
    trial: VictimTrial
    if row.is_plain and not row.needs_partial_resources and not snapshot.shared.partly.any():
        trial = SliceVictimTrial(row, snapshot, framework, being_preempted)
    else:
        assert placer is not None, "only plain gangs of whole GPUs can do without"
        trial = GangVictimTrial(row, snapshot, placer, being_preempted)
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

    def fits(self, without: Iterable[RunningRow]) -> bool:
        """Tell whether the gang fits once the jobs ``without`` have ended."""
        ...

    def domains(self) -> NDArray[np.intp]:
        """Return, for every host, the number of the domain that the gang must not leave."""
        ...


class SliceVictimTrial:
    """The trial for equal slices of whole GPUs. It looks at each host alone and does not change the snapshot."""

    exact_up_to = EXACT_UP_TO

    def __init__(
        self, row: PlacementRequest, snapshot: Snapshot, framework: Framework, being_preempted: Iterable[RunningRow]
    ) -> None:
        self.request, self._snapshot = row.resources, snapshot
        self.one_host = row.resources.hosts == 1
        host_indices = np.arange(len(snapshot))
        query = host_query(snapshot, row)
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

    def ready(self, without: Iterable[RunningRow]) -> NDArray[np.bool_]:
        """Return the hosts that could take a slice once the jobs ``without`` have ended. Callers must not change it.

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
        return self._ready

    def fits(self, without: Iterable[RunningRow]) -> bool:
        """Tell whether enough hosts of one domain could take a slice."""
        request = self.request
        return int(np.count_nonzero(together(request, self._snapshot, self.ready(without)))) >= request.hosts

    def domains(self) -> NDArray[np.intp]:
        """Return, for every host, the number of the domain that the gang must not leave."""
        return domains_of(self.request, self._snapshot, np.arange(len(self._snapshot)))

    def offers(self, host_index: int, freed: int) -> bool:
        """Tell whether the host could take a slice if the GPUs ``freed`` were free as well."""
        request, machine = self.request, self._snapshot.machines[self._snapshot.machine[host_index]]
        free = self._free[host_index] | freed
        if free.bit_count() < request.gpus_per_host:
            return False
        return best_subset_for(request, machine, free) is not None


class GangVictimTrial:
    """The trial for rank groups, totals and shares.

    It tries to place the whole gang in a statement in which the jobs have ended.
    """

    exact_up_to = GANG_EXACT_UP_TO
    one_host = False

    def __init__(
        self, row: PlacementRequest, snapshot: Snapshot, placer: GangPlacer, being_preempted: Iterable[RunningRow]
    ) -> None:
        self._row, self._snapshot, self._placer, self._being_preempted = row, snapshot, placer, list(being_preempted)
        usable = placer.usable_hosts(row, lambda candidates: candidates.after_use)
        self._usable_hosts = np.zeros(len(snapshot), bool) if usable is None else usable

    def of(self, job: RunningRow) -> dict[int, int]:
        """Return host index -> GPUs of the job there. Hosts where it has only CPUs and memory count, too."""
        found = {host_index: 0 for host_index in self._snapshot.host_indices_of(job) if self._usable_hosts[host_index]}
        for uuid in job.gpu_uuids:
            place = self._snapshot.locate(uuid)
            if place is not None and place[0] in found:
                found[place[0]] |= 1 << place[1]
        return found

    def helps(self, job: RunningRow) -> bool:
        """Tell whether the job has anything on a host that the gang could use."""
        return bool(self.of(job))

    def fits(self, without: Iterable[RunningRow]) -> bool:
        """Tell whether the whole gang has a place once the jobs have ended."""
        with Statement(self._snapshot) as attempt:
            for job in (*self._being_preempted, *without):
                attempt.end(job)
            return self._placer.place_in(self._row, attempt) is not None

    def domains(self) -> NDArray[np.intp]:
        """Return one domain for all hosts: the placer keeps the gang together."""
        return np.zeros(len(self._snapshot), np.intp)


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
        found = dict.fromkeys(self._snapshot.host_indices_of(job), 0)
        for uuid in job.gpu_uuids:
            place = self._snapshot.locate(uuid)
            if place is not None:
                found[place[0]] |= 1 << place[1]
        return found

    def helps(self, job: RunningRow) -> bool:
        """Tell whether the job has anything on a known host."""
        return bool(self.of(job))

    def fits(self, without: Iterable[RunningRow]) -> bool:
        """Tell whether the quotas allow the gang, and whether it fits."""
        without = list(without)
        return self._allowed([*self._being_preempted, *without]) and self._trial.fits(without)

    def domains(self) -> NDArray[np.intp]:
        """Return one domain for all hosts."""
        return np.zeros(len(self._snapshot), np.intp)

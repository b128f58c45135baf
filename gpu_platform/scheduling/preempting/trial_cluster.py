"""A copy of the cluster on which running jobs count as ended, so that gangs can be placed on it to try."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.scheduling.cluster.running_jobs import AttemptId
from gpu_platform.scheduling.cluster.snapshot import SavedHostState, Snapshot
from gpu_platform.scheduling.cluster.snapshot_copy import SnapshotCopy
from gpu_platform.scheduling.cluster.statement import Statement
from gpu_platform.scheduling.placing.candidates import CandidateIndex
from gpu_platform.scheduling.placing.framework import Framework
from gpu_platform.scheduling.placing.gangs import GangPlacer
from gpu_platform.scheduling.preempting.steps import Steps

HOSTS_IN_A_STEP = 64
STEPS_PER_HOST = 2
"""What it costs to end the jobs of a host, in the unit of ``steps``."""


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

"""What is known of run times: learned from the jobs that ended, told to the scheduler core and to people.

The leader keeps one from its start, and learns from each event of a job's end. The service keeps another one, and looks
for new ends when somebody asks.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TypeVar

from gpu_platform.domain.jobs.run_time import RunTime
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.placing.cluster_state import ClusterState
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.prediction.run_time_predictor import JobTraits, RunTimePredictor
from gpu_platform.store import Store
from gpu_platform.store.jobs import run_times

MAX_TOLD = MAX_LEARNED = 20_000
"""So many predictions are kept to be compared with what came, and so many ids of runs, to learn none of them twice."""
LOOK_AGAIN_S = 30.0
FIRST_LOOK, NEXT_LOOK = 2000, 300
"""From how many of the newest runs is learned at first, and later."""
_MEMO = "run times"
_Row = TypeVar("_Row", PlacementRequest, RunningRow)
_making = threading.Lock()


class LearnedRunTimes:
    """Predicts run times. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._predictor = RunTimePredictor()
        self._told: OrderedDict[str, RunTime] = OrderedDict()
        self._learned: OrderedDict[str, None] = OrderedDict()
        self._looked_at = -LOOK_AGAIN_S
        self._lock = threading.Lock()

    def learn(self, job_ids: Collection[str] | None = None) -> None:
        """Learn from these jobs, if they ended by themselves; by default from the newest ones."""
        with self._lock:
            limit = NEXT_LOOK if self._learned and job_ids is None else FIRST_LOOK
            for run in run_times.ended_runs(self._store, job_ids, limit=limit, known=self._learned):
                self._learned[run.job_id] = None
                if len(self._learned) > MAX_LEARNED:
                    self._learned.popitem(last=False)
                self._predictor.learn(traits_of(run.spec), run.run_s, self._told.pop(run.job_id, None))

    def look_again(self) -> None:
        """Learn from jobs that ended since the last look, unless that was a moment ago."""
        if time.monotonic() - self._looked_at >= LOOK_AGAIN_S:
            self._looked_at = time.monotonic()
            self.learn()

    def expect(self, traits: JobTraits, job_id: str | None = None) -> RunTime | None:
        """Return how long such a job will run. None: nothing is known. ``job_id``: compare it with what comes."""
        with self._lock:
            told = self._predictor.predict(traits)
            if told is not None and job_id is not None:
                self._told[job_id] = told
                if len(self._told) > MAX_TOLD:
                    self._told.popitem(last=False)
            return told

    def expecting(self, rows: Sequence[_Row]) -> list[_Row]:
        """Return the rows with expected run times."""
        programs = run_times.programs(self._store, {row.job_id for row in rows}) if rows else {}
        result = []
        for row in rows:
            program = programs.get(row.job_id)
            told = None if program is None else self.expect(_traits_of_row(row, program), row.job_id)
            result.append(replace(row, run_time=told))
        return result

    def in_state(self, state: ClusterState) -> ClusterState:
        """Return the state with expected run times of running and waiting jobs."""
        return state.model_copy(update={"running": self.expecting(state.running), "queue": self.expecting(state.queue)})


def shared_run_times(store: Store) -> LearnedRunTimes:
    """Return what this process has learned from the store, up to a moment ago."""
    with _making:
        learned: LearnedRunTimes = store.memo.setdefault(_MEMO, None) or LearnedRunTimes(store)
        store.memo[_MEMO] = learned
    learned.look_again()
    return learned


def traits_of(spec: JobSpec) -> JobTraits:
    """Return what is known of a job before it runs."""
    row = PlacementRequest.from_spec(spec, "", 1, 0.0)
    return _traits_of_row(row, run_times.JobProgram(spec.name, tuple(spec.command)))


def _traits_of_row(row: PlacementRequest | RunningRow, program: run_times.JobProgram) -> JobTraits:
    waits = isinstance(row, PlacementRequest)
    return JobTraits(
        namespace=row.namespace,
        user=row.user,
        name=program.name,
        command="\0".join(program.command),
        gpus=row.gpu_count if waits else len(row.gpu_uuids),
        model="" if row.resources is None else row.resources.model or "",
        time_limit_s=row.time_limit_s,
    )

"""A live cluster's state, replayed: what runs goes on, what waits gets its turn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.placing.cluster_state import ClusterState
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import GpuRow, RunningRow
from gpu_platform.domain.states import GpuState, HostState
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.simulator.engine import simulate
from gpu_platform.scheduling.simulator.inputs.start import SimulationStart
from gpu_platform.scheduling.simulator.inputs.trace import Trace, TraceJob
from gpu_platform.scheduling.simulator.records import JobOutcome, SimulatedJob, SimulationRun
from gpu_platform.scheduling.simulator.reports.report import report_on
from tests.builders import job
from tests.support.simulations import came, hosts

NOW = 1_760_000_000.0


def running(name: str, uuids: list[str], ago: float, limit: float | None) -> RunningRow:
    return RunningRow(name, 1, "default", "ada", 0, tuple(uuids), NOW - ago, limit)


def waiting(name: str, gpus: int, limit: float | None) -> PlacementRequest:
    asked = job(gpus, name=name).across_sockets().arrived(NOW - 60)
    return (asked.lasting(limit) if limit else asked).row


def live(
    runs: list[tuple[str, int, float, float | None]], queue: list[PlacementRequest], broken: int = 0
) -> ClusterState:
    """Two hosts of eight GPUs; ``runs``: name, GPUs, seconds ago, limit. The last ``broken`` GPUs are broken."""
    rows = hosts(2)
    free = [(host, gpu) for host in rows for gpu in host.inventory.gpus]
    held: dict[str, str] = {}
    running_rows = []
    for name, gpus, ago, limit in runs:
        own = [gpu.uuid for _, gpu in free[len(held) : len(held) + gpus]]
        held.update(dict.fromkeys(own, name))
        running_rows.append(running(name, own, ago, limit))
    gpu_rows = []
    for number, (host, gpu) in enumerate(free):
        state = GpuState.IN_USE if gpu.uuid in held else GpuState.AVAILABLE
        if number >= len(free) - broken:
            state = GpuState.DEGRADED
        gpu_rows.append(GpuRow(gpu.uuid, host.name, gpu.index, state, free=state is GpuState.AVAILABLE))
    return ClusterState(at=NOW, hosts=rows, gpus=gpu_rows, running=running_rows, queue=queue)


def replay(
    state: ClusterState, *jobs: TraceJob, lasting_s: float | None = None, until_s: float | None = None
) -> SimulationRun:
    state = ClusterState.model_validate_json(state.model_dump_json())
    start = SimulationStart.of(state, lasting_s)
    return simulate(Trace.of("after", jobs), state.hosts, Policy(), start=start, until_s=until_s)


def records(run: SimulationRun) -> dict[str, SimulatedJob]:
    return {record.job.id: record for record in run.records}


def test_what_waits_starts_when_the_limits_of_what_runs_say() -> None:
    run = replay(live([("a", 8, 100, 700), ("b", 8, 50, 1000)], [waiting("next", 8, 300)]), came("new", at=5, runs=10))
    found = records(run)
    assert (found["a"].end_s, found["b"].end_s) == (600, 950)
    assert (found["next"].first_start_s, found["next"].end_s) == (600, 900)
    # It came when the queue was not empty, and no GPU is free before.
    assert found["new"].first_start_s == 900
    report = report_on(run, "live")
    assert report.waiting_s.count == 2, "how long the others had waited before, nobody knows"
    assert report.waiting_s.max == 900 - 5
    assert report.begin_s == 0


def test_jobs_without_a_limit_run_for_ever_unless_told_otherwise() -> None:
    state = live([("a", 8, 100, None), ("b", 8, 50, 1000)], [waiting("gang", 8, None)])
    found = records(replay(state))
    assert (found["a"].outcome, found["gang"].outcome, found["gang"].first_start_s) == (
        JobOutcome.RUNNING,
        "running",
        950,
    )
    found = records(replay(state, lasting_s=400))
    assert (found["a"].end_s, found["gang"].first_start_s) == (300, 300)


def test_what_nobody_can_ever_have_waits() -> None:
    state = live([("a", 16, 100, None)], [waiting("next", 8, 300)])
    assert records(replay(state))["next"].outcome is JobOutcome.WAITING


def test_broken_gpus_and_drained_hosts_take_no_work() -> None:
    state = live([("a", 4, 100, 200)], [waiting("wide", 8, 10), waiting("small", 4, 10)], broken=1)
    found = records(replay(state))
    assert (found["small"].first_start_s, found["wide"].first_start_s) == (0, 100)
    drained = state.model_copy(update={"hosts": [replace(state.hosts[0], state=HostState.DRAINING), state.hosts[1]]})
    found = records(replay(drained))
    assert (found["small"].first_start_s, found["wide"].outcome) == (0, JobOutcome.WAITING)


def test_a_trace_may_not_reuse_the_name_of_a_job_that_is_there() -> None:
    with pytest.raises(InvalidRequest, match="a job of the trace is called a"):
        replay(live([("a", 4, 100, 200)], []), came("a", at=0, runs=1))

"""Advance reservations and maintenance windows in simulations: of a snapshot, and from a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.placing.window import WindowPlace, WindowRow
from gpu_platform.domain.states import HostState
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.simulator.engine import simulate
from gpu_platform.scheduling.simulator.inputs.files import load_windows
from gpu_platform.scheduling.simulator.inputs.start import SimulationStart
from gpu_platform.scheduling.simulator.inputs.trace import Trace, TraceJob
from gpu_platform.scheduling.simulator.records import JobOutcome
from tests.support.simulations import came, hosts
from tests.support.window_worlds import ForeseenWorld, WindowTrace
from tests.unit.simulator.test_simulator_start import NOW, live, records, replay, waiting

HOST, OTHER = (row.name for row in hosts(2))


def window(start: float, lasts: float, host: str = HOST, **given: object) -> WindowRow:
    usual: dict[str, object] = {"maintenance": True} if "namespaces" not in given else {}
    return replace(WindowRow("w", start, start + lasts, (WindowPlace(host),)), **(usual | given))  # type: ignore[arg-type]


def test_the_windows_of_a_snapshot_open_and_close_as_planned() -> None:
    state = live([("a", 8, 100, 700)], [waiting("long", 8, 3000), waiting("short", 8, 100)])
    state = state.model_copy(update={"windows": [window(NOW + 1000, 500, OTHER)]})
    found = records(replay(state))
    assert (found["short"].first_start_s, found["long"].first_start_s) == (0, 600), (
        "the other host is kept from 1000 s on"
    )
    start = SimulationStart.of(state)
    assert "1 advance reservations and maintenance windows open and close as planned" in start.notes


def test_what_runs_without_a_limit_is_stopped_for_a_window_and_starts_elsewhere() -> None:
    state = live([("a", 8, 100, None), ("b", 8, 100, 900)], [])
    state = state.model_copy(update={"windows": [window(NOW + 300, 200)]})
    found = records(replay(state))
    assert [(one.begin_s, one.end_s) for one in found["a"].held_periods] == [(0, 270), (500, 800)], (
        "then nothing ends any more"
    )
    assert found["a"].preemptions == 1, "30 s before, half of the margin, its grace of 10 s was over"
    assert found["a"].lost_gpu_seconds == 370 * 8


def test_jobs_of_a_reservation_start_when_it_opens_and_again_if_it_repeats() -> None:
    day = 86_400
    mine = TraceJob.model_validate({**came("m", at=10, runs=90, gpus=8).model_dump(), "time_limit_s": 100})
    asked = mine.gpus.model_copy(update={"reservation": "w"})
    jobs = [mine.model_copy(update={"gpus": asked, "submit_s": at, "id": f"m{at}"}) for at in (10, 5000)]
    never = mine.model_copy(update={"gpus": asked, "id": "never", "time_limit_s": 4000.0, "namespace": "default"})
    rows = [window(3600, 1200, maintenance=False, namespaces=(mine.namespace,), period_s=day)]
    start = SimulationStart.empty(hosts(2), rows)
    found = records(simulate(Trace.of("t", [*jobs, never]), hosts(2), Policy(), start=start))
    assert [found[name].first_start_s for name in ("m10", "m5000")] == [3600, 3600 + day]
    assert found["never"].outcome is JobOutcome.WAITING, "and the simulation ends although windows never do"


def test_hosts_that_open_maintenance_drained_are_taken_back_at_its_end() -> None:
    state = live([], [waiting("wide", 8, 100), waiting("next", 8, 100), waiting("third", 8, 100)])
    drained = [replace(state.hosts[0], state=HostState.DRAINED), replace(state.hosts[1], state=HostState.DRAINING)]
    state = state.model_copy(update={"hosts": drained, "windows": [window(NOW - 50, 150, is_open=True)]})
    found = records(replay(state))
    assert sorted(one.first_start_s or -1 for one in found.values()) == [100, 200, 300]
    assert f"{HOST}: drained by open maintenance, and taken back at its end" in SimulationStart.of(state).notes


@pytest.mark.parametrize("seed", range(6))
def test_the_simulator_starts_jobs_when_a_leader_would(seed: int) -> None:
    """The worlds of the property tests open and close windows by rules of their own."""
    world = ForeseenWorld(WindowTrace.foreseen(seed))
    world.play()
    rows = [one.row for one in world.arrivals.values()]
    jobs = [
        TraceJob(
            id=row.job_id,
            submit_s=row.enqueued_at,
            duration_s=row.time_limit_s or 0,
            gpus=row.resources,
            namespace=row.namespace,
            user=row.user,
            time_limit_s=row.time_limit_s,
            grace_s=row.grace_s,
        )
        for row in rows
    ]
    trace = world.trace
    assert isinstance(trace, WindowTrace)
    start = SimulationStart.empty(trace.hosts, [one for _, one in trace.windows])
    found = records(simulate(Trace.of("t", jobs), trace.hosts, trace.policy, start=start, until_s=240.0))
    assert len(rows) == len(found)
    for name, record in found.items():
        if record.first_start_s is not None or name in world.started:
            assert record.first_start_s == pytest.approx(world.started.get(name), abs=0.002), name


def test_a_file_states_windows_as_the_api_does(tmp_path: Path) -> None:
    path = tmp_path / "windows.yaml"

    def written(text: str, **given: object) -> list[WindowRow]:
        path.write_text(f"windows:\n{text}")
        return load_windows(path, hosts(2), **given)  # type: ignore[arg-type]

    fans, course = written(
        f"  - {{name: fans, maintenance: true, hosts: [{HOST}], start_at: 2h, duration_s: 60}}\n"
        "  - {name: course, gpu_count: 8, start_at: 7200, end_at: 3h, repeat: daily, namespaces: [teaching]}\n"
    )
    assert (fans.start, fans.end, fans.places) == (7200, 7260, (WindowPlace(HOST),))
    assert (course.start, course.end, course.period_s) == (7200, 10_800, 86_400)
    assert {place.host for place in course.places} == {OTHER}, "the first host is kept then"
    state = live([("a", 8, 100, None)], [])
    one = f"  - {{name: fans, maintenance: true, hosts: [{HOST}], start_at: 1h, duration_s: 60"
    with pytest.raises(InvalidRequest, match="a may still run when fans begins"):
        written(f"{one}}}\n", state=state)
    [stopping] = written(f"{one}, stop_running: true}}\n", state=state)
    assert stopping.start == NOW + 3600
    start = "start_at: 2026-12-01T10:00Z"
    for text, words in {
        "  - {name: x, maintenance: true, hosts: [nowhere], duration_s: 60}\n": "no host has a name like nowhere",
        f"  - {{name: x, maintenance: true, hosts: ['*'], {start}, duration_s: 60}}\n": "dates are for --snapshot",
        "  - {name: x, maintenance: true, hosts: ['*'], wrong: 1, duration_s: 60}\n": "wrong",
        "  - {name: x, maintenance: true, gpu_count: 99, duration_s: 60}\n": "maintenance is of whole hosts",
        "  - {name: x, users: [ada], gpu_count: 99, duration_s: 60}\n": "asked for 99 GPUs; 16 are not kept",
        2 * f"  - {{name: x, maintenance: true, hosts: [{HOST}], duration_s: 60}}\n": "a window x already",
    }.items():
        with pytest.raises(InvalidRequest, match=words):
            written(text)

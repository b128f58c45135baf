"""A host forgets attempts that ended: first their records, long after that they were stopped."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_platform.domain.errors import IllegalTransition
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.node.processes.logs import LogRetention
from gpu_platform.node.processes.record_cleanup import RecordRetention
from gpu_platform.node.processes.stopping import find_open_attempts
from gpu_platform.node.system.paths import attempt_dir
from tests.support.hosts_rig import HostRig

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[HostRig]:
    rig = HostRig(tmp_path / "state")
    yield rig
    await rig.aclose()


async def ran(host: HostRig) -> HostPlan:
    plan = host.plan("echo", "kept", ranks=2)
    host.launch(plan)
    await host.watch(plan)
    await host.stop(plan.key)
    return plan


def sweep(host: HostRig, after_s: float) -> int:
    """As if ``after_s`` had passed since everything ended so far."""
    newest = max(path.stat().st_mtime for path in host.home.glob("jobs/*/*/closed"))
    clock = lambda: newest + after_s  # noqa: E731
    LogRetention(host.home, 14 * DAY_S, 1 << 40, clock=clock).sweep()
    return RecordRetention(host.home, host.worker.forget, DAY_S, 14 * DAY_S, clock=clock).sweep()


def files(host: HostRig, plan: HostPlan) -> list[str]:
    root = attempt_dir(host.home, plan.key)
    return sorted(os.path.relpath(path, root) for path in root.rglob("*") if path.is_file())


async def test_records_go_after_a_day_and_logs_and_the_tombstone_stay(host: HostRig) -> None:
    plan, going = await ran(host), host.plan("sleep", "1000")
    host.launch(going)
    assert len(files(host, plan)) >= 9
    assert sweep(host, HOUR_S) == 0
    assert sweep(host, DAY_S + 60) == 1
    assert files(host, plan) == ["closed", "rank-0/output.log", "rank-1/output.log"]
    assert sweep(host, DAY_S + 60) == 0, "once is enough"
    assert host.log(plan) == "kept\n"
    with pytest.raises(IllegalTransition):  # a launch that comes late
        host.launch(plan)
    await host.stop(plan.key)  # as does a stop
    assert list(find_open_attempts(host.home)) == [going.key]


async def test_in_the_end_nothing_is_left(host: HostRig) -> None:
    plan = await ran(host)
    assert sweep(host, 14 * DAY_S + 60) == 1
    assert not attempt_dir(host.home, plan.key).parent.exists()


async def test_what_was_not_finished_is_not_forgotten(host: HostRig) -> None:
    """A node worker that died in the middle of a stop: its successor goes on with it."""
    plan = await ran(host)
    (attempt_dir(host.home, plan.key) / "finished").unlink()
    assert sweep(host, 14 * DAY_S + 60) == 0
    assert list(find_open_attempts(host.home)) == [plan.key]

"""A host asks real programs for checkpoints, sees their answer, and waits for it before it stops them."""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import gpu_platform
from gpu_platform.domain.jobs.attempt import FaultReport, HostPlan, RankLimits, StopRequest
from gpu_platform.domain.jobs.checkpoint import CheckpointPolicy
from gpu_platform.node.accounting.accounting import Accountant
from gpu_platform.node.attempt_watch import AttemptWatch
from gpu_platform.node.health.fault_policy import FaultPolicy
from tests.support.hosts_rig import HostRig
from tests.support.waiting import eventually

LIBRARY = str(Path(gpu_platform.__file__).parent.parent)

SAVES = """
    import signal, sys, time
    from gpu_platform import job
    signal.signal(signal.SIGTERM, lambda *_: (print("SIGTERM", flush=True), sys.exit(3)))
    print("from", job.resume_dir(), flush=True)
    for step in range(100_000):
        if job.should_checkpoint():
            print("asked:", job.why(), flush=True)
            with job.save(step) as directory:
                (directory / "state").write_text(str(step))
            print("saved", step, flush=True)
        time.sleep(0.01)
"""


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[HostRig]:
    rig = HostRig(tmp_path / "state", checkpoint_surplus_s=0.0)
    rig.restart([accountant := Accountant(rig.home)])
    rig.accountant = accountant  # type: ignore[attr-defined]
    yield rig
    await rig.aclose()


def program(host: HostRig, text: str, **changes: object) -> HostPlan:
    plan = host.plan(sys.executable, "-c", textwrap.dedent(text), env={"PYTHONPATH": LIBRARY}, **changes)
    host.launch(plan)
    return plan


def watching(host: HostRig, reports: list[FaultReport]) -> asyncio.Task[None]:
    watch = AttemptWatch(
        host.settings.node,
        host.nvml,
        host.home,
        host.accountant,  # type: ignore[attr-defined]
        FaultPolicy.load("platform"),
        reports.append,
        {},
        host.worker.checkpointing.clock,
    )
    return asyncio.create_task(watch.run(host.worker))


async def stop(host: HostRig, plan: HostPlan, grace_s: float) -> float:
    started = time.monotonic()
    await host.worker.stop(
        StopRequest(key=plan.key, host=plan.host, grace_s=grace_s, reason="preempted", save_first=True)
    )
    return time.monotonic() - started


async def test_before_a_stop_it_asks_and_waits_for_the_answer(host: HostRig) -> None:
    plan = program(host, SAVES)
    await eventually(lambda: list(host.settings.state_dir.glob("checkpoints/*/*/.listening")), "the program listens")
    assert await stop(host, plan, 30.0) < 10.0
    lines = host.log(plan).split("\n")
    assert lines[1] == "asked: stop"
    assert lines[2].startswith("saved ")
    assert lines[3] == "SIGTERM"
    following = program(host, SAVES, key=host.key(2, plan.key.job_id), resume_from_attempt=1, gpu_uuids=plan.gpu_uuids)
    await eventually(lambda: "from" in host.log(following), "its first line")
    [newest] = host.worker.checkpointing.list_job(plan.key.job_id)
    assert host.log(following).split("\n")[0] == f"from {newest.path}"
    assert newest.verified == "hashes", "read before the attempt went on from it"


async def test_who_does_not_listen_gets_sigterm_at_once(host: HostRig) -> None:
    plan = host.plan("sh", "-c", "trap 'echo SIGTERM; exit 3' TERM; echo ready; while :; do sleep 0.02; done")
    host.launch(plan)
    await eventually(lambda: "ready" in host.log(plan), "ready")
    assert await stop(host, plan, 30.0) < 10.0
    assert "SIGTERM" in host.log(plan)


async def test_who_listens_but_does_not_answer_costs_its_part_of_the_grace(host: HostRig) -> None:
    silent = """
        import signal, sys, time
        from gpu_platform import job
        signal.signal(signal.SIGTERM, lambda *_: (print("SIGTERM", flush=True), sys.exit(3)))
        job.should_checkpoint()
        time.sleep(600)
    """
    plan = program(host, silent)
    await eventually(lambda: list(host.settings.state_dir.glob("checkpoints/*/*/.listening")), "the program listens")
    assert 1.0 < await stop(host, plan, 1.5) < 5.0
    assert "SIGTERM" in host.log(plan), "its part of the grace is left"


async def test_a_program_of_another_language_hears_the_signal(host: HostRig) -> None:
    shell = """
        to="$GPU_PLATFORM_CHECKPOINT_DIR/s"
        save() { mkdir -p "$to"; touch "$to/COMPLETE"; echo saved; }
        trap save USR2; echo ready; while :; do sleep 0.02; done
    """
    plan = host.plan("sh", "-c", shell, checkpoint=CheckpointPolicy(signal="USR2"))
    host.launch(plan)
    await eventually(lambda: "ready" in host.log(plan), "ready")
    assert await stop(host, plan, 30.0) < 10.0
    assert "saved" in host.log(plan)


async def test_it_asks_at_the_interval_and_keeps_the_newest(host: HostRig) -> None:
    plan = program(host, SAVES, checkpoint=CheckpointPolicy(every_s=1, keep=2))
    task = watching(host, [])
    try:
        await eventually(lambda: host.log(plan).count("saved") >= 3, "three answers", within_s=30)
        assert "asked: interval" in host.log(plan)
    finally:
        task.cancel()
    removed: list[Any] = []

    def two_are_left() -> bool:
        """The program may save another one between the sweep and the look."""
        removed.extend(host.worker.sweep_checkpoints())
        return len(host.worker.checkpointing.list_job(plan.key.job_id)) == 2

    await eventually(two_are_left, "two to be left", within_s=10)
    left = host.worker.checkpointing.list_job(plan.key.job_id)
    assert len(removed) >= 1
    assert all(one.complete for one in left)
    assert not any(os.path.exists(path) for path in removed)


async def test_who_never_answers_is_told_once(host: HostRig) -> None:
    plan = host.plan("sleep", "600", checkpoint=CheckpointPolicy(every_s=1))
    host.launch(plan)
    reports: list[FaultReport] = []
    task = watching(host, reports)
    try:
        await eventually(lambda: reports, "a report", within_s=30)
        assert "no checkpoint came within 1 s of the platform's request (by a file): let the" in reports[0].message
        assert reports[0].gpu_index == -1, "the watch knows no index of this GPU, and still tells"
        [request] = host.settings.state_dir.glob("checkpoints/*/.request-1")
        for _ in range(2):
            asked = request.read_text()
            await eventually(lambda asked=asked: request.read_text() != asked, "it is asked again")
        assert len(reports) == 1
    finally:
        task.cancel()


async def test_it_asks_before_the_time_limit_and_when_the_host_is_drained(host: HostRig) -> None:
    plan = program(host, SAVES, limits=RankLimits(time_limit_s=6))
    task = watching(host, [])
    try:
        host.worker.checkpointing.clock.drain(True)
        await eventually(lambda: "asked: drain" in host.log(plan), "asked for the drain")
        await eventually(lambda: "asked: time limit" in host.log(plan), "asked before the limit")
        assert host.log(plan).count("asked: drain") == 1
    finally:
        task.cancel()

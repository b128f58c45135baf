"""Environments that take minutes, of many jobs at once: the threads that the node worker's lease needs stay free."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from temporalio.testing import ActivityEnvironment

from activities.node.launch import LaunchActivities
from activities.node.watch import RankWatcher
from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.domain.jobs.attempt import HostPlan, StopRequest
from gpu_platform.domain.jobs.environment import JobEnvironment
from gpu_platform.node.processes.stopping import is_closed
from gpu_platform.node.stages import Stage
from tests.support.hosts_rig import HostRig, NoFaults
from tests.support.waiting import eventually

JOBS = 8


class SlowStage(Stage):
    """Prepares until the attempt is stopped, and then takes its time to clear up."""

    def __init__(self) -> None:
        self.home = Path()
        self.preparing: set[str] = set()
        self.finishing: set[str] = set()
        self.may_finish = threading.Event()

    def prepare(self, plan: HostPlan) -> None:
        self.preparing.add(plan.key.job_id)
        while not is_closed(self.home, plan.key):
            self.may_finish.wait(0.02)
        raise HostUnavailable("its job was stopped")

    def finish(self, plan: HostPlan) -> None:
        self.finishing.add(plan.key.job_id)
        self.may_finish.wait(30)


async def test_neither_to_prepare_nor_to_clear_up_holds_the_threads_that_all_share(tmp_path: Path) -> None:
    stage = SlowStage()
    rig = HostRig(tmp_path / "state", stages=[stage])
    stage.home = rig.home
    launching = LaunchActivities(rig.worker, RankWatcher(rig.worker, NoFaults()))
    loop = asyncio.get_running_loop()

    async def threads_are_free() -> None:
        async with asyncio.timeout(10):
            await asyncio.gather(*[asyncio.to_thread(lambda: None) for _ in range(4)])

    with ThreadPoolExecutor(2) as shared:
        loop.set_default_executor(shared)
        plans = [rig.plan("true", environment=JobEnvironment(outputs="results")) for _ in range(JOBS)]
        steps = [asyncio.create_task(ActivityEnvironment().run(launching.prepare_host, plan)) for plan in plans]
        await eventually(lambda: len(stage.preparing) == JOBS, "all prepare")
        await threads_are_free()
        requests = [StopRequest(key=plan.key, host=plan.host, grace_s=0, reason="test") for plan in plans]
        stops = [asyncio.create_task(rig.worker.stop(request)) for request in requests]
        await eventually(lambda: len(stage.finishing) == JOBS, "all clear up")
        await threads_are_free()
        assert not any(stop.done() for stop in stops), "the GPUs are not free before"
        stage.may_finish.set()
        await asyncio.gather(*stops)
        for step in steps:
            with pytest.raises(HostUnavailable):
                await step
    rig.keys.clear()
    await rig.aclose()

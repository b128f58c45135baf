"""SIGKILL of any process of ours, one after the other, while ranks run."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.node.system import paths, records
from tests.support.hosts_rig import HostRig, is_running, kill, parent_of
from tests.support.waiting import eventually

COUNT = "i=0; while [ $i -lt {n} ]; do echo line $i; i=$((i+1)); sleep 0.005; done; exit {code}"

NODE_WORKER = """
import sys, time
from pathlib import Path
from gpu_platform.domain.jobs.attempt import HostPlan
from tests.support.hosts_rig import HostRig
rig = HostRig(Path(sys.argv[1]))
for text in sys.argv[2:]:
    launched = rig.launch(HostPlan.model_validate_json(text))
print(launched.model_dump_json())
print(rig.worker._launcher.spawner.pid, flush=True)
time.sleep(600)
"""
"""A process with a node worker in it, to be killed as a node worker is."""


class NodeWorkerProcess:
    def __init__(self, state_dir: Path, *plans: HostPlan) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", NODE_WORKER, str(state_dir), *(plan.model_dump_json() for plan in plans)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert self.process.stdout is not None
        self.pid = json.loads(self.process.stdout.readline())["ranks"][0]["pid"]
        self.spawner = int(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[HostRig]:
    rig = HostRig(tmp_path / "state")
    yield rig
    await rig.aclose()


async def test_a_rank_outlives_node_worker_and_spawner_and_is_reattached(host: HostRig) -> None:
    lines, code = 400, 5
    plan = host.plan("sh", "-c", COUNT.format(n=lines, code=code))
    worker = await asyncio.to_thread(NodeWorkerProcess, host.settings.state_dir, plan)
    await eventually(lambda: "line 20\n" in host.log(plan), "some lines")
    os.kill(worker.spawner, signal.SIGKILL)
    worker.kill()
    await eventually(lambda: not is_running(worker.spawner))
    assert is_running(worker.pid)

    successor = host.restart()
    assert successor.attempts() == [plan.key]
    assert host.launch(plan).ranks[0].pid == worker.pid  # a repeated activity finds it, and starts nothing
    exits = await host.watch(plan)
    assert [rank.exit_code for rank in exits.exits] == [code]
    assert host.log(plan).splitlines() == [f"line {i}" for i in range(lines)]


async def test_a_rank_that_ended_while_no_node_worker_lived_has_its_exit_code(host: HostRig) -> None:
    plan = host.plan("sh", "-c", COUNT.format(n=60, code=9))
    worker = await asyncio.to_thread(NodeWorkerProcess, host.settings.state_dir, plan)
    worker.kill()
    await eventually(lambda: not is_running(worker.pid), "the end of the rank")
    host.restart()
    exits = await host.watch(plan)
    assert exits.first_failure is not None
    assert exits.first_failure.exit_code == 9
    assert not exits.first_failure.vanished
    assert host.log(plan).splitlines() == [f"line {i}" for i in range(60)]


async def test_a_successor_stops_what_its_predecessor_launched(host: HostRig) -> None:
    plan = host.plan("sh", "-c", "trap '' TERM; setsid sleep 600 & echo $!; sleep 600; wait", ranks=2)
    worker = await asyncio.to_thread(NodeWorkerProcess, host.settings.state_dir, plan)
    await eventually(lambda: host.log(plan, 0) and host.log(plan, 1), "the logs")
    worker.kill()
    host.restart()
    stopped = await host.stop(plan.key, grace_s=0.1)
    assert [rank.exit_code for rank in stopped.exits] == [137, 137]
    assert not is_running(worker.pid)
    assert not any(is_running(int(host.log(plan, rank).split()[0])) for rank in (0, 1))


async def test_a_stop_cut_off_by_sigkill_is_finished_by_the_next(host: HostRig) -> None:
    """The attempt is closed first, so whoever comes next can only stop it."""
    plan = host.plan("sh", "-c", "trap '' TERM; sleep 600; sleep 600")
    pid = host.launch(plan).ranks[0].pid
    stopping = asyncio.create_task(host.stop(plan.key, grace_s=60))
    await eventually((paths.attempt_dir(host.home, plan.key) / records.CLOSED).exists, "closed")
    stopping.cancel()
    await asyncio.gather(stopping, return_exceptions=True)
    assert is_running(pid)
    host.restart()
    assert (await host.stop(plan.key)).exits[0].exit_code == 137
    assert not is_running(pid)


async def test_a_killed_spawner_is_replaced(host: HostRig) -> None:
    first = host.plan("sleep", "600")
    pid = host.launch(first).ranks[0].pid
    spawner = host.worker._launcher.spawner.pid
    kill(spawner)
    second = host.plan("true")
    host.launch(second)
    assert (await host.watch(second)).exits[0].exit_code == 0
    assert host.worker._launcher.spawner.pid != spawner
    assert is_running(pid)


async def test_a_killed_supervisor_means_a_vanished_rank_of_which_nothing_is_left(host: HostRig) -> None:
    plan = host.plan("sh", "-c", "(setsid sh -c 'echo $$; exec sleep 600' &) ; sleep 600 & echo $!; wait")
    pid = host.launch(plan).ranks[0].pid
    await eventually(lambda: len(host.log(plan).split()) == 2, "the tree")
    tree = [pid, *map(int, host.log(plan).split())]
    watching = asyncio.create_task(host.watch(plan))
    await asyncio.sleep(0)
    kill(parent_of(pid))
    exits = await watching
    assert exits.first_failure is not None
    assert exits.first_failure.vanished
    await eventually(lambda: not any(map(is_running, tree)), "the end of all that it left", within_s=5)
    assert host.launch(plan).ranks[0].pid == pid  # it ran once; it is not started again
    stopped = await host.stop(plan.key, grace_s=5)
    assert stopped.exits[0].vanished
    assert stopped.killed_processes == 0


async def test_a_supervisor_killed_at_any_moment_of_the_start_leaves_no_second_rank(host: HostRig) -> None:
    """Killed over and over: the rank executes at most once, and what the node worker says is true."""
    for delay in range(30):
        plan = host.plan("sh", "-c", "echo $$; exec sleep 600")
        launch = asyncio.create_task(asyncio.to_thread(host.launch, plan))
        claim = paths.rank_dir(host.home, plan.key, 0) / records.LOCK
        await eventually(claim.exists, "claim")
        await asyncio.sleep(delay / 10_000)
        record = records.read_record(str(claim))
        if record is not None and is_running(record["pid"]):
            kill(record["pid"])
        launched = await launch
        repeated = await asyncio.to_thread(host.launch, plan)
        assert repeated == launched
        await host.stop(plan.key)
        assert len(host.log(plan).split()) <= 1
        assert not any(is_running(rank.pid) for rank in launched.ranks)


async def test_nothing_stays_of_a_rank_whose_state_directory_was_removed(host: HostRig, tmp_path: Path) -> None:
    """Its end cannot be recorded any more. Its supervisor ignores SIGTERM, so it must end by itself."""
    program = f"sleep 500 & echo $! > {tmp_path / 'daemon'}; exec sleep 500"
    plan = host.plan("sh", "-c", program)
    worker = NodeWorkerProcess(tmp_path / "state", plan)
    daemon = int(await eventually(lambda: (tmp_path / "daemon").exists() and (tmp_path / "daemon").read_text(), "pid"))
    supervisor = parent_of(worker.pid)
    worker.kill()
    host.keys.remove(plan.key)
    shutil.rmtree(tmp_path / "state")
    kill(worker.pid)
    await eventually(lambda: not is_running(supervisor) and not is_running(daemon), "their end", within_s=10)


async def test_after_a_reboot_old_pids_mean_nothing(host: HostRig) -> None:
    plan = host.plan("sleep", "600")
    pid = host.launch(plan).ranks[0].pid
    await host.stop(plan.key)
    directory = paths.rank_dir(host.home, plan.key, 0)
    (directory / records.EXIT).unlink()
    for name in (records.STARTED, records.LOCK):
        record = records.read_record(str(directory / name))
        assert record is not None
        # Another process has the pid now: this one.
        records.write_record(str(directory / name), {**record, "pid": os.getpid(), "boot_id": "before"}, durable=False)
    assert (await host.watch(plan)).exits[0].vanished
    assert (await host.stop(plan.key)).killed_processes == 0
    assert not is_running(pid)


async def test_several_attempts_at_once_and_only_the_stopped_one_ends(host: HostRig) -> None:
    plans = [host.plan("sleep", "600", ranks=2) for _ in range(5)]
    launched = await asyncio.gather(*[asyncio.to_thread(host.launch, plan) for plan in plans])
    pids = [[rank.pid for rank in launch.ranks] for launch in launched]
    assert len({pid for pair in pids for pid in pair}) == 10
    await host.stop(plans[2].key)
    assert [all(map(is_running, pair)) for pair in pids] == [True, True, False, True, True]
    assert plans[2].key not in host.worker.attempts()
    assert len(host.worker.attempts()) == 4

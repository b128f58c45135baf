"""The end of a rank depends on nothing that can hang: not on its supervisor, its log, the node worker or their disk.

Each rank writes the boot clock every 10 ms for as long as it lives, to a file that no process of the platform touches.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from gpu_platform.domain.hosts.lease_protocol import LeaseTimes
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.domain.jobs.fencing import Fencing
from gpu_platform.node.node_worker import NodeWorker
from gpu_platform.node.system import paths, records
from gpu_platform.node.system.lease_file import Lease, LeaseFile, lease_path
from gpu_platform.node.system.records import boot_clock_s
from tests.integration.test_hosts_survival import NodeWorkerProcess
from tests.support.hanging_disk import HangingDisk, hanging_disk
from tests.support.hosts_rig import HostRig, is_running, kill, parent_of
from tests.support.lines import whole_lines
from tests.support.waiting import eventually

TTL_S = 4.0
TIMES = LeaseTimes.of(TTL_S)
BEAT = """
import os, sys, time
def beat():
    with open(os.environ.get("OUT") or sys.argv[1], "a") as file:
        file.write(f"{time.clock_gettime(time.CLOCK_BOOTTIME)}\\n")
"""
RANK = BEAT + "while True:\n    beat()\n    time.sleep(0.01)\n"
LOUD = (
    BEAT
    + "os.set_blocking(1, False)\n"
    + (
        "while True:\n    beat()\n"
        "    try:\n        os.write(1, b'x' * 65536)\n    except BlockingIOError:\n        pass\n    time.sleep(0.01)\n"
    )
)
"""Fills its pipe as soon as nobody empties it, and does not wait for that."""
DAEMON = (
    BEAT
    + """
if len(sys.argv) == 1:
    out = os.environ["OUT"]
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.closerange(0, 100)
        os.execve(sys.executable, [sys.executable, "-S", "-E", os.environ["DAEMON"], out + "-daemon"], {})
    while True:
        beat()
        time.sleep(0.01)
hops = "hops" in sys.argv[0]
while True:
    beat()
    if not hops:
        time.sleep(0.01)
    elif os.fork():
        os._exit(0)
    else:
        os.setsid()
"""
)
"""A rank that makes a daemon with an empty environment, in a session of its own. If its file says so, the daemon forks
and ends all the time."""


class LeasedRig(HostRig):
    """A host whose ranks run under a lease, which the test gives."""

    def __init__(self, state_dir: Path, **options: Any) -> None:
        super().__init__(state_dir, isolation="plain", **options)
        self.lease = LeaseFile(lease_path(str(self.home)))

    def _new_worker(self) -> NodeWorker:
        self.home.mkdir(parents=True, exist_ok=True)
        return NodeWorker(self.settings, self.nvml, self.inventory, lease_file=Path(lease_path(str(self.home))))

    async def aclose(self) -> None:
        """Stop all attempts, and close the worker."""
        self.give_lease(60)
        await super().aclose()
        self.give_lease(0)  # so its guard ends, and removes the page
        self.lease.close()

    def give_lease(self, seconds: float, term: int = 1) -> float:
        """Returns until when ranks may run."""
        until = boot_clock_s() + seconds
        self.lease.write(Lease(until, until, term))
        return until

    async def beats(self, out: Path, *command: str, **changes: Any) -> HostPlan:
        """Start a rank under a long lease, and wait until it writes."""
        self.give_lease(60)
        plan = self.plan("python3", "-S", "-E", *command, env={"OUT": str(out)}, **changes)
        await asyncio.to_thread(self.launch, plan)
        await eventually(lambda: out.exists() and out.stat().st_size > 0, "the rank to write")
        return plan


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[LeasedRig]:
    rig = LeasedRig(tmp_path / "state")
    yield rig
    await rig.aclose()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[HangingDisk]:
    with hanging_disk(tmp_path) as disk:
        yield disk


def last_beat(out: Path) -> float:
    return float(whole_lines(out)[-1])


async def silent(out: Path, for_s: float = 0.5) -> bool:
    before = last_beat(out)
    await asyncio.sleep(for_s)
    return last_beat(out) == before


async def dead_in_time(out: Path, until: float) -> None:
    """The rank gave its last sign of life before the host can be LOST."""
    await asyncio.sleep(max(0.0, until + TIMES.end_s - boot_clock_s()))
    last = last_beat(out)
    await asyncio.sleep(0.3)
    assert last_beat(out) == last, "it lives on"
    assert last <= until + TIMES.end_s


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """In a frozen cgroup, as swap or a debugger's snapshot leave it: it cannot even be killed (v1)."""
    for root, file, values in (
        ("/sys/fs/cgroup/unified", "cgroup.freeze", ("1", "0")),
        ("/sys/fs/cgroup", "cgroup.freeze", ("1", "0")),
        ("/sys/fs/cgroup/freezer", "freezer.state", ("FROZEN", "THAWED")),
    ):
        group = Path(root, f"gpu-platform-test-{os.getpid()}")
        try:
            group.mkdir()
        except OSError:
            continue
        if not (group / file).exists():
            group.rmdir()
            continue
        v1 = "freezer" in root
        lines = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
        before = next(path for number, names, path in lines if (names == "freezer" if v1 else number == "0"))
        try:
            (group / "cgroup.procs").write_text(str(pid))
            (group / file).write_text(values[0])
            yield
        finally:
            (group / file).write_text(values[1])
            if is_running(pid):
                Path(f"{root}{before}", "cgroup.procs").write_text(str(pid))
            group.rmdir()
        return
    pytest.skip("no cgroup can be made here")


@pytest.mark.parametrize("stands_still", [stopped, frozen])
async def test_a_rank_ends_with_its_lease_while_its_supervisor_stands_still(
    host: LeasedRig, tmp_path: Path, stands_still: object
) -> None:
    """And what users read afterwards is why it ended."""
    out = tmp_path / "beats"
    plan = await host.beats(out, "-c", RANK)
    until = host.give_lease(2.0)
    with stands_still(parent_of(host.worker.local.rank(plan.key, 0).started.pid)):  # type: ignore[operator, union-attr]
        await dead_in_time(out, until)
        host.give_lease(60, term=2)  # the node worker is awake again before the supervisor is
    exits = await host.watch(plan)
    assert exits.first_failure is not None
    assert exits.first_failure.failure is not None
    assert "its lease ended" in exits.first_failure.failure.message


async def test_a_rank_outlives_the_lease_if_its_job_is_relaxed(host: LeasedRig, tmp_path: Path) -> None:
    out = tmp_path / "beats"
    await host.beats(out, "-c", RANK, fencing=Fencing.RELAXED)
    until = host.give_lease(1.0)
    await asyncio.sleep(until + TIMES.end_s - boot_clock_s())
    assert not await silent(out)


@pytest.mark.parametrize("program", [RANK, LOUD], ids=["quiet", "loud"])
async def test_a_rank_ends_with_its_lease_while_the_disk_of_its_records_and_log_hangs(
    disk: HangingDisk, tmp_path: Path, program: str
) -> None:
    """Nobody can write a line to its log, nor its exit record, nor the lease on that disk."""
    rig, out = LeasedRig(disk.path / "state"), tmp_path / "beats"
    plan = await rig.beats(out, "-c", program)
    with disk.hangs():
        until = rig.give_lease(2.0)  # the pipe of its log is full then
        await dead_in_time(out, until)
    exits = await rig.watch(plan)
    assert exits.first_failure is not None
    assert exits.first_failure.failure is not None
    assert "its lease ended" in exits.first_failure.failure.message
    await rig.aclose()


async def test_a_lease_is_renewed_while_the_disk_of_the_records_hangs(disk: HangingDisk, tmp_path: Path) -> None:
    rig, out = LeasedRig(disk.path / "state"), tmp_path / "beats"
    await rig.beats(out, "-c", RANK)
    rig.give_lease(1.5)
    with disk.hangs():
        for _ in range(6):
            await asyncio.wait_for(asyncio.to_thread(rig.give_lease, 1.5), 1)
            await asyncio.sleep(0.5)
        assert not await silent(out)
    await rig.aclose()


async def test_a_rank_that_missed_the_end_of_a_lease_does_not_live_on_under_the_next_one(
    host: LeasedRig, tmp_path: Path
) -> None:
    """Everybody stood still meanwhile, the guard too. The host may have been LOST."""
    out = tmp_path / "beats"
    plan = await host.beats(out, "-c", RANK)
    host.give_lease(1.0)
    guards = host.worker._launcher.spawner.guard_pids
    with ExitStack() as still:
        for pid in (*guards, parent_of(host.worker.local.rank(plan.key, 0).started.pid)):  # type: ignore[union-attr]
            still.enter_context(stopped(pid))
        await asyncio.sleep(1.5)
        host.give_lease(60, term=2)
    await eventually(lambda: not is_running(host.worker.local.rank(plan.key, 0).started.pid), "its end", within_s=5)  # type: ignore[union-attr]


async def test_a_killed_guard_is_replaced_and_the_new_one_ends_the_ranks(host: LeasedRig, tmp_path: Path) -> None:
    out = tmp_path / "beats"
    plan = await host.beats(out, "-c", RANK)
    until = host.give_lease(3.0)
    spawner, [guard] = host.worker._launcher.spawner.pid, host.worker._launcher.spawner.guard_pids
    with stopped(parent_of(host.worker.local.rank(plan.key, 0).started.pid)):  # type: ignore[union-attr]
        kill(guard)
        await eventually(lambda: host.worker._launcher.spawner.guard_pids not in ([], [guard]), "another guard")
        await dead_in_time(out, until)
    assert host.worker._launcher.spawner.pid == spawner


@pytest.mark.some(1)
@pytest.mark.parametrize("stands_still", [stopped, frozen])
async def test_a_guard_that_stands_still_alone_is_replaced_before_the_lease_ends(
    host: LeasedRig, tmp_path: Path, stands_still: object
) -> None:
    """The supervisor does, too, so nobody else would end the rank."""
    out = tmp_path / "beats"
    plan = await host.beats(out, "-c", RANK)
    spawner, [guard] = host.worker._launcher.spawner, host.worker._launcher.spawner.guard_pids
    supervisor = parent_of(host.worker.local.rank(plan.key, 0).started.pid)  # type: ignore[union-attr]
    with stands_still(guard), stopped(supervisor):  # type: ignore[operator]
        until = host.give_lease(6.0)
        await eventually(lambda: set(spawner.guard_pids) - {guard}, "another guard", within_s=5)
        assert not await silent(out, 0.2), "the rank goes on"
        await dead_in_time(out, until)
    await eventually(lambda: not is_running(guard), "the end of the old guard")


async def test_one_guard_is_left_however_often_the_node_worker_is_replaced(host: LeasedRig, tmp_path: Path) -> None:
    """The lease goes on, and so does the rank."""
    await host.beats(tmp_path / "beats", "-c", RANK)
    [first] = host.worker._launcher.spawner.guard_pids  # it has the rank below it
    guards = {first}
    for _ in range(3):
        host.restart().start_guard()
        await eventually(lambda: host.worker._launcher.spawner.guard_pids, "another guard")
        guards |= set(host.worker._launcher.spawner.guard_pids)
        await asyncio.to_thread(host.launch, host.plan("true"))
    assert len(guards) == 4

    def left() -> set[int]:
        return {pid for pid in guards if is_running(pid)} - {first, *host.worker._launcher.spawner.guard_pids}

    await eventually(lambda: not left(), "the end of guards that nobody needs", within_s=8)


async def test_a_guard_outlives_the_node_worker_for_as_long_as_there_are_ranks(tmp_path: Path) -> None:
    rig = HostRig(tmp_path / "state", isolation="plain")
    worker = await asyncio.to_thread(NodeWorkerProcess, tmp_path / "state", rig.plan("sleep", "600"))
    guard = parent_of(worker.spawner)
    supervisor = parent_of(worker.pid)
    worker.kill()
    await eventually(lambda: not is_running(worker.spawner), "the end of the spawner")
    await asyncio.sleep(1.5)
    assert is_running(guard)
    kill(supervisor)
    await eventually(lambda: not is_running(worker.pid), "the end of the rank")
    await eventually(lambda: not is_running(guard), "the end of the guard")


KILLED = (
    ("supervisor",),
    ("spawner", "supervisor"),
    ("guard", "supervisor"),
    ("node worker", "supervisor"),
    ("spawner", "supervisor", "node worker"),
    ("node worker", "spawner", "supervisor"),
    ("supervisor", "spawner", "node worker"),
)


@pytest.mark.some(3)
@pytest.mark.parametrize("daemon", ["stays", "hops"])
@pytest.mark.parametrize("killed", KILLED, ids=", ".join)
async def test_every_descendant_of_a_rank_ends_whoever_was_killed(
    tmp_path: Path, killed: tuple[str, ...], daemon: str
) -> None:
    """It has an empty environment and a session of its own, and it may fork all the time."""
    rig, out, file = HostRig(tmp_path / "state", isolation="plain"), tmp_path / "beats", tmp_path / f"{daemon}.py"
    file.write_text(DAEMON)
    plan = rig.plan(sys.executable, "-S", "-E", str(file), env={"OUT": str(out), "DAEMON": str(file)})
    worker = await asyncio.to_thread(NodeWorkerProcess, tmp_path / "state", plan)
    beats = tmp_path / "beats-daemon"
    try:
        await eventually(lambda: beats.exists() and beats.stat().st_size > 0, "the daemon to write")
        pids = {
            "supervisor": parent_of(worker.pid), "spawner": worker.spawner, "guard": parent_of(worker.spawner),
            "node worker": worker.process.pid,
        }  # fmt: skip
        for one in killed:
            kill(pids[one])

        async def all_are_dead() -> bool:
            return await silent(beats, 0.2) and not is_running(worker.pid)

        await eventually(all_are_dead, "the end of rank and daemon", within_s=5)
    finally:
        worker.kill()
        rig.restart()
        await rig.aclose()


async def test_a_stop_ends_ranks_while_the_disk_of_the_records_hangs(disk: HangingDisk, tmp_path: Path) -> None:
    """The attempt is stopped only when that is recorded, so it never starts again."""
    rig, out = LeasedRig(disk.path / "state"), tmp_path / "beats"
    plan = await rig.beats(out, "-c", RANK)
    with disk.hangs():
        stopping = asyncio.create_task(rig.stop(plan.key))

        async def is_dead() -> bool:
            return await silent(out, 0.2)

        await eventually(is_dead, "the end of the rank", within_s=5)
        assert not stopping.done()
        rig.give_lease(60)
    assert (await stopping).killed_processes == 0
    assert (paths.attempt_dir(rig.home, plan.key) / records.CLOSED).exists()
    await rig.aclose()

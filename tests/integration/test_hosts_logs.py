"""Logs of real ranks: bounded, read across files, kept for a while, and never a reason for a rank to fail."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_platform.age_clock import AgeClock
from gpu_platform.domain.errors import NotFound
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.node.processes.logs import LogRetention
from gpu_platform.node.system.paths import attempt_dir, rank_dir
from tests.support.hosts_rig import HostRig
from tests.support.settable_clock import SettableClock
from tests.support.waiting import eventually

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[HostRig]:
    rig = HostRig(tmp_path / "state", log_file_bytes=1 << 20, log_files=3)
    yield rig
    await rig.aclose()


async def ran(host: HostRig, *command: str) -> HostPlan:
    plan = host.plan(*command)
    host.launch(plan)
    exits = await host.watch(plan)
    assert exits.first_failure is None
    await host.stop(plan.key)
    return plan


async def test_a_rank_that_writes_very_much_leaves_little(host: HostRig) -> None:
    plan = await ran(host, "sh", "-c", "yes 0123456789abcdef | head -c 200000000; echo the end")
    directory = rank_dir(host.home, plan.key, 0)
    assert sum(path.stat().st_size for path in directory.glob("output.log*")) <= 3 * (1 << 20)
    first = host.worker.read_log(plan.key, 0)
    assert first.size == 200_000_008
    assert first.offset == first.size - sum(path.stat().st_size for path in directory.glob("output.log*"))
    assert first.note is not None
    assert f"{first.offset} bytes of output before this are gone" in first.note
    assert first.data.startswith(b"0123456789abcdef\n"), "at the beginning of a line"
    assert host.worker.read_log(plan.key, 0, -8).data == b"the end\n"


async def test_everything_is_in_the_log_when_the_rank_is_said_to_have_ended(host: HostRig) -> None:
    for _ in range(5):
        plan = await ran(host, "sh", "-c", "seq 20000; echo last >&2")
        lines = host.log(plan).split()
        assert lines == [*map(str, range(1, 20_001)), "last"]


async def test_a_daemon_that_keeps_the_output_open_does_not_keep_the_rank(host: HostRig) -> None:
    plan = await ran(host, "sh", "-c", "setsid sleep 1000 & echo done")
    assert host.log(plan) == "done\n"


async def test_output_may_be_reopened_by_its_name(host: HostRig) -> None:
    plan = await ran(host, "sh", "-c", "echo one > /dev/stdout; echo two > /dev/stderr")
    assert host.log(plan) == "one\ntwo\n"


async def test_a_full_disk_does_not_fail_the_rank(small_disk: Path) -> None:
    rig = HostRig(small_disk)
    try:
        read = small_disk.parent / "read"
        # The rank waits until its note is read: a rank that has ended gives no note of a disk that was full meanwhile.
        script = f"""
import os, sys, time
n = sum(os.write(1, b"x" * 9999 + b"\\n") for _ in range(1000))
while not os.path.exists({str(read)!r}):
    time.sleep(0.05)
sys.exit(n != 10**7)
"""
        plan = rig.plan(sys.executable, "-c", script)
        rig.launch(plan)
        watching = asyncio.create_task(rig.watch(plan))
        note = await eventually(lambda: rig.worker.read_log(plan.key, 0, 0, 1).note, "the reader is told")
        assert "the disk of the host is full" in note
        read.touch()
        exits = await watching
        assert exits.first_failure is None, "every write was taken, and its end could still be recorded"
        await rig.stop(plan.key)
    finally:
        await rig.aclose()


async def test_logs_are_kept_for_some_days_and_then_removed_with_a_word(host: HostRig) -> None:
    old, new = await ran(host, "echo", "old"), await ran(host, "echo", "new")
    going = host.plan("sleep", "1000")
    host.launch(going)
    closed = attempt_dir(host.home, old.key) / "closed"
    ended_at_ms = json.loads(closed.read_text())["at_ms"]

    def sweep(now_ms: float) -> int:
        return LogRetention(host.home, 2 * 24 * 3600, 1 << 40, clock=lambda: now_ms / 1000).sweep()

    assert sweep(ended_at_ms + DAY_MS) == 0
    assert host.log(old) == "old\n"
    assert sweep(ended_at_ms + 3 * DAY_MS) > 0
    for plan in (old, new):
        with pytest.raises(NotFound, match=r"were removed on 20\d\d-.* UTC: logs are kept for 2 days"):
            host.worker.read_log(plan.key, 0)
    assert host.worker.read_log(going.key, 0).size == 0, "it still runs"
    host.worker.forget(old.key)
    with pytest.raises(NotFound, match="were removed"):
        host.worker.read_log(old.key, 0)


async def test_a_clock_that_is_set_forward_removes_no_log(host: HostRig) -> None:
    plan = await ran(host, "echo", "kept")
    clock = SettableClock()
    retention = LogRetention(host.home, DAY_MS / 1000, 1 << 40, clock=AgeClock(clock.wall, clock.steady))
    clock.set_by(30 * DAY_MS / 1000)
    assert retention.sweep() == 0
    assert host.log(plan) == "kept\n"
    clock.pass_s(2 * DAY_MS / 1000)
    assert retention.sweep() > 0


async def test_the_oldest_go_when_there_are_too_many(host: HostRig) -> None:
    plans = [await ran(host, "sh", "-c", "head -c 100000 /dev/zero") for _ in range(5)]
    LogRetention(host.home, 1e9, 250_000).sweep()
    for plan in plans[:3]:
        with pytest.raises(NotFound, match="this host keeps 0 MiB of logs"):
            host.worker.read_log(plan.key, 0)
    for plan in plans[3:]:
        assert host.worker.read_log(plan.key, 0).size == 100_000

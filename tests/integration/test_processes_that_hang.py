"""A process of one job hangs in the kernel: no other job waits for it, and neither does the host."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpu_platform.node.sharing.mps import MpsDaemon
from gpu_platform.node.system.environs import PATIENCE_S, started_with
from gpu_platform.node.system.process_tree import all_processes
from tests.support.hanging_disk import HangingDisk, hanging_disk
from tests.support.hosts_rig import HostRig, is_running
from tests.support.hung_mount import hung_mount
from tests.support.hung_process import hung_process

MARK = "GPU_PLATFORM_TEST_HANGS"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[HangingDisk]:
    with hanging_disk(tmp_path) as disk:
        yield disk


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[HostRig]:
    made = HostRig(tmp_path / "state", isolation="plain")
    yield made
    await made.aclose()


async def test_a_stop_waits_for_no_process_of_another_job(rig: HostRig, disk: HangingDisk) -> None:
    plans = [rig.plan("sleep", "600") for _ in range(3)]
    for plan in plans:
        await asyncio.to_thread(rig.launch, plan)
    with hung_process(disk):
        began = time.monotonic()
        await asyncio.gather(*[rig.stop(plan.key, timeout_s=8) for plan in plans])
        assert time.monotonic() - began < 3
        assert not rig.worker.attempts()
        assert MpsDaemon(rig.home / "mps" / "0", "GPU-0").processes() == []


def test_who_does_not_answer_is_asked_again_when_it_can(disk: HangingDisk) -> None:
    entry = f"{MARK}={os.getpid()}"
    name, _, value = entry.partition("=")
    with subprocess.Popen(["sleep", "600"], env={name: value}) as other:
        try:
            with hung_process(disk, {name: value}) as pid:
                for patience_s in (5 * PATIENCE_S, PATIENCE_S):
                    began = time.monotonic()
                    assert started_with(all_processes().values(), [entry.encode()]) == {other.pid}
                    assert time.monotonic() - began < patience_s, "it is waited for once"
                    assert is_running(pid)
        finally:
            other.kill()
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE, env={name: value}) as one:
        time.sleep(0.2)
        assert started_with(all_processes().values(), [entry.encode()]) == {one.pid}
        one.kill()


def test_a_file_on_a_file_system_that_hangs_keeps_nobody_from_seeing_who_has_a_device(tmp_path: Path) -> None:
    program = "import os, sys; os.open(sys.argv[1], os.O_PATH); os.open('/dev/zero', os.O_RDONLY); print(); input()"
    with hung_mount(tmp_path / "hung") as place:
        argv = [sys.executable, "-S", "-c", program, str(place)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            look = f"from gpu_platform.node.health.fitness import _open_devices as o; print(sorted(o({process.pid})))"
            found = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=8, check=True)
            process.kill()
    assert str(os.makedev(1, 5)) in found.stdout

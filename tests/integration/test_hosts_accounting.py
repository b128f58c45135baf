"""What an attempt used is known when it has ended, whatever the threads that measure it do meanwhile."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from gpu_platform.node.accounting.accounting import Accountant, read_usage
from gpu_platform.node.health.fitness import GpuFitness
from gpu_platform.node.isolation.scrub.scrub_policy import Scrubber
from gpu_platform.node.nvml.gpu_signals import Reading
from gpu_platform.node.sharing.stage import Sharing
from gpu_platform.node.system import records
from tests.fake_nvml import FakeNvml, has_compiler
from tests.support.hosts_rig import HostRig
from tests.support.waiting import eventually
from workers.node.main import stages_of


async def test_a_save_that_comes_late_does_not_undo_the_final_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = HostRig(tmp_path, isolation="plain")
    plan = host.plan("true")
    host.launch(plan)
    await host.watch(plan)
    accountant = Accountant(host.home)
    accountant.prepare(plan)
    [attempt] = accountant.live()
    writing, go_on, write_record = threading.Event(), threading.Event(), records.write_record

    def write_slowly(path: str, value: dict[str, Any], **options: Any) -> None:
        if value.get("final", []) is None:
            writing.set()
            go_on.wait(10)
        write_record(path, value, **options)

    monkeypatch.setattr(records, "write_record", write_slowly)
    late = threading.Thread(target=attempt.save)
    late.start()
    assert writing.wait(10)
    finishing = threading.Thread(target=accountant.finish, args=(plan,))
    finishing.start()
    finishing.join(0.2)
    go_on.set()
    finishing.join()
    late.join()
    assert [usage.rank for usage in read_usage(attempt.directory)] == [0]
    await host.aclose()


@pytest.mark.parametrize("set_by_ms", [300_000, -300_000])
async def test_a_rank_ran_no_longer_because_somebody_set_the_clock(tmp_path: Path, set_by_ms: int) -> None:
    host = HostRig(tmp_path, isolation="plain")
    accountant = Accountant(host.home)
    host.restart([accountant])
    plan = host.plan("sleep", "600")
    host.launch(plan)
    [attempt] = accountant.live()
    path = str(attempt.directory / "rank-0" / records.STARTED)
    started = records.read_record(path)
    assert started is not None
    records.write_record(path, {**started, "started_at_ms": started["started_at_ms"] - set_by_ms}, durable=False)
    await eventually(lambda: attempt.usage()[0].seconds > 0.5, "it to run")
    [running] = attempt.usage()
    [ended] = (await host.stop(plan.key)).usage
    assert 0.5 < running.seconds <= ended.seconds < 200
    await host.aclose()


@pytest.mark.skipif(not has_compiler(), reason="no C compiler (Debian: apt-get install gcc libc6-dev)")
async def test_a_job_does_not_pay_for_the_scrub_before_or_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen on an H100 80GB with driver 580.159.04: a job that used 495 J was charged 1655 J."""
    fake = FakeNvml(tmp_path / "nvml")
    monkeypatch.setenv("FAKE_NVML_STATE", str(fake.state_file))
    host = HostRig(tmp_path / "state", nvml=fake.load(), isolation="plain", scrub_namespaces={"red": "always"})
    accountant = Accountant(host.home)
    energy_j, scrubs = 0.0, 0

    def read(used_j: float, percent: int, memory_mib: int) -> None:
        nonlocal energy_j
        energy_j += used_j
        accountant.on_reading(
            plan.gpu_uuids[0], Reading(time.monotonic(), 50, percent, None, memory_mib, energy_j=energy_j)
        )

    def overwrite(_: str, _given_up: object) -> None:
        nonlocal scrubs
        scrubs += 1
        read(0, 0, 0)
        read(1000, 100, 80_000)

    scrubber = Scrubber(
        host.settings.node, host.nvml, host.home, reset=lambda uuid: None, on_failure=lambda uuid, problem: None
    )
    monkeypatch.setattr(scrubber, "_overwrite", overwrite)
    sharing = Sharing(
        host.settings.node, host.nvml, host.inventory, host.home, reset=lambda uuid: None, scrubber=scrubber
    )
    fitness = GpuFitness(
        host.nvml, host.inventory, host.settings.node, own_pids=lambda uuid: set(), on_fault=lambda fault: None
    )
    host.restart(stages_of(host.settings, host.nvml, host.inventory, host.home, fitness, sharing, accountant))
    plan = host.plan("sleep", "600", namespace="red")
    host.launch(plan)
    assert scrubs == 1  # nobody recorded whose data the GPU holds
    read(0, 0, 0)
    read(10, 20, 2000)
    [usage] = (await host.stop(plan.key)).usage
    assert scrubs == 2
    assert (usage.energy_j, usage.peak_utilization_percent, usage.peak_gpu_memory_mib) == (10, 20, 2000)
    await host.aclose()

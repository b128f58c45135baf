"""A driver call about one GPU that never returns: the others are watched as before, and that GPU gets no work."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from gpu_platform.domain.jobs.attempt import FaultReport
from gpu_platform.node.health import health
from gpu_platform.node.health.fault_policy import FaultPolicy
from gpu_platform.node.health.health import HealthMonitor
from gpu_platform.node.inventory.inventory import read_inventory
from gpu_platform.settings import NodeSettings
from tests.fake_nvml import FakeNvml, has_compiler
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C compiler")


async def test_one_gpu_that_hangs_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "SILENT_S", 0.5)
    monkeypatch.setattr(health, "_LOOK_S", 0.1)
    fake = FakeNvml(tmp_path / "lib", "dgx-1v")
    monkeypatch.setenv("FAKE_NVML_STATE", str(fake.state_file))
    nvml = fake.load()
    faults: list[FaultReport] = []
    monitor = HealthMonitor(
        nvml,
        read_inventory(nvml, NodeSettings(name="box")),
        FaultPolicy.load("platform"),
        host="box",
        on_fault=faults.append,
        interval_s=0.05,
    )
    uuids = [gpu.info.uuid for gpu in monitor.gpus()]
    monitor.start()
    try:
        await eventually(lambda: all(gpu.reading for gpu in monitor.gpus()), "a reading of each GPU")
        fake.strike(2, hangs=True)
        await eventually(lambda: uuids[2] in monitor.degraded(), "the GPU that hangs to be said")
        assert set(monitor.degraded()) == {uuids[2]}
        assert "has not answered" in monitor.degraded()[uuids[2]]
        read_at_s = [gpu.reading.at_s for gpu in monitor.gpus() if gpu.reading is not None]
        assert len(read_at_s) == len(uuids) - 1
        fake.strike(5, temperature_c=99)
        await eventually(lambda: uuids[5] in monitor.degraded(), "the others to be watched")
        fake.strike(6, xid=79)
        await eventually(lambda: any(fault.gpu_uuid == uuids[6] for fault in faults), "XIDs of the others to be heard")
        fake.strike(2, hangs=False)
        await eventually(lambda: uuids[2] not in monitor.degraded(), "the GPU to be back")
        names = [thread.name for thread in threading.enumerate() if thread.name == "gpu-poll"]
        assert len(names) <= 1, "the thread that hung has ended"
    finally:
        fake.strike(2, hangs=False)
        monitor.stop()

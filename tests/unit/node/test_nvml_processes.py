"""Who uses a GPU, and how much of it, as NVML tells: on a shared GPU, behind an MPS server, with MIG."""

from __future__ import annotations

import os
from typing import Any

import pytest

from gpu_platform.domain.hosts.share import ShareMode
from gpu_platform.node.accounting.gpu_meter import OwnUse
from gpu_platform.node.accounting.gpu_processes import SharedGpuMeter
from gpu_platform.node.nvml.simulated_nvml import SimulatedNvml
from tests.fake_nvml import FakeNvml


def test_what_each_process_uses_of_a_gpu_is_told(nvml: Any) -> None:
    """Nobody computes on these: neither call fails, whatever NVML raises for an empty answer."""
    uuid = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(0))
    for mode in (ShareMode.TIME_SLICE, ShareMode.MPS):
        use = SharedGpuMeter(nvml).read(uuid, mode)
        assert use.utilization_percent is not None
        assert use.memory_mib is not None
        assert os.getpid() not in use.memory_mib


def test_a_process_on_a_shared_gpu_has_its_own_figures(simulated: SimulatedNvml, sleeping: int) -> None:
    uuid = simulated.description.inventory(simulated.host).gpus[0].uuid
    simulated.add_process(uuid, sleeping)
    simulated.add_process(uuid, os.getpid())
    use = SharedGpuMeter(simulated).read(uuid, ShareMode.TIME_SLICE)
    assert use.memory_mib is not None
    assert use.memory_mib.keys() == {sleeping, os.getpid()}
    half = use.of({sleeping})
    assert 40 < (half.utilization_percent or 0) < 50
    whole = use.of({sleeping, os.getpid()})
    assert (half.memory_mib or 0) * 2 == whole.memory_mib
    assert use.of(set()) == OwnUse(0, 0)


def test_processes_of_a_shared_gpu_are_told_apart(fake: FakeNvml) -> None:
    fake.set(gpu__1__process__0="71 2048 30", gpu__1__process__1="72 1024 0", gpu__1__mps_process__0="72 1024 0")
    use = SharedGpuMeter(fake.load()).read(fake.uuid(1), ShareMode.TIME_SLICE)
    assert use.of({71}) == OwnUse(30, 2048)
    assert use.of({72}) == OwnUse(0, 1024)
    assert use.of({71, 72}) == OwnUse(30, 3072)


def test_who_computes_behind_an_mps_server_is_not_guessed(fake: FakeNvml) -> None:
    fake.set(gpu__1__process__0="70 30 55", gpu__1__mps_process__0="71 2048 0")
    use = SharedGpuMeter(fake.load()).read(fake.uuid(1), ShareMode.MPS)
    assert use.of({71}, server={70}) == OwnUse(None, 2048)
    fake.set(gpu__1__mps_process__0="71 2048 40")
    assert SharedGpuMeter(fake.load()).read(fake.uuid(1), ShareMode.MPS).of({71}, server={70}) == OwnUse(40, 2048)


def test_with_mig_the_memory_of_processes_is_told_and_their_utilisation_is_not(fake: FakeNvml) -> None:
    fake.set(gpu__1__mig=1, gpu__1__gi__3="9 0 4 0", gpu__1__gi__4="9 4 4 0")
    fake.set(gpu__1__process__0="71 2048 30 3", gpu__1__process__1="72 1024 90 4")
    nvml = fake.load()
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceGetProcessUtilization(nvml.nvmlDeviceGetHandleByIndex(1), 0)
    use = SharedGpuMeter(nvml).read(fake.uuid(1), ShareMode.MIG)
    assert use.memory_mib == {71: 2048, 72: 1024}
    assert use.of({72}) == OwnUse(None, 1024)


def test_garbage_among_samples_is_no_work_and_a_silent_gpu_says_nothing(fake: FakeNvml) -> None:
    fake.set(gpu__1__process__0="71 2048 2147483632")
    nvml = fake.load()
    assert SharedGpuMeter(nvml).read(fake.uuid(1), ShareMode.TIME_SLICE).of({71}) == OwnUse(0, 2048)
    fake.strike(1, lost=True)
    assert SharedGpuMeter(nvml).read(fake.uuid(1), ShareMode.TIME_SLICE).of({71}) == OwnUse(None, None)

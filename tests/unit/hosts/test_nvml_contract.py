"""What everything above expects of NVML: the simulated object keeps it, and a real GPU where there is one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from gpu_platform.hosts import gpu_reset, gpu_signals, paths
from gpu_platform.hosts.inject import inject_fault
from gpu_platform.hosts.inventory import read_inventory
from gpu_platform.hosts.nvml import has_gpus, open_nvml
from gpu_platform.hosts.simulated_nvml import SimulatedNvml
from gpu_platform.settings import NodeSettings
from gpu_platform.topology.description import load_description, machine_ids


@pytest.fixture(params=["simulated", "real"])
def nvml(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "real" and not has_gpus():
        pytest.skip("NVML finds no GPU on this machine: the contract is checked on the simulated one only")
    opened = open_nvml(
        NodeSettings(name="box", simulate="dgx-h100" if request.param == "simulated" else None), tmp_path
    )
    yield opened
    opened.nvmlShutdown()


@pytest.fixture
def simulated(tmp_path: Path) -> SimulatedNvml:
    return SimulatedNvml(load_description("dgx-h100"), "box", paths.control_dir(tmp_path))


def test_every_gpu_can_be_read_as_inventory_and_health_do(nvml: Any) -> None:
    inventory = read_inventory(nvml, NodeSettings(name="box"))
    assert len(inventory.gpus) == nvml.nvmlDeviceGetCount() > 0
    assert inventory.driver_version
    for gpu in inventory.gpus:
        handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
        assert nvml.nvmlDeviceGetUUID(handle) == gpu.uuid
        assert nvml.nvmlDeviceGetIndex(handle) == gpu.index
        assert 0 < nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU) < 120
        assert gpu.memory_mib > 1000
        assert float(gpu.compute_capability) >= 5
        assert gpu_signals.uncorrectable_ecc(nvml, handle) >= 0
        assert gpu_signals.recovery_action(nvml, handle) in range(8)
        gpu_reset.verify_gpu(nvml, gpu.uuid)


def test_the_event_set_times_out_when_nothing_happens(nvml: Any) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    events = nvml.nvmlEventSetCreate()
    types = nvml.nvmlDeviceGetSupportedEventTypes(handle) & nvml.nvmlEventTypeXidCriticalError
    nvml.nvmlDeviceRegisterEvents(handle, types, events)
    with pytest.raises(nvml.NVMLError_Timeout):
        nvml.nvmlEventSetWait_v2(events, 20)
    nvml.nvmlEventSetFree(events)


def test_an_unknown_gpu_is_an_nvml_error(nvml: Any) -> None:
    with pytest.raises(nvml.NVMLError):
        nvml.nvmlDeviceGetHandleByUUID("GPU-00000000-0000-0000-0000-000000000000")


def test_an_xid_from_another_process_arrives_at_once_and_once(simulated: SimulatedNvml) -> None:
    events = simulated.nvmlEventSetCreate()
    for index in range(8):
        handle = simulated.nvmlDeviceGetHandleByIndex(index)
        simulated.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
    pid = os.fork()
    if pid == 0:
        inject_fault(simulated.control_dir, 3, xid=31)
        os._exit(0)
    os.waitpid(pid, 0)
    began = time.perf_counter()
    event = simulated.nvmlEventSetWait_v2(events, 5000)
    assert time.perf_counter() - began < 1
    assert (simulated.nvmlDeviceGetIndex(event.device), event.eventData) == (3, 31)
    for xid in (13, 45, 48):
        inject_fault(simulated.control_dir, 1, xid=xid)
    assert [simulated.nvmlEventSetWait_v2(events, 5000).eventData for _ in range(3)] == [13, 45, 48]
    with pytest.raises(simulated.NVMLError_Timeout):
        simulated.nvmlEventSetWait_v2(events, 0)
    simulated.nvmlEventSetFree(events)


def test_a_lost_gpu_is_lost_to_every_call_and_the_others_are_not(simulated: SimulatedNvml) -> None:
    first, second = (simulated.nvmlDeviceGetHandleByIndex(index) for index in (0, 1))
    inject_fault(simulated.control_dir, 0, xid=79)
    calls = [simulated.nvmlDeviceGetName, simulated.nvmlDeviceGetPowerUsage, simulated.nvmlDeviceGetRemappedRows]
    for call in calls:
        with pytest.raises(simulated.NVMLError_GpuIsLost):
            call(first)
        call(second)
    with pytest.raises(simulated.NVMLError_GpuIsLost):
        simulated.nvmlDeviceGetHandleByIndex(0)
    assert "lost" in (simulated.reset(_uuid(simulated, 0)) or "")
    inject_fault(simulated.control_dir, 0, clear=True)
    assert simulated.nvmlDeviceGetName(first)


def test_a_reset_fails_as_often_as_told_and_heals_what_a_reset_heals(simulated: SimulatedNvml) -> None:
    handle = simulated.nvmlDeviceGetHandleByIndex(2)
    uuid = _uuid(simulated, 2)
    inject_fault(simulated.control_dir, 2, uncorrected_ecc=2, remap_pending=True, temperature_c=90, fail_resets=2)
    assert [simulated.reset(uuid) is None for _ in range(3)] == [False, False, True]
    assert gpu_signals.uncorrectable_ecc(simulated, handle) == 0
    assert gpu_signals.row_remapping(simulated, handle) == (False, False)
    assert simulated.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU) == 90


def test_conditions_that_follow_each_other_at_once_are_all_seen(simulated: SimulatedNvml) -> None:
    handle = simulated.nvmlDeviceGetHandleByIndex(0)
    for temperature in range(40, 90):
        inject_fault(simulated.control_dir, 0, temperature_c=temperature)
        assert simulated.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU) == temperature


def test_a_function_that_the_driver_lacks_is_not_found(simulated: SimulatedNvml) -> None:
    with pytest.raises(simulated.NVMLError_FunctionNotFound):
        simulated.nvmlDeviceGetFanSpeed(simulated.nvmlDeviceGetHandleByIndex(0))


def test_a_gpu_is_busy_while_a_living_process_was_given_it(simulated: SimulatedNvml) -> None:
    handle = simulated.nvmlDeviceGetHandleByIndex(0)
    assert simulated.nvmlDeviceGetUtilizationRates(handle).gpu == 0
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
        os._exit(0)
    simulated.occupy(_uuid(simulated, 0), pid)
    assert simulated.nvmlDeviceGetUtilizationRates(handle).gpu > 90
    assert gpu_reset.processes_on(simulated, _uuid(simulated, 0)) == {pid}
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    assert simulated.nvmlDeviceGetUtilizationRates(handle).gpu == 0


@pytest.mark.parametrize("machine", machine_ids())
def test_every_machine_can_be_simulated(tmp_path: Path, machine: str) -> None:
    nvml = open_nvml(NodeSettings(name="box", simulate=machine), tmp_path)
    inventory = read_inventory(nvml, NodeSettings(name="box"))
    assert inventory.machine == machine
    assert inventory.simulated
    assert [gpu.uuid for gpu in inventory.gpus] == [_uuid(nvml, index) for index in range(len(inventory.gpus))]


def _uuid(nvml: SimulatedNvml, index: int) -> str:
    return nvml.description.inventory(nvml.host).gpus[index].uuid

"""What everything above expects of NVML. The simulated object keeps it, the real ``pynvml`` on a library of ours
(``tests.fake_nvml``), and the real thing where there is a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from gpu_platform.domain.errors import PreflightFailed
from gpu_platform.domain.hosts.gpu import HostInventory
from gpu_platform.domain.jobs.attempt import FaultReport
from gpu_platform.node.health import gpu_reset
from gpu_platform.node.health.fault_policy import FaultPolicy
from gpu_platform.node.health.health import HealthMonitor
from gpu_platform.node.inventory.inventory import read_inventory
from gpu_platform.node.nvml import gpu_signals
from gpu_platform.node.nvml.fault_injection import inject_fault
from gpu_platform.node.nvml.opening import open_nvml
from gpu_platform.node.nvml.simulated_nvml import SimulatedNvml
from gpu_platform.node.system.sysfs import Sysfs
from gpu_platform.settings import NodeSettings
from gpu_platform.topology.description import machine_ids
from tests.fake_nvml import FakeNvml, has_compiler
from tests.unit.node.conftest import Struck

pytestmark = pytest.mark.processes


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


def test_memory_that_the_driver_reserves_is_not_used(struck: Struck) -> None:
    nvml, _ = struck
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlDeviceGetMemoryInfo(handle).used > 0
    assert gpu_signals.GpuReader(nvml, handle).read().memory_used_mib == 0


@pytest.mark.parametrize("lacks", [{"lacks__nvmlDeviceGetMemoryInfo_v2": 1}, {"gpu__0__old_memory_info": 1}])
def test_a_driver_that_does_not_tell_reserved_memory_apart_is_asked_the_old_way(
    fake: FakeNvml, lacks: dict[str, int]
) -> None:
    fake.set(gpu__0__memory_used_mib=1000, **lacks)
    nvml = fake.load()
    reader = gpu_signals.GpuReader(nvml, nvml.nvmlDeviceGetHandleByIndex(0))
    for _ in range(2):
        assert reader.read().memory_used_mib == 1480


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


def test_an_xid_from_another_process_arrives_at_once_and_once(struck: Struck) -> None:
    nvml, strike = struck
    events = nvml.nvmlEventSetCreate()
    for index in range(8):
        nvml.nvmlDeviceRegisterEvents(
            nvml.nvmlDeviceGetHandleByIndex(index), nvml.nvmlEventTypeXidCriticalError, events
        )
    pid = os.fork()
    if pid == 0:
        strike(3, xid=31)
        os._exit(0)
    os.waitpid(pid, 0)
    began = time.perf_counter()
    event = nvml.nvmlEventSetWait_v2(events, 5000)
    assert time.perf_counter() - began < 4
    assert (nvml.nvmlDeviceGetIndex(event.device), event.eventData) == (3, 31)
    with pytest.raises(nvml.NVMLError_Timeout):
        nvml.nvmlEventSetWait_v2(events, 0)
    nvml.nvmlEventSetFree(events)


def test_xids_come_in_their_order(struck: Struck) -> None:
    nvml, strike = struck
    events = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(nvml.nvmlDeviceGetHandleByIndex(1), nvml.nvmlEventTypeXidCriticalError, events)
    for xid in (13, 45, 48):
        strike(1, xid=xid)
    assert [nvml.nvmlEventSetWait_v2(events, 5000).eventData for _ in range(3)] == [13, 45, 48]
    nvml.nvmlEventSetFree(events)


def test_a_lost_gpu_is_lost_to_every_call_and_the_others_are_not(struck: Struck) -> None:
    nvml, strike = struck
    first, second = (nvml.nvmlDeviceGetHandleByIndex(index) for index in (0, 1))
    strike(0, xid=79)
    for call in (nvml.nvmlDeviceGetName, nvml.nvmlDeviceGetPowerUsage, nvml.nvmlDeviceGetRemappedRows):
        with pytest.raises(nvml.NVMLError_GpuIsLost):
            call(first)
        call(second)
    with pytest.raises(nvml.NVMLError_GpuIsLost):
        nvml.nvmlDeviceGetHandleByIndex(0)
    strike(0, clear=True)
    assert nvml.nvmlDeviceGetName(first)


def test_conditions_are_read_as_health_reads_them(struck: Struck) -> None:
    nvml, strike = struck
    strike(2, uncorrected_ecc=2, corrected_ecc=7, remap_pending=True, remap_failed=True, recovery_action=4)
    handle = nvml.nvmlDeviceGetHandleByIndex(2)
    assert gpu_signals.uncorrectable_ecc(nvml, handle) == 2
    assert gpu_signals.row_remapping(nvml, handle) == (True, True)
    assert gpu_signals.recovery_action(nvml, handle) == 4
    with pytest.raises(PreflightFailed, match="ECC"):
        gpu_reset.verify_gpu(nvml, nvml.nvmlDeviceGetUUID(handle))


def test_health_blames_the_gpu_that_is_lost_and_watches_the_others(struck: Struck) -> None:
    nvml, strike = struck
    inventory = read_inventory(nvml, NodeSettings(name="box"))
    faults: list[FaultReport] = []
    monitor = HealthMonitor(
        nvml, inventory, FaultPolicy.load("platform"), host="box", on_fault=faults.append, interval_s=0.01
    )
    monitor.start()
    try:
        _until(lambda: all(gpu.temperature_c for gpu in monitor.telemetry()))
        strike(5, lost=True)
        _until(lambda: faults)
        assert [(fault.gpu_index, fault.action) for fault in faults] == [(5, "reboot")]
        assert list(monitor.degraded()) == [inventory.gpus[5].uuid]
        strike(2, xid=31)
        _until(lambda: len(faults) == 2)
        assert (faults[1].gpu_index, faults[1].xid) == (2, 31)
        strike(5, clear=True)
        _until(lambda: not monitor.degraded())
        assert sum(gpu.temperature_c is not None for gpu in monitor.telemetry()) == 8
    finally:
        monitor.stop()


@pytest.mark.some(3)
@pytest.mark.parametrize("machine", machine_ids())
def test_the_wiring_of_every_machine_is_found_through_pynvml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str
) -> None:
    if not has_compiler():
        pytest.skip("no C compiler")
    fake = FakeNvml(tmp_path, machine)
    monkeypatch.setenv("FAKE_NVML_STATE", str(fake.state_file))
    described = fake.description.inventory("box")
    inventory = read_inventory(fake.load(), NodeSettings(name="box"), Sysfs(tmp_path / "no-sysfs"))
    assert inventory.nvlinks == described.nvlinks
    assert inventory.nvlink_generation == described.nvlink_generation
    facts = {"uuid", "index", "model", "memory_mib", "compute_capability", "pci_bus_id", "mig_capable"}
    for found, expected in zip(inventory.gpus, described.gpus, strict=True):
        expected_facts = expected.model_dump(include=facts)
        if expected_facts["pci_bus_id"] is None:
            expected_facts["pci_bus_id"] = found.pci_bus_id
        assert found.model_dump(include=facts) == expected_facts
    by_switch = lambda gpus: {frozenset(g.index for g in gpus if g.pcie_switch == gpu.pcie_switch) for gpu in gpus}  # noqa: E731
    assert {group for group in by_switch(inventory.gpus) if len(group) < len(inventory.gpus)} == {
        group for group in by_switch(described.gpus) if 1 < len(group) < len(inventory.gpus)
    } or not any(gpu.pcie_switch for gpu in described.gpus)


def test_a_driver_that_lacks_functions_is_watched_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: FakeNvml
) -> None:
    old = FakeNvml(tmp_path / "old", "dgx-1v", old_driver=True)
    monkeypatch.setenv("FAKE_NVML_STATE", str(old.state_file))
    nvml = old.load()
    with pytest.raises(nvml.NVMLError_FunctionNotFound):
        nvml.nvmlDeviceGetRemappedRows(nvml.nvmlDeviceGetHandleByIndex(0))
    inventory = read_inventory(nvml, NodeSettings(name="box"))
    assert len(inventory.gpus) == 8
    gpu_reset.verify_gpu(nvml, inventory.gpus[0].uuid)
    faults: list[FaultReport] = []
    monitor = HealthMonitor(nvml, inventory, FaultPolicy.load("platform"), host="box", on_fault=faults.append)
    old.strike(1, uncorrected_ecc=1)
    monitor.poll_once()
    monitor.poll_once()
    assert [(fault.gpu_index, fault.action) for fault in faults] == [(1, "reset")]
    assert monitor.degraded() == {}


def test_another_process_finds_the_library_as_it_would_find_nvidias(fake: FakeNvml, tmp_path: Path) -> None:
    """``open_nvml`` and ``read_inventory`` as a node worker calls them, nothing replaced."""
    program = (
        "import pathlib; from gpu_platform.node.nvml.opening import open_nvml, has_gpus;"
        "from gpu_platform.node.inventory.inventory import read_inventory;"
        "from gpu_platform.settings import NodeSettings;"
        "node = NodeSettings(name='box'); assert has_gpus();"
        "print(read_inventory(open_nvml(node, pathlib.Path('.')), node).model_dump_json())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=fake.environ, capture_output=True, text=True, check=True, cwd=tmp_path
    )
    inventory = HostInventory.model_validate_json(done.stdout)
    assert [gpu.uuid for gpu in inventory.gpus] == [fake.uuid(index) for index in range(8)]
    assert not inventory.simulated
    assert len(inventory.nvlinks) == 28


def test_a_reset_fails_as_often_as_told_and_heals_what_a_reset_heals(simulated: SimulatedNvml) -> None:
    handle = simulated.nvmlDeviceGetHandleByIndex(2)
    uuid = _uuid(simulated, 2)
    inject_fault(simulated.control_dir, 2, uncorrected_ecc=2, remap_pending=True, temperature_c=90, fail_resets=2)
    assert [simulated.reset_gpu(uuid) is None for _ in range(3)] == [False, False, True]
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
    simulated.add_process(_uuid(simulated, 0), pid)
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


def _until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _uuid(nvml: SimulatedNvml, index: int) -> str:
    return nvml.description.inventory(nvml.host).gpus[index].uuid


@pytest.mark.some(4)
@pytest.mark.parametrize(
    ("condition", "healthy", "action"),
    [
        ({"sram_threshold": True}, {"sram_threshold": False}, "service"),
        ({"remap_exhausted": True}, {"remap_exhausted": False}, "watch"),
        ({"repair_pending": True}, {"repair_pending": False}, "reset_when_idle"),
        ({"remap_pending": True}, {"remap_pending": False}, "reset_when_idle"),
        ({"nvlinks_down": 2}, {"nvlinks_down": 0}, "watch"),
        ({"fabric_status": 999}, {"fabric_status": 0}, "watch"),
        ({"pcie_width": 8}, {"pcie_width": 16}, "watch"),
        ({"recovery_action": 1}, {"recovery_action": 0}, "reset"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(next(iter(value))),
)
def test_a_condition_is_one_fault_of_one_gpu_until_it_has_ended(
    struck: Struck, condition: dict[str, int], healthy: dict[str, int], action: str
) -> None:
    faults: list[FaultReport] = []
    monitor = _monitor(struck.nvml, read_inventory(struck.nvml, NodeSettings(name="box")), faults.append)
    monitor.poll_once()
    struck.strike(2, **condition)
    for _ in range(3):
        monitor.poll_once()
    assert [(fault.gpu_index, fault.xid, fault.action) for fault in faults] == [(2, None, action)], faults
    struck.strike(2, **healthy)
    for _ in range(3):
        monitor.poll_once()
    assert monitor.degraded() == {}
    struck.strike(2, **condition)
    for _ in range(2):
        monitor.poll_once()
    assert len(faults) == 2


@pytest.mark.parametrize(("counter", "what"), [("nvlink_errors", "NVLink errors"), ("pcie_replays", "PCIe replays")])
def test_many_new_errors_of_a_link_are_reported_and_counted_anew(struck: Struck, counter: str, what: str) -> None:
    faults: list[FaultReport] = []
    monitor = _monitor(struck.nvml, read_inventory(struck.nvml, NodeSettings(name="box")), faults.append)
    for count in (0, 999, 1000, 1500, 1999, 2000, 3):
        struck.strike(1, **{counter: count})
        monitor.poll_once()
    assert [fault.message for fault in faults] == [f"many {what} on GPU 1 of box: 1000 more"] * 2


def test_a_power_limit_is_bounded_by_the_board(struck: Struck) -> None:
    nvml = struck.nvml
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    lowest, highest = nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
    nvml.nvmlDeviceSetPowerManagementLimit(handle, lowest)
    assert nvml.nvmlDeviceGetPowerManagementLimit(handle) == lowest
    with pytest.raises(nvml.NVMLError):
        nvml.nvmlDeviceSetPowerManagementLimit(handle, highest + 1000)
    assert nvml.nvmlDeviceGetTotalEnergyConsumption(handle) >= 0


def test_nvml_that_goes_away_is_nobodys_fault_and_comes_back(fake: FakeNvml) -> None:
    nvml = fake.load()
    faults: list[FaultReport] = []
    monitor = _monitor(nvml, read_inventory(nvml, NodeSettings(name="box")), faults.append)
    monitor.poll_once()
    fake.set(away=1)
    monitor.poll_once()
    assert len(monitor.degraded()) == 8
    assert all(reading.temperature_c is None for reading in monitor.telemetry())
    fake.set(away=0)
    monitor.poll_once()
    assert monitor.degraded() == {}
    assert all(reading.temperature_c is not None for reading in monitor.telemetry())
    assert faults == []


def _monitor(nvml: Any, inventory: HostInventory, on_fault: Callable[[FaultReport], None]) -> HealthMonitor:
    return HealthMonitor(nvml, inventory, FaultPolicy.load("platform"), host="box", on_fault=on_fault)


@pytest.mark.parametrize(
    ("answer", "needs_operator"),
    [
        ("GPUs with NVLink connections to it must be reset in the same command: 00000000:07:00.0", True),
        ("The following GPUs could not be reset:\n  GPU 00000000:1A:00.0: In use by another client", False),
    ],
)
def test_a_reset_that_is_refused_for_the_gpus_peers_asks_for_an_operator(
    fake: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, needs_operator: bool
) -> None:
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(f"#!/bin/sh\nprintf '%s\\n' '{answer}'\nexit 255\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(smi.parent), prepend=":")
    with pytest.raises(PreflightFailed, match=answer.splitlines()[-1]) as refused:
        gpu_reset.reset_gpu(fake.load(), fake.uuid(0), timeout_s=10)
    assert refused.value.details.get("needs_operator", False) is needs_operator
    assert ("drained host" in refused.value.message) is needs_operator

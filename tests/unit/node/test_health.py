"""The health monitor: what becomes a fault, what only keeps work away, and what stays one GPU's trouble."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_platform.domain.jobs.attempt import FaultReport
from gpu_platform.node.health.conditions import ThrottleDetector
from gpu_platform.node.health.fault_history import FaultHistory
from gpu_platform.node.health.fault_reports import now_ms
from gpu_platform.node.health.health import HealthMonitor, _same_device
from gpu_platform.node.health.watched_gpu import WatchedGpu
from tests.support.hosts_rig import HostRig
from tests.support.waiting import eventually


class Watched:
    """A simulated host and its monitor; ``faults`` is what was reported."""

    def __init__(self, state_dir: Path) -> None:
        self.host = HostRig(state_dir)
        self.uuids = [gpu.uuid for gpu in self.host.inventory.gpus]
        self.faults: list[FaultReport] = []
        self.monitor = self.new_monitor()

    def new_monitor(self, **options: Any) -> HealthMonitor:
        return self.host.monitor(self.faults.append, **options)

    def strike(self, gpu: int, **fault: Any) -> None:
        self.host.strike(gpu, **fault)
        self.monitor.poll_once()

    def hears(self, gpu: WatchedGpu, xid: int, *, fatal: bool = False) -> None:
        self.monitor._faults.on_xid(gpu, xid, lambda: 0, fatal=fatal)

    @property
    def seen(self) -> list[tuple[int, int | None, str]]:
        return [(fault.gpu_index, fault.xid, fault.action) for fault in self.faults]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    rig = Watched(tmp_path)
    yield rig
    rig.monitor.stop()
    rig.host.worker.close()


async def test_an_injected_xid_becomes_a_fault_with_the_policys_action(watched: Watched) -> None:
    watched.monitor.start()
    watched.host.strike(5, xid=31)
    await eventually(lambda: watched.faults, "the fault")
    (fault,) = watched.faults
    assert (fault.gpu_index, fault.gpu_uuid, fault.xid, fault.action) == (5, watched.uuids[5], 31, "reset")
    assert fault.host == "box"
    assert "MMU page fault" in fault.message
    assert abs(fault.at_ms - time.time() * 1000) < 60_000
    assert watched.monitor.degraded() == {}


async def test_an_xid_that_the_driver_repeats_is_one_fault_and_each_fault_has_its_own_id(watched: Watched) -> None:
    watched.monitor.start()
    for _ in range(10):
        watched.host.strike(1, xid=13)
    watched.host.strike(2, xid=13)
    await eventually(lambda: len(watched.faults) == 2, "two faults")
    assert watched.seen == [(1, 13, "fail_job"), (2, 13, "fail_job")]
    assert len({fault.fault_id for fault in watched.faults}) == 2


async def test_an_xid_right_after_a_reset_is_a_fault_of_its_own(watched: Watched) -> None:
    watched.monitor.start()
    for number in (1, 2):
        watched.host.strike(1, xid=31)
        await eventually(lambda number=number: len(watched.faults) == number, f"fault {number}")
        watched.monitor.was_reset(watched.uuids[1])
    assert watched.seen == [(1, 31, "reset"), (1, 31, "reset")]


async def test_the_drivers_verdict_is_asked_when_an_xid_comes(watched: Watched) -> None:
    watched.host.strike(0, recovery_action=pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT)
    watched.monitor.start()
    watched.host.strike(0, xid=13)
    await eventually(lambda: watched.faults, "the fault")
    assert watched.seen == [(0, 13, "reboot")]


def test_a_hot_gpu_gets_no_work_until_it_has_cooled_by_five_degrees(watched: Watched) -> None:
    hot = []
    for temperature in (85, 86, 92, 85, 81, 80, 85, 86):
        watched.strike(3, temperature_c=temperature)
        hot.append(list(watched.monitor.degraded()) == [watched.uuids[3]])
    assert hot == [False, True, True, True, True, False, False, True]
    reason = watched.monitor.degraded()[watched.uuids[3]]
    assert reason == "86 °C, above the limit of 85 °C; takes work again at 80 °C"
    watched.strike(3, temperature_c=99)
    assert watched.monitor.degraded()[watched.uuids[3]] == reason  # stable while it lasts
    assert watched.faults == []


def test_a_lost_gpu_is_one_fault_and_leaves_the_others_alone(watched: Watched) -> None:
    watched.monitor.poll_once()
    watched.strike(4, lost=True)
    watched.monitor.poll_once()
    assert watched.seen == [(4, None, "reboot")]
    assert "lost" in watched.monitor.degraded()[watched.uuids[4]].lower()
    telemetry = {reading.uuid: reading for reading in watched.monitor.telemetry()}
    assert telemetry[watched.uuids[4]].temperature_c is None
    assert all(telemetry[uuid].temperature_c for uuid in watched.uuids if uuid != watched.uuids[4])
    watched.strike(4, clear=True)
    assert watched.monitor.degraded() == {}
    watched.strike(4, lost=True)
    assert watched.seen == [(4, None, "reboot"), (4, None, "service")]  # again within a day


async def test_xids_of_other_gpus_arrive_while_one_is_lost_and_its_own_when_it_is_back(watched: Watched) -> None:
    watched.host.strike(0, lost=True)
    watched.monitor.start()
    await eventually(lambda: watched.faults, "the lost GPU")
    watched.host.strike(7, xid=48)
    await eventually(lambda: len(watched.faults) == 2, "XID 48")
    watched.host.strike(0, clear=True)
    watched.host.strike(0, xid=31)
    await eventually(lambda: len(watched.faults) == 3, "XID 31")
    assert watched.seen == [(0, None, "reboot"), (7, 48, "reset"), (0, 31, "reset")]


async def test_falling_off_the_bus_and_being_lost_are_one_fault(watched: Watched) -> None:
    watched.monitor.start()
    watched.host.strike(6, xid=79)
    await eventually(lambda: watched.monitor.degraded() and watched.faults, "lost")
    watched.monitor.stop()
    assert len(watched.faults) == 1
    assert watched.faults[0].action == "reboot"


def test_uncorrectable_ecc_takes_the_gpu_and_a_reset_ends_it(watched: Watched) -> None:
    watched.strike(2, uncorrected_ecc=1)
    watched.monitor.poll_once()
    assert watched.seen == [(2, None, "reset")]
    watched.host.worker.reset_gpu(watched.uuids[2])
    watched.monitor.poll_once()
    watched.strike(2, uncorrected_ecc=1)
    assert watched.seen == [(2, None, "reset"), (2, None, "reset")]


def test_correctable_ecc_is_reported_above_a_threshold_only(watched: Watched) -> None:
    for count, reports in ((500, 0), (1000, 1), (1500, 1), (2100, 2), (0, 2), (999, 2), (1100, 3)):
        watched.strike(2, corrected_ecc=count)
        assert len(watched.faults) == reports, count
    assert {fault.action for fault in watched.faults} == {"watch"}


def test_row_remapping(watched: Watched) -> None:
    watched.strike(1, remap_pending=True)
    watched.strike(2, remap_failed=True)
    assert watched.seen == [(1, None, "reset_when_idle"), (2, None, "service")]


@pytest.mark.parametrize("xid_first", [True, False])
async def test_a_row_that_waits_for_a_reset_gets_it_in_whatever_order_xid_63_comes(
    watched: Watched, xid_first: bool
) -> None:
    """XID 63 itself is only watched. A GPU that gets no new work until a reset must be reset."""
    watched.monitor.start()
    for is_xid in (xid_first, not xid_first):
        watched.host.strike(1, **({"xid": 63} if is_xid else {"remap_pending": True}))
        await eventually(lambda is_xid=is_xid: watched.faults or not is_xid, "the report")
        await eventually(lambda is_xid=is_xid: is_xid or watched.monitor.degraded(), "the condition")
    await eventually(lambda: "reset_when_idle" in [fault.action for fault in watched.faults], "a reset")
    assert [action for _, _, action in watched.seen].count("reset_when_idle") == 1


def test_telemetry_shows_who_works(watched: Watched) -> None:
    watched.host.nvml.add_process(watched.uuids[0], 1)
    watched.monitor.poll_once()
    busy, idle = watched.monitor.telemetry()[:2]
    assert (busy.utilization_percent, idle.utilization_percent) == (97, 0)
    assert (busy.power_w or 0) > (idle.power_w or 0) > 0
    assert (busy.memory_used_mib or 0) > 0 == idle.memory_used_mib


def test_a_callback_that_fails_does_not_end_the_watch(watched: Watched) -> None:
    def broken(fault: FaultReport) -> None:
        watched.faults.append(fault)
        raise RuntimeError("no")

    monitor = watched.host.monitor(broken)
    watched.host.strike(1, uncorrected_ecc=1)
    watched.host.strike(2, uncorrected_ecc=1)
    monitor.poll_once()
    assert [fault.gpu_index for fault in watched.faults] == [1, 2]


def test_a_restarted_monitor_does_not_report_what_stands_already(watched: Watched, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    watched.host.strike(2, lost=True)
    for _ in range(2):
        watched.new_monitor(history=FaultHistory(path)).poll_once()
    assert watched.seen == [(2, None, "reboot")]
    watched.host.strike(2, clear=True)
    watched.new_monitor(history=FaultHistory(path)).poll_once()
    watched.host.strike(2, lost=True)
    watched.new_monitor(history=FaultHistory(path)).poll_once()
    assert watched.seen == [(2, None, "reboot"), (2, None, "service")]


async def test_a_paused_monitor_holds_no_device_and_goes_on_after(watched: Watched) -> None:
    watched.monitor.start()
    with watched.monitor.paused():
        assert all(gpu.reader is None for gpu in watched.monitor._gpus)
    watched.host.strike(1, xid=31)
    await eventually(lambda: watched.faults, "the fault")


def test_nvmls_handles_are_compared_as_the_pointers_they_are() -> None:
    one, same, other = (ctypes.cast(address, pynvml.c_nvmlDevice_t) for address in (0x1000, 0x1000, 0x2000))
    assert _same_device(one, same)
    assert not _same_device(one, other)
    assert not _same_device(None, one)


def test_xid_43_counts_alone_and_is_ignored_after_another_fault(watched: Watched) -> None:
    first, second = watched.monitor._gpus[:2]
    watched.hears(first, 43)
    watched.hears(second, 31)
    watched.hears(second, 43)
    assert watched.seen == [(0, 43, "reset"), (1, 31, "reset")]


def test_an_nvlink_5_error_is_as_grave_as_the_kernels_log_says(watched: Watched) -> None:
    first, second, third = watched.monitor._gpus[:3]
    watched.hears(first, 145)  # from the event set, which knows no severity
    watched.hears(first, 145, fatal=True)  # the same a moment later from the log
    watched.hears(first, 145, fatal=True)
    watched.hears(second, 149, fatal=False)
    watched.hears(third, 31, fatal=True)  # says nothing for others
    assert watched.seen == [(0, 145, "watch"), (0, 145, "reset"), (1, 149, "watch"), (2, 31, "reset")]


def test_three_resets_on_a_host_keep_new_work_away_from_all_its_gpus(watched: Watched) -> None:
    for number, gpu in enumerate(watched.monitor._gpus[:3]):
        assert watched.monitor.degraded() == {}
        watched.hears(gpu, 48)
        history = watched.monitor._faults._history._faults[gpu.info.uuid]
        history[:] = [replace(past, at_ms=past.at_ms - 60_000 * (number + 1)) for past in history]
    degraded = watched.monitor.degraded()
    assert len(degraded) == 8
    assert degraded[watched.uuids[7]].startswith("GPUs of this host needed 3 resets within 24 h (limit 3)")
    watched.monitor.forget_resets_before(now_ms())
    assert watched.monitor.degraded() == {}
    for gpu in watched.monitor._gpus[3:5]:
        watched.hears(gpu, 48)
    assert watched.monitor.degraded() == {}


@given(st.lists(st.tuples(st.floats(0.1, 30), st.booleans()), max_size=60))
def test_throttling_changes_its_verdict_only_after_a_minute_of_the_opposite(readings: list[tuple[float, bool]]) -> None:
    throttle, now, since, last = ThrottleDetector(), 0.0, 0.0, False
    for elapsed, slowed in readings:
        now += elapsed
        if slowed != last:
            since, last = now, slowed
        before = throttle.holds
        held = throttle.look(now, slowed)
        assert held == (slowed if now - since >= 60 else before)

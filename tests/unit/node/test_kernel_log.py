"""XIDs from the kernel's log: their form, the real device, and what NVML has told already."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_platform.domain.hosts.faults import FaultAction
from gpu_platform.domain.hosts.gpu import HostInventory
from gpu_platform.domain.jobs.attempt import FaultReport
from gpu_platform.node.health.fault_policy import FaultPolicy, PastFault
from gpu_platform.node.health.health import HealthMonitor
from gpu_platform.node.health.kernel_log import parse, place_of
from tests.support.hosts_rig import HostRig

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"6,1,2,-;NVRM: Xid (PCI:0000:1b:00): 31, pid=77, name=python, Ch 00000008", ("0:1b:0", 31, False)),
        (b"6,1,2,-;NVRM: Xid (0000:03:00): 79, GPU has fallen off the bus.", ("0:3:0", 79, False)),
        (b"6,1,2,-;NVRM: Xid (PCI:0002:00:00): 149, NETIR_LINK_EVT Fatal", ("2:0:0", 149, True)),
        (b"6,1,2,-;NVRM: Xid (PCI:0002:00:00): 145, RLW_CTRL Nonfatal XC0 i0 Link 0", ("2:0:0", 145, False)),
        (b"6,1,2,-;NVRM: GPU at PCI:0000:1b:00: GPU-5a934f57", None),
        (b"6,1,2,-;usb 1-1: new device", None),
    ],
)
def test_the_drivers_lines(text: bytes, found: tuple[str, int, bool] | None) -> None:
    assert parse(text) == found
    assert place_of("00000000:1B:00.0") == place_of("0000:1b:00") == "0:1b:0"


class Watched:
    def __init__(self, tmp_path: Path, **options: Any) -> None:
        self.host = HostRig(tmp_path / "state")
        self.faults: list[FaultReport] = []
        # A PCI domain that no machine has: a node worker on this machine must not believe the test.
        gpus = [
            gpu.model_copy(update={"pci_bus_id": f"ffff:{gpu.index + 1:02x}:00.0"}) for gpu in self.host.inventory.gpus
        ]
        self.inventory: HostInventory = self.host.inventory.model_copy(update={"gpus": gpus})
        self.health = HealthMonitor(
            self.host.nvml,
            self.inventory,
            FaultPolicy.load("platform"),
            host="box",
            on_fault=self.faults.append,
            interval_s=0.02,
            **options,
        )


def test_an_xid_in_the_real_kernel_log_is_reported_once(tmp_path: Path) -> None:
    device = Path("/dev/kmsg")
    if not (os.access(device, os.R_OK) and os.access(device, os.W_OK)):
        pytest.skip("/dev/kmsg cannot be written here (root is needed)")
    watched = Watched(tmp_path, kernel_log=device)
    watched.health.start()
    try:

        def heard() -> bool:
            """The log has no signal for "somebody listens"; a line before that is rightly not ours."""
            device.write_text("<6>NVRM: Xid (PCI:ffff:03:00): 31, pid=1, name=test of gpu-platform\n")
            return bool(watched.faults)

        _until(heard)
        watched.host.strike(2, xid=31)  # and NVML tells the same
        watched.host.strike(4, xid=13)
        _until(lambda: len(watched.faults) == 2)
        assert [(fault.gpu_index, fault.xid) for fault in watched.faults] == [(2, 31), (4, 13)]
    finally:
        watched.health.stop()


def test_a_log_that_cannot_be_read_does_not_end_the_watch(tmp_path: Path) -> None:
    watched = Watched(tmp_path, kernel_log=tmp_path / "nothing")
    watched.health.start()
    try:
        watched.host.strike(1, xid=13)
        _until(lambda: watched.faults)
    finally:
        watched.health.stop()


def test_xid_45_is_no_news_after_our_own_kill_or_another_fault(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.health.start()
    try:
        watched.health.expect_kill([watched.inventory.gpus[0].uuid])
        watched.host.strike(0, xid=45)
        watched.host.strike(1, xid=13)
        watched.host.strike(1, xid=45)
        watched.host.strike(2, xid=45)
        _until(lambda: len(watched.faults) == 2)
        assert [(fault.gpu_index, fault.xid, fault.action) for fault in watched.faults] == [
            (1, 13, "fail_job"),
            (2, 45, "watch"),
        ]
    finally:
        watched.health.stop()


def test_a_gpu_that_was_reset_twice_today_is_not_reset_again() -> None:
    policy = FaultPolicy.load("platform")
    now = 100 * HOUR_MS
    first, second = PastFault(48, now - 5 * HOUR_MS, "reset"), PastFault(48, now - 2 * HOUR_MS, "reboot")
    same_incident = PastFault("ecc_uncorrectable", now - 2 * HOUR_MS + 1000, "reset")
    assert policy.action(48, history=[], now_ms=now) is FaultAction.RESET
    assert policy.action(48, history=[first], now_ms=now) is FaultAction.REBOOT
    assert policy.action(48, history=[first, second], now_ms=now) is FaultAction.SERVICE
    assert policy.action(48, history=[second, same_incident], now_ms=now) is FaultAction.REBOOT
    assert policy.action(48, history=[PastFault(48, now - 10_000, "reset")], now_ms=now) is FaultAction.RESET
    assert policy.action(48, history=[PastFault(48, now - 25 * HOUR_MS, "reset")], now_ms=now) is FaultAction.RESET
    assert policy.action(13, history=[first], now_ms=now) is FaultAction.FAIL_JOB


def test_a_programs_mistake_never_takes_a_gpu_away() -> None:
    policy = FaultPolicy.load("platform")
    history = [PastFault(31, hour * HOUR_MS, "reset") for hour in range(10)]
    assert policy.action(31, history=history, now_ms=11 * HOUR_MS) is FaultAction.RESET
    assert policy.action(48, history=history, now_ms=11 * HOUR_MS) is FaultAction.RESET


def test_an_operator_may_reset_for_ever(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("reset_escalation: {}\n")
    history = [PastFault(48, hour * HOUR_MS, "reset") for hour in range(10)]
    assert FaultPolicy.load(str(file)).action(48, history=history, now_ms=11 * HOUR_MS) is FaultAction.RESET


def _until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)

"""The policy table and how it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.hosts.faults import FaultAction as A
from gpu_platform.node.health.fault_policy import FaultPolicy, PastFault

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("xid", "platform", "vendor"),
    [
        (13, A.FAIL_JOB, A.FAIL_JOB),
        (31, A.RESET, A.FAIL_JOB),
        (43, A.RESET, A.NONE),
        (45, A.WATCH, A.NONE),
        (48, A.RESET, A.RESET),
        (63, A.WATCH, A.NONE),
        (79, A.REBOOT, A.REBOOT),
        (94, A.RESET, A.FAIL_JOB),
        (95, A.RESET, A.RESET),
        (109, A.FAIL_JOB, A.RESET),
        (119, A.RESET, A.RESET),
        (137, A.FAIL_JOB, A.NONE),
        (9999, A.WATCH, A.WATCH),
    ],
)
def test_what_the_two_policies_do(xid: int, platform: A, vendor: A) -> None:
    assert FaultPolicy.load("platform").action(xid) is platform
    assert FaultPolicy.load("vendor").action(xid) is vendor


def test_repetition_on_one_gpu_escalates_within_a_day() -> None:
    policy = FaultPolicy.load("platform")
    now = 100 * HOUR_MS
    recent = [PastFault(13, now - HOUR_MS), PastFault(13, now - 2 * HOUR_MS)]
    assert policy.action(13, history=recent, now_ms=now) is A.RESET
    assert policy.action(13, history=recent[:1], now_ms=now) is A.FAIL_JOB
    assert policy.action(69, history=recent, now_ms=now) is A.FAIL_JOB
    old = [PastFault(13, now - 25 * HOUR_MS)] * 5
    assert policy.action(13, history=old, now_ms=now) is A.FAIL_JOB
    assert policy.action(79, history=[PastFault(79, now - 1)], now_ms=now) is A.SERVICE


@pytest.mark.parametrize(("verdict", "action"), [(0, A.FAIL_JOB), (1, A.RESET), (2, A.REBOOT), (7, A.REBOOT)])
def test_the_drivers_own_verdict_wins(verdict: int, action: A) -> None:
    assert FaultPolicy.load("platform").action(13, recovery_action=verdict) is action


def test_an_operators_file_changes_only_what_it_names(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(
        "extends: platform\n"
        "xids: {31: fail_job, 48: {do: reset, times: 2, then: service}}\n"
        "conditions: {gpu_lost: service}\n"
        "unknown: fail_job\n"
    )
    policy = FaultPolicy.load(str(file))
    assert policy.action(31) is A.FAIL_JOB
    assert policy.action(48, history=[PastFault(48, 0)]) is A.SERVICE
    assert policy.action("gpu_lost") is A.SERVICE
    assert policy.action(9999) is A.FAIL_JOB
    assert policy.action(95) is A.RESET
    assert policy.describe(31) == "XID 31 (MMU page fault)"


@pytest.mark.parametrize(
    "text",
    [
        "xids: {31: explode}",
        "extends: nothing",
        "xidz: {}",
        "xids: {31: {do: reset, times: 1, then: service}}",
        "[",
        "7",
    ],
)
def test_a_bad_file_is_refused_and_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match=r"policy\.yaml"):
        FaultPolicy.load(str(file))


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="nowhere"):
        FaultPolicy.load("/nowhere/policy.yaml")

"""The fault history: ids, restarts, damage."""

from __future__ import annotations

import json
from pathlib import Path

from gpu_platform.domain.jobs.attempt import FaultReport
from gpu_platform.node.health import fault_history as history_module
from gpu_platform.node.health.fault_history import FaultHistory
from gpu_platform.node.health.fault_policy import PastFault


def report(history: FaultHistory, gpu: str, at_ms: int) -> FaultReport:
    return FaultReport(
        fault_id=history.next_id(gpu),
        host="h",
        gpu_uuid=gpu,
        gpu_index=0,
        xid=31,
        action="reset",
        message="",
        at_ms=at_ms,
    )


def test_an_id_is_the_same_until_the_fault_is_recorded_and_never_again(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history = FaultHistory(path)
    ids = []
    for at_ms in range(3):
        ids.append(history.next_id("g"))
        assert FaultHistory(path).next_id("g") == ids[-1]
        history.append(report(history, "g", at_ms), 31)
    assert len({*ids, history.next_id("g"), history.next_id("other")}) == 5
    assert "/" not in ids[0]
    assert FaultHistory().next_id("g") != FaultHistory().next_id("g")  # without a file ids must not repeat either


def test_what_was_recorded_is_there_after_a_restart_and_a_torn_line_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history = FaultHistory(path)
    history.append(report(history, "g", 7), 31)
    history.append(report(history, "g", 8), "gpu_lost")
    history.append(report(history, "g", 9), "remap_pending")
    history.clear("g", "gpu_lost")
    with path.open("a") as file:
        file.write('{"uuid": "g", "numb')
    again = FaultHistory(path)
    assert again.of("g") == (
        PastFault(31, 7, "reset"),
        PastFault("gpu_lost", 8, "reset"),
        PastFault("remap_pending", 9, "reset"),
    )
    assert again.standing("g") == {"remap_pending"}
    assert again.next_id("g") == history.next_id("g")
    again.append(report(again, "g", 10), 48)
    assert FaultHistory(path).of("g")[-1] == PastFault(48, 10, "reset")


def test_a_long_history_is_shortened_without_forgetting_numbers_or_conditions(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history = FaultHistory(path)
    history.append(report(history, "g", 1), "remap_pending")
    lines = [{"uuid": "g", "number": n, "cause": 13, "at_ms": n} for n in range(2, history_module._KEPT_LINES + 5)]
    with path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    shortened = FaultHistory(path)
    assert len(path.read_text().splitlines()) < 300
    again = FaultHistory(path)
    assert again.next_id("g") == shortened.next_id("g")
    assert again.of("g") == shortened.of("g")


def test_old_faults_are_forgotten_when_it_is_opened_and_numbers_go_on(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history = FaultHistory(path)
    for at_ms in (1_000, 2_000, 3_000):
        report = FaultReport(
            fault_id="", host="a", gpu_uuid="G", gpu_index=0, xid=13, action="watch", message="", at_ms=at_ms
        )
        history.append(report, 13)
    name = history.next_id("G")
    again = FaultHistory(path, forget_before_ms=2_500)
    assert [fault.at_ms for fault in again.of("G")] == [3_000]
    assert again.next_id("G") == name
    assert [fault.at_ms for fault in FaultHistory(path).of("G")] == [3_000]
    assert FaultHistory(path, forget_before_ms=9_000).next_id("G") == name

"""Formats of Slurm's lists, and what states, reasons and times of our jobs are in Slurm's words."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_platform.cli.slurm import job_lists, job_rows, sacct, squeue
from gpu_platform.cli.slurm.formats import letters, lines, long_names, of_sacct
from gpu_platform.slurm.getopt import WrongOption
from gpu_platform.slurm.ids import number_of

ID = "j-1m8bmqtj2n9vtab"
NUMBER = number_of(ID)


def job(state: str = "RUNNING", **changes: Any) -> dict[str, Any]:
    spec = {
        "name": "a-very-long-name",
        "user": "ada",
        "namespace": "default",
        "command": ["/bin/true"],
        "time_limit_s": 5400,
        "gpus": {"hosts": 2, "gpus_per_host": 4, "total": None, "cpus_per_host": 0, "ram_mib_per_host": 65536},
    }
    slices = [{"host": "n01", "cpus": 0}, {"host": "n02", "cpus": 0}]
    return {
        "id": ID,
        "spec": spec,
        "state": state,
        "attempt": 1,
        "placement": {"slices": slices},
        "created_at": "2026-12-01T08:00:00Z",
        "started_at": "2026-12-01T09:00:00Z",
        "finished_at": "2026-12-01T09:01:05Z",
        **changes,
    }


def shown(format_text: str, one: dict[str, Any]) -> str:
    [line] = lines(letters(format_text, squeue.LETTERS), [one], header=False)
    return line


def test_widths_cut_all_but_ids() -> None:
    assert shown("%.4i|%.8j|%5u|%t|%", job()) == f"{NUMBER}|a-very-l|ada  |R|%"
    assert shown("%M %l %D %N %b", job()) == "1:05 1:30:00 2 n[01-02] gres/gpu:4"


def test_names_have_twenty_columns_unless_they_say_more() -> None:
    cells = long_names("State,Name:6,NumNodes:.4", squeue.NAMES)
    assert list(lines(cells, [job()])) == [
        "STATE".ljust(20) + "NAME  " + "NODE",
        "RUNNING".ljust(20) + "a-very" + "   2",
    ]


def test_columns_of_sacct() -> None:
    assert list(lines(of_sacct("jobname%8,state", sacct.COLUMNS, None, False), [job()], header=False)) == [
        "a-very-+    RUNNING "
    ]
    for last, end in ((True, "|"), (False, "")):
        cells = of_sacct("JobID,ExitCode", sacct.COLUMNS, "|", last)
        assert list(lines(cells, [job("FAILED", exit_code=137)])) == [f"JobID|ExitCode{end}", f"{NUMBER}|0:9{end}"]


@pytest.mark.parametrize("wrong", ["%9", "%.8W", "JobId:x:y"])
def test_a_wrong_format_is_named(wrong: str) -> None:
    if wrong == "%9":
        assert shown(wrong, job()) == "%9"
        return
    with pytest.raises(WrongOption):
        (letters if wrong.startswith("%") else long_names)(wrong, squeue.LETTERS if "%" in wrong else {})


def test_every_field_can_be_named() -> None:
    for name in squeue.NAMES:
        assert long_names(name, squeue.NAMES)
    for name in sacct.COLUMNS:
        assert of_sacct(name, sacct.COLUMNS, None, False)


def test_a_near_field_is_proposed() -> None:
    with pytest.raises(WrongOption, match="the nearest is nodelist"):
        long_names("NodList", squeue.NAMES)


@pytest.mark.parametrize(
    ("changes", "state", "short", "reason"),
    [
        ({"state": "QUEUED", "reason": {"code": "waiting_for_gpus"}}, "PENDING", "PD", "(Resources)"),
        ({"state": "QUEUED", "reason": {"code": "held"}}, "PENDING", "PD", "(JobHeldUser)"),
        ({"state": "PENDING", "reason": {"code": "dependency"}}, "PENDING", "PD", "(Dependency)"),
        ({"state": "STARTING"}, "CONFIGURING", "CF", "n[01-02]"),
        ({"state": "RUNNING"}, "RUNNING", "R", "n[01-02]"),
        ({"state": "FAILED", "failure": {"kind": "time_limit"}}, "TIMEOUT", "TO", "(TimeLimit)"),
        ({"state": "FAILED", "failure": {"kind": "hardware"}}, "NODE_FAIL", "NF", "(NodeDown)"),
        ({"state": "FAILED", "failure": {"kind": "user"}}, "FAILED", "F", "(NonZeroExitCode)"),
        ({"state": "CANCELLED"}, "CANCELLED", "CA", "n[01-02]"),
    ],
)
def test_states_and_reasons(changes: dict[str, Any], state: str, short: str, reason: str) -> None:
    assert shown("%T %t %R", job(**changes)) == f"{state} {short} {reason}"
    assert job_rows.has_state(job(**changes), short.lower().upper())
    assert job(**changes)["state"] in (job_rows.our_states(short) or ())


def test_a_terminal_is_not_obeyed() -> None:
    spec = {**job()["spec"], "name": "a\x1b]0;x\x07\nb"}
    assert shown("%j", job(spec=spec)) == "a\\x1b]0;x\\x07\\nb"


def test_an_array_is_one_line_for_what_is_still_to_come() -> None:
    array = {"id": "a-1", "state": "RUNNING", "counts": {}, "array": {"indices": "0-9", "at_once": 4}}
    whole = {**job(), **array, "waiting_indices": "7-9"}
    assert shown("%i %t %K", whole) == "a-1_[7-9%4] PD N/A"
    assert shown("%i %F %K", job(id="a-1.3")) == "a-1_3 a-1 3"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("j-1,a-2_7", ["j-1", "a-2.7"]),
        ("a-2_[1-3,9]", ["a-2.1", "a-2.2", "a-2.3", "a-2.9"]),
        ("j-1.batch", ["j-1"]),
        ("a-2.7", ["a-2.7"]),
    ],
)
def test_ids_are_read_as_they_are_printed(text: str, found: list[str]) -> None:
    assert job_lists.ids(text) == found


@pytest.mark.parametrize("text", ["123", "a-2_[0-99999999]", "j-1;rm", "../x", "a-2_["])
def test_what_is_no_id(text: str) -> None:
    with pytest.raises(ValueError, match=r"id of a job|indices|elements|large|range"):
        job_lists.ids(text)

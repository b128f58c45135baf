"""What ``--compare`` may say: files, orders, and any settings over the given policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.scheduling.simulator.inputs.policies import policies_to_compare


def test_settings_are_a_variant_of_the_given_policy_with_its_own_settings(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("backfill: keep\nmin_run_s: 5\n")
    given, variant = policies_to_compare(
        str(file), ["backfill=conservative, order=fair_share"], ["min_run_s=7", "backfill_depth=9"]
    )
    assert (given.name, given.policy.backfill, given.policy.order) == ("mine", "keep", "priority")
    assert variant.name == "backfill=conservative, order=fair_share"
    assert (variant.policy.backfill, variant.policy.order) == ("conservative", "fair_share")
    assert (variant.policy.min_run_s, variant.policy.backfill_depth) == (7, 9)


def test_commas_inside_a_value_do_not_end_a_setting() -> None:
    _, variant = policies_to_compare("default", ["weights={topology: 3, strategy: 1},order=fcfs,typical_sizes={1: 2}"])
    assert (variant.policy.weights, variant.policy.order) == ({"topology": 3, "strategy": 1}, "fcfs")
    assert variant.policy.typical_sizes == {1: 2}


def test_an_order_alone_keeps_the_backfill_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("backfill: none\n")
    _, fcfs, live = policies_to_compare(str(file), ["fcfs", str(file)])
    assert (fcfs.policy.order, fcfs.policy.backfill) == ("fcfs", "easy")
    assert "its backfill is still easy" in fcfs.note
    assert "compare order=fcfs,backfill=none" in fcfs.note
    assert live.note == ""
    _, fair = policies_to_compare("default", ["fair_share"], default={"backfill": "conservative"})
    assert fair.note == "fair_share is the snapshot's policy with order=fair_share: its backfill is still conservative"


def test_equal_names_are_told_apart() -> None:
    names = [one.name for one in policies_to_compare("default", ["fcfs", "fcfs", "default"])]
    assert names == ["default", "fcfs", "fcfs (2)", "default (2)"]


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ("backfil=none", "has no 'backfil'; there is: order,.*backfill"),
        ("backfill=slow", "there is no backfill 'slow'; there are: easy, conservative"),
        ("order=lifo,backfill=none", "there is no queue order 'lifo'; there are: priority"),
        ("lifo", "there is no queue order 'lifo'; there are: priority.*there is no file lifo"),
        ("min_run_s=soon", "min_run_s: Input should be a valid number"),
        ("defragmentation_budget.job=1", "defragmentation_budget has no 'job'; there is: jobs, lost_gpu_s"),
        ("quotas.namespaces=[{name: a, wait: 3}]", "quotas.namespaces has no 'wait'; there is: name, parent"),
        ("typical_tasks=[{gpuz: 1}]", "typical_tasks has no 'gpuz'; there is: gpus"),
        ("domain_weights={level: 1}", "domain_weights has no 'level'; there is:"),
        ("backfill=easy,=x", "there is no backfill 'easy,=x'"),
    ],
)
def test_an_unknown_setting_or_value_is_refused_with_what_there_is(other: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        policies_to_compare("default", [other])

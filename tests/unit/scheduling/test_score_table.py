"""Why there: the placement shows what the winner and the runners-up were worth."""

from __future__ import annotations

import pytest

from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.scheduling.plugins.gang import DOMAIN_WEIGHTS
from gpu_platform.scheduling.policy import WEIGHTS, Policy
from tests.builders import cluster, job


def placed(machines: cluster, wanted: job, policy: Policy | None = None) -> Placement:
    scheduler = machines.scheduler(policy)
    scheduler.add(wanted.row)
    ((_, placement),) = scheduler.decide(0.0).placements
    return placement


def test_the_winner_is_first_and_the_others_are_counted() -> None:
    machines = cluster().hosts(6).busy("dgx-h100-4", 0, 1, 2, 3).busy("dgx-h100-2", 0, 1)
    placement = placed(machines, job(2))
    assert [row.candidate for row in placement.scores.rows] == ["dgx-h100-2", "dgx-h100-4", "dgx-h100-0"]
    assert placement.hosts == ["dgx-h100-2"]
    assert placement.scores.others == 3
    assert placement.scores.rows[0].total == placement.score


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
def test_the_parts_add_up_and_the_order_is_that_of_the_totals(weights: dict[str, float]) -> None:
    machines = cluster().hosts(3).hosts(2, "dgx-a100-40gb").busy("dgx-h100-0", 0).busy("dgx-a100-40gb-1", 3, 4)
    rows = placed(machines, job(3), Policy(weights=weights)).scores.rows
    assert len(rows) == 3
    for row in rows:
        assert sum(row.parts.values()) == pytest.approx(row.total, abs=1e-5)
        assert {name for name, weight in weights.items() if weight} <= set(row.parts)
    totals = [row.total for row in rows]
    assert totals == sorted(totals, reverse=True)


def test_of_a_gang_the_domains_are_shown() -> None:
    machines = cluster().hosts(4, leaf="wide").hosts(2, leaf="tight").hosts(1, leaf="small")
    table = placed(machines, job(8, hosts=2)).scores
    assert [row.candidate for row in table.rows] == ["leaf tight", "leaf wide"]
    assert table.rows[0].parts["resources"] == DOMAIN_WEIGHTS.resources, "the gang fills the leaf"
    assert table.rows[1].parts["resources"] == DOMAIN_WEIGHTS.resources / 2.0, "it fills half of it"
    assert table.others == 0


def test_domains_of_one_name_are_told_apart_by_their_gpus() -> None:
    machines = cluster().hosts(2, leaf="l").hosts(2, "dgx-1v", leaf="l")
    assert [row.candidate for row in placed(machines, job(8, hosts=2)).scores.rows] == [
        "leaf l, NVIDIA H100 80GB HBM3",
        "leaf l, Tesla V100-SXM2-32GB",
    ]


def test_domains_without_a_name_are_called_after_what_is_in_them() -> None:
    apart = cluster().hosts(2, leaf="l").hosts(1, "dgx-1v", leaf="m")
    assert placed(apart, job(8, hosts=2)).scores.rows[0].candidate == "leaf l"
    assert placed(apart, job(8, hosts=3)).scores.rows[0].candidate == "all hosts"
    unknown = cluster().hosts(2)
    assert placed(unknown, job(8, hosts=2)).scores.rows[0].candidate == "all hosts"
    joined = cluster().hosts(1, leaf="l", spine="s").hosts(1, leaf="m", spine="s")
    assert placed(joined, job(8, hosts=2)).scores.rows[0].candidate == "spine s"
    snapshot = apart.scheduler().snapshot
    assert snapshot.domain_name("spine", 0) == "spine of leaf l"
    assert unknown.scheduler().snapshot.domain_name("leaf", 1) == "leaf of dgx-h100-1"

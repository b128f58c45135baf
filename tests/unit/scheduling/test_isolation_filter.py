"""A job that requires isolation goes where the kernel isolates ranks, or is told that no host does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_platform.domain.hosts.gpu import ISOLATED
from gpu_platform.domain.jobs.placement import ReasonCode
from gpu_platform.domain.jobs.rank_group import RankGroup
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.placing.capacity import largest_gang
from gpu_platform.domain.placing.placement_request import PlacementRequest
from tests.builders import cluster


def spec(**fields: object) -> JobSpec:
    return JobSpec.model_validate({"command": ["true"], "gpus": {"gpus_per_host": 1}, **fields})


def request(**fields: object) -> PlacementRequest:
    return PlacementRequest.from_spec(spec(**fields), "j", 1, 0.0).with_class_key()


def hosts(*isolated: str) -> cluster:
    machines = cluster().host("a", "dgx-h100").host("b", "dgx-h100")
    for name, row in list(machines.host_rows.items()):
        isolation = {"isolation": ISOLATED} if name in isolated else {}
        inventory = row.inventory.model_copy(update={"cpus": 8, "ram_mib": 1024, **isolation})
        machines.host_rows[name] = replace(row, inventory=inventory)
    return machines


@pytest.mark.parametrize("gpus", [{"gpus_per_host": 1}, {"total": 2}, {"cpus_per_host": 1}])
def test_it_is_placed_where_ranks_are_isolated(gpus: dict[str, int]) -> None:
    scheduler = hosts("b").scheduler()
    scheduler.add(request(gpus=gpus, require_isolation=True))
    [(_, placement)] = scheduler.decide(0.0).placements
    assert placement.hosts == ["b"]


def test_it_waits_with_words_where_the_only_isolated_host_is_busy() -> None:
    scheduler = hosts("b").busy("b").scheduler()
    scheduler.add(request(require_isolation=True))
    decision = scheduler.decide(0.0)
    assert not decision.placements
    [reason] = decision.reasons.values()
    assert (ReasonCode.NOT_ISOLATED, 1) in {(count.code, count.hosts) for count in reason.counts}
    assert "1 without isolation (ranks are plain processes there)" in reason.message


def test_a_cluster_without_any_isolated_host_refuses_it_and_says_what_to_do() -> None:
    plain = [row.inventory for row in hosts().host_rows.values()]
    mixed = [row.inventory for row in hosts("a").host_rows.values()]
    for gpus in ({"gpus_per_host": 1}, {"total": 2}, {"cpus_per_host": 1}):
        asked = ResourceRequest.model_validate({**gpus, "isolated": True})
        refused = largest_gang(plain, asked)
        assert not refused.fits
        assert "no host isolates ranks: set node.isolation to required" in refused.message
        assert largest_gang(mixed, asked).fits


def test_every_group_of_the_job_is_isolated() -> None:
    group = {"gpus": {"gpus_per_host": 1}}
    groups = [{"name": "actors", **group}, {"name": "learners", **group}]
    found = request(gpus={}, groups=groups, require_isolation=True)
    assert [one.isolated for one in found.requests] == [True, True]
    assert RankGroup.model_validate(groups[0]).gpus.isolated is False


def test_who_requires_isolation_asks_for_something_else() -> None:
    assert spec(require_isolation=True).model_dump()["require_isolation"] is True
    assert request().class_key != request(require_isolation=True).class_key

"""What can never start is told at once, with what would do; what only has to wait is not refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.scheduling.explaining.empty_cluster import EmptyCluster
from gpu_platform.scheduling.policy import Policy
from gpu_platform.topology.fabric import FabricConfig
from tests.builders import cluster, job


def refusal(machines: cluster, wanted: job, policy: Policy | None = None) -> str | None:
    return EmptyCluster(machines.host_rows.values(), policy or Policy()).refusal(wanted.row)


def test_an_unknown_level_is_refused_with_the_levels_there_are() -> None:
    said = "there is no level 'rack': require one of numa, socket, host, nvlink, leaf, spine, any, or none"
    for wanted in (job(2, hosts=2).requires("rack"), job(1).requires("rack")):
        assert said in (refusal(cluster().hosts(2), wanted) or "")
    assert refusal(cluster().hosts(2), job(2, hosts=2).requires("rack"), Policy(fabric=_RACKS)) == (
        "asked for 2 hosts x 2 GPUs under one rack; of 2 such hosts, at most 1 is in one rack: "
        "ask for at most 1 host, or require no rack"
    )
    racked = cluster().host("a", rack="r1").host("b", rack="r1")
    assert refusal(racked, job(2, hosts=2).requires("rack"), Policy(fabric=_RACKS)) is None


def test_nvlink_over_hosts_that_it_does_not_join() -> None:
    assert refusal(cluster().hosts(2), job(8, hosts=2).requires("nvlink")) == (
        "asked for 2 hosts x 8 GPUs of one NVLink domain; of 2 such hosts, at most 1 is in one NVLink domain: "
        "ask for at most 1 host, or require no nvlink"
    )
    assert refusal(cluster().rack("r1"), job(4, hosts=2).requires("nvlink")) is None


def test_gpus_that_nothing_joins() -> None:
    said = refusal(cluster().hosts(1, "rtx4090-8x-all-sys"), job(8))
    assert said is not None
    assert said.endswith("ask for at most 4 GPUs per host, or allow_cross_numa (--allow-cross-numa)")
    assert refusal(cluster().hosts(1, "rtx4090-8x-all-sys"), job(8).across_sockets()) is None
    required = refusal(cluster().hosts(1, "rtx4090-8x-all-sys"), job(2).requires("nvlink"))
    assert required == (
        "asked for 2 GPUs of one NVLink ring; no host can give that: ask for fewer GPUs per host, or require no nvlink"
    )


def test_a_total_that_no_leaf_can_give() -> None:
    machines = cluster().hosts(2, leaf="a").hosts(1, leaf="b")
    total = replace(job().row, resources=ResourceRequest(total=24, required_level="leaf"))
    said = EmptyCluster(machines.host_rows.values(), Policy()).refusal(total)
    assert said == (
        "asked for 24 GPUs in all under one leaf; at most 16 are to be had so: ask for at most 16 GPUs, "
        "or require no leaf"
    )


def test_groups_that_fit_one_by_one_only() -> None:
    eight = ResourceRequest(gpus_per_host=8)
    row = replace(job().row, resources=eight, groups=(("a", eight), ("b", eight)))
    said = EmptyCluster(cluster().hosts(1).host_rows.values(), Policy()).refusal(row)
    assert said is not None
    assert said.endswith("each of which would fit, but never all at once: ask for less, or add hosts")


@pytest.mark.parametrize("wanted", [job(8, hosts=2).requires("leaf"), job(16 // 2), job(4, hosts=2)])
def test_what_only_waits_is_let_through(wanted: job) -> None:
    machines = cluster().hosts(2, leaf="a").busy("dgx-h100-0").lost("dgx-h100-1").broken("dgx-h100-0", 3)
    assert refusal(machines, wanted) is None


def test_a_gpu_that_vanished_may_come_back() -> None:
    [whole] = cluster().hosts(1).host_rows.values()
    left = whole.inventory.model_copy(update={"gpus": whole.inventory.gpus[:7]})
    row = replace(whole, inventory=left)
    assert EmptyCluster([row], Policy()).refusal(job(8).row) is not None
    damaged = EmptyCluster([row], Policy(), {row.name: whole.inventory})
    assert damaged.refusal(job(8).row) is None
    assert damaged.refusal(job(9).row) is not None


def test_before_the_first_host_anything_may_wait() -> None:
    assert refusal(cluster(), job(8, hosts=64).requires("rack")) is None


def test_a_host_that_has_not_told_its_cpus_may_have_them() -> None:
    row = replace(job().row, resources=ResourceRequest(cpus_per_host=8))
    assert EmptyCluster(cluster().hosts(1).host_rows.values(), Policy()).refusal(row) is None
    assert EmptyCluster(cluster().cpu_host("c", cpus=4).host_rows.values(), Policy()).refusal(row) is not None


_RACKS = FabricConfig(levels=("leaf", "rack", "spine"))

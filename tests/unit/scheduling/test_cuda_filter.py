"""A job that asks for a CUDA installation goes where there is one, or is told where there is not."""

from __future__ import annotations

from dataclasses import replace

from gpu_platform.domain.capacity import largest_gang
from gpu_platform.domain.gpu import HostInventory
from gpu_platform.domain.job import GpuRequest
from gpu_platform.domain.placement import ReasonCode
from gpu_platform.topology.description import load_description
from tests.builders import cluster, job


def host(**cuda: str) -> HostInventory:
    versions = {version.removeprefix("v").replace("_", "."): path for version, path in cuda.items()}
    return load_description("dgx-h100").inventory("a").model_copy(update={"cuda_installations": versions})


def test_what_no_host_has_is_refused_with_what_there_is() -> None:
    hosts = [host(v11_8="/a"), host(v12_4="/b", v11_8="/a"), host()]
    assert largest_gang(hosts, GpuRequest(cuda="12.4")).fits
    assert largest_gang(hosts, GpuRequest(cuda="11.8", hosts=2)).fits
    capacity = largest_gang(hosts, GpuRequest(cuda="13.0"))
    assert not capacity.fits
    assert "no host has CUDA 13.0, only 11.8, 12.4" in capacity.message


def test_it_is_placed_where_it_is_and_waits_with_words_where_it_is_busy() -> None:
    machines = cluster().hosts(2).host("b", "dgx-h100")
    for name, version in (("b", "12.4"), ("dgx-h100-0", "11.8")):
        row = machines.host_rows[name]
        inventory = row.inventory.model_copy(update={"cuda_installations": {version: f"/usr/local/cuda-{version}"}})
        machines.host_rows[name] = replace(row, inventory=inventory)
    first = job().cuda("12.4")
    scheduler = machines.scheduler()
    scheduler.add(first.row)
    [(_, placement)] = scheduler.decide(0.0).placements
    assert placement.hosts == ["b"]

    second = job().cuda("12.4")
    scheduler = machines.busy("b").scheduler()
    scheduler.add(second.row)
    decision = scheduler.decide(0.0)
    [reason] = decision.reasons.values()
    found = {count.code: (count.hosts, count.asked, count.available) for count in reason.counts}
    assert found[ReasonCode.NO_CUDA] == (2, "CUDA 12.4", "11.8")
    assert "2 without CUDA 12.4 (there is 11.8)" in reason.message

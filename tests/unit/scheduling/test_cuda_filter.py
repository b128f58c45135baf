"""A job that asks for a CUDA installation goes where there is one, or is told where there is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_platform.domain.hosts.gpu import HostInventory
from gpu_platform.domain.jobs.placement import ReasonCode
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.placing.capacity import largest_gang
from gpu_platform.topology.description import load_description
from tests.builders import cluster, job


def host(**cuda: str) -> HostInventory:
    versions = {version.removeprefix("v").replace("_", "."): path for version, path in cuda.items()}
    return load_description("dgx-h100").inventory("a").model_copy(update={"cuda_installations": versions})


def test_what_no_host_has_is_refused_with_what_there_is() -> None:
    hosts = [host(v11_8="/a"), host(v12_4="/b", v11_8="/a"), host()]
    assert largest_gang(hosts, ResourceRequest(gpus_per_host=1, cuda="12.4")).fits
    assert largest_gang(hosts, ResourceRequest(gpus_per_host=1, cuda="11.8", hosts=2)).fits
    capacity = largest_gang(hosts, ResourceRequest(gpus_per_host=1, cuda="13.0"))
    assert not capacity.fits
    assert "no host has CUDA 13.0, only 11.8, 12.4" in capacity.message


def test_a_cluster_without_any_is_said_in_words() -> None:
    for request in (ResourceRequest(gpus_per_host=1, cuda="99.1"), ResourceRequest(total=4, cuda="99.1")):
        capacity = largest_gang([host()], request)
        assert not capacity.fits
        assert capacity.message.endswith("install one, and name its directory in node.cuda_roots of the host")


def test_what_is_installed_but_too_new_for_the_driver_is_named_with_the_reason() -> None:
    too_new = host(v12_4="/b").model_copy(update={"unusable_cuda": {"13.0": "its driver runs CUDA up to 12.8"}})
    capacity = largest_gang([too_new, host()], ResourceRequest(gpus_per_host=1, cuda="13.0"))
    assert not capacity.fits
    assert capacity.message.endswith(
        "; a host has CUDA 13.0, but its driver runs CUDA up to 12.8: ask for one of 12.4, or install a newer driver "
        "or cuda-compat there"
    )
    assert largest_gang([too_new, host(v13_0="/c")], ResourceRequest(gpus_per_host=1, cuda="13.0")).fits


def test_the_explanation_names_what_the_driver_cannot_run() -> None:
    machines = cluster().hosts(1).host("b", "dgx-h100")
    old = machines.host_rows["dgx-h100-0"]
    unusable = {"cuda_installations": {"12.4": "/a"}, "unusable_cuda": {"13.0": "its driver runs CUDA up to 12.8"}}
    machines.host_rows["dgx-h100-0"] = replace(old, inventory=old.inventory.model_copy(update=unusable))
    new = machines.host_rows["b"]
    usable = new.inventory.model_copy(update={"cuda_installations": {"13.0": "/b"}})
    machines.host_rows["b"] = replace(new, inventory=usable)
    scheduler = machines.busy("b").scheduler()
    scheduler.add(job().cuda("13.0").row)
    [reason] = scheduler.decide(0.0).reasons.values()
    assert "1 without CUDA 13.0 (there is 12.4; too new for the driver: 13.0)" in reason.message


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


def test_a_major_version_or_a_least_one_will_do() -> None:
    machines = cluster().hosts(1).host("b", "dgx-h100")
    for name, version in (("b", "12.10"), ("dgx-h100-0", "11.8")):
        row = machines.host_rows[name]
        inventory = row.inventory.model_copy(update={"cuda_installations": {version: f"/usr/local/cuda-{version}"}})
        machines.host_rows[name] = replace(row, inventory=inventory)
    for wanted, hosts in (("12", ["b"]), (">=12.4", ["b"]), ("11", ["dgx-h100-0"])):
        scheduler = machines.scheduler()
        scheduler.add(job().cuda(wanted).row)
        [(_, placement)] = scheduler.decide(0.0).placements
        assert placement.hosts == hosts, wanted
    assert not largest_gang(
        [row.inventory for row in machines.host_rows.values()], ResourceRequest(gpus_per_host=1, cuda=">=13")
    ).fits


def test_what_is_no_version_is_answered_in_words() -> None:
    assert ResourceRequest(gpus_per_host=1, cuda=">= 12.4").cuda == ">=12.4"
    for text in ("twelve", "12.4.1", "<12", ""):
        with pytest.raises(ValueError, match=r"is no CUDA version: write 12 \(any 12.x\), 12.4, or >=12.4"):
            ResourceRequest(gpus_per_host=1, cuda=text)


def test_a_job_that_names_cuda_does_not_get_the_hosts_of_one_that_does_not() -> None:
    machines = cluster().host("a", "dgx-h100").host("b", "dgx-h100")
    for name, version in (("a", "11.8"), ("b", "12.4")):
        row = machines.host_rows[name]
        inventory = row.inventory.model_copy(update={"cuda_installations": {version: f"/usr/local/cuda-{version}"}})
        machines.host_rows[name] = replace(row, inventory=inventory)
    scheduler = machines.scheduler()
    scheduler.add(job(1).row)
    [(_, first)] = scheduler.decide(0.0).placements
    assert first.hosts == ["a"]
    scheduler.add(job(1).cuda("12.4").row)
    [(_, second)] = scheduler.decide(1.0).placements
    assert second.hosts == ["b"]

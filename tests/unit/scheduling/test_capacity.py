from __future__ import annotations

from typing import Any

import pytest

from gpu_platform.domain.hosts.share import Share
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.placing.capacity import Capacity, capability, largest_gang
from tests.builders import cluster, job


def capacity(machines: cluster, wanted: job) -> Capacity:
    return largest_gang([row.inventory for row in machines.host_rows.values()], wanted.request)


@pytest.mark.parametrize(
    ("wanted", "advice"),
    [
        (job(9), "the largest host has 8 such GPUs on one socket or NVLink island: ask for at most 8 GPUs per host"),
        (
            job(16),
            "at most 8 GPUs per host, or for 16 in all on several hosts (total 16, --total 16), or for 2 hosts x 8 ",
        ),
        (job(16), "(--hosts 2 --gpus-per-host 8)"),
        (job(8, hosts=3), "only 2 of 3 hosts could ever hold 8 such GPUs: ask for at most 2 hosts"),
        (job(3).needs(model="L40S"), "ask for at most 2 GPUs per host, or allow_cross_numa (--allow-cross-numa)"),
        (job(5).needs(model="L40S").across_sockets(), "the largest host has 4 such GPUs: ask for at most 4"),
        (job().needs(memory_gib=999), "the cluster has no such GPU, only NVIDIA H100 80GB HBM3 (81559 MiB"),
    ],
)
def test_a_refusal_says_what_the_cluster_could_hold(wanted: job, advice: str) -> None:
    answer = capacity(cluster().hosts(2).host("ada", "l40s-4x-dual-socket"), wanted)
    assert not answer.fits
    assert advice in answer.message


def test_more_gpus_than_the_cluster_has_are_not_promised_on_several_hosts() -> None:
    assert "--total" not in capacity(cluster().hosts(1), job(16)).message
    assert "--total" not in capacity(cluster().hosts(2), job(16).requires("host")).message


def test_what_fits_is_let_through_whatever_is_free() -> None:
    answer = capacity(cluster().hosts(2).lost("dgx-h100-0").busy("dgx-h100-1"), job(8, hosts=2))
    assert (answer.fits, answer.hosts, answer.gpus_per_host, answer.gpus) == (True, 2, 8, 16)


def test_before_the_first_host_anything_may_wait() -> None:
    assert capacity(cluster(), job(64, hosts=4096)).fits


def test_capabilities_compare_as_numbers() -> None:
    assert capability("10.0") > capability("9.0")


@pytest.mark.parametrize(
    ("asked", "advice"),
    [
        ({"share": Share(mig_profile="1g.12gb")}, "no such GPU can be shared so: NVIDIA H100 80GB HBM3 has 1g.10gb, "),
        ({"share": Share(mig_profile="1g.12gb")}, "NVIDIA L40S has no MIG"),
        ({"share": Share(percent=10, memory_mib=90_000)}, "the largest has 81559 MiB"),
        ({"cpus_per_host": 65}, "the largest host has 64 CPUs: ask for at most so many"),
        ({"ram_mib_per_host": 2048}, "the largest host has 1024 MiB of memory"),
        ({"total": 2, "cpus_per_host": 65}, "the largest host has 64 CPUs"),
    ],
)
def test_what_no_host_has_besides_gpus_is_refused(asked: dict[str, Any], advice: str) -> None:
    profiles = {"NVIDIA H100 80GB HBM3": ["1g.10gb", "7g.80gb"]}
    facts = {"cpus": 64, "ram_mib": 1024, "mig_profiles": profiles}
    machines = cluster().host("h", "dgx-h100").host("ada", "l40s-4x-dual-socket").host_rows.values()
    answer = largest_gang(
        [row.inventory.model_copy(update=facts) for row in machines], ResourceRequest(**({"gpus_per_host": 1} | asked))
    )
    assert not answer.fits
    assert advice in answer.message


def test_what_a_host_does_not_tell_it_may_have() -> None:
    [row] = cluster().host("h", "dgx-h100").host_rows.values()
    unknown = row.inventory.model_copy(update={"cpus": None, "ram_mib": None, "mig_profiles": {}})
    request = ResourceRequest(share=Share(mig_profile="1g.10gb"), cpus_per_host=4096, ram_mib_per_host=10**9)
    assert largest_gang([unknown], request).fits

from __future__ import annotations

import pytest

from gpu_platform.domain.capacity import Capacity, capability, largest_gang
from tests.builders import cluster, job


def capacity(machines: cluster, wanted: job) -> Capacity:
    return largest_gang([row.inventory for row in machines.host_rows.values()], wanted.request)


@pytest.mark.parametrize(
    ("wanted", "advice"),
    [
        (job(9), "the largest host has 8 such GPUs on one socket or NVLink island: ask for at most 8 GPUs per host"),
        (job(8, hosts=3), "only 2 of 3 hosts could ever hold 8 such GPUs: ask for at most 2 hosts"),
        (job(3).needs(model="L40S"), "ask for at most 2 GPUs per host, or allow_cross_numa"),
        (job(5).needs(model="L40S").across_sockets(), "the largest host has 4 such GPUs: ask for at most 4"),
        (job().needs(memory_gib=999), "the cluster has no such GPU, only NVIDIA H100 80GB HBM3 (81559 MiB"),
    ],
)
def test_a_refusal_says_what_the_cluster_could_hold(wanted: job, advice: str) -> None:
    answer = capacity(cluster().hosts(2).host("ada", "l40s-4x-dual-socket"), wanted)
    assert not answer.fits
    assert advice in answer.message


def test_what_fits_is_let_through_whatever_is_free() -> None:
    answer = capacity(cluster().hosts(2).lost("dgx-h100-0").busy("dgx-h100-1"), job(8, hosts=2))
    assert (answer.fits, answer.hosts, answer.gpus_per_host, answer.gpus) == (True, 2, 8, 16)


def test_before_the_first_host_anything_may_wait() -> None:
    assert capacity(cluster(), job(64, hosts=4096)).fits


def test_capabilities_compare_as_numbers() -> None:
    assert capability("10.0") > capability("9.0")

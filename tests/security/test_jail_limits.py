"""What a job asked of a host, held by the kernel: memory of all its ranks together, and CPUs that are its own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.domain.jobs.attempt import HostPlan, RankLimits
from gpu_platform.node.isolation import isolation
from gpu_platform.node.isolation.cgroups.cgroup import find_hierarchies, parse_cpu_list
from gpu_platform.node.isolation.cgroups.cpus import CpuBinding
from gpu_platform.node.isolation.jail import Jail
from gpu_platform.node.system.paths import attempt_dir
from gpu_platform.settings import NodeSettings
from tests.support.hosts_rig import HostRig
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("jails")

SHOW_CPUS = "import os, time; print(*sorted(os.sched_getaffinity(0)), flush=True)"


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[HostRig]:
    rig = HostRig(tmp_path, isolation="required")
    rig.restart([CpuBinding(rig.inventory, rig.home)])
    yield rig
    await rig.aclose()


def job(host: HostRig, script: str, ranks: int = 1, **limits: Any) -> HostPlan:
    return host.plan("/usr/bin/python3", "-c", script, ranks=ranks, limits=RankLimits(**limits))


async def cpus_of(host: HostRig, plan: HostPlan, rank: int = 0) -> set[int]:
    text = await eventually(lambda: host.log(plan, rank), "the rank's word")
    return set(map(int, text.split()))


async def test_memory_is_limited_for_all_ranks_together(host: HostRig) -> None:
    """Each takes less than the limit, both more: our own cap is 100 MiB a rank."""
    script = """
import os, time
kept = []
for _ in range(10):
    kept.append(bytearray(os.urandom(1 << 20) * 10))
    time.sleep(0.02)
print("all", flush=True)
time.sleep(600)
"""
    alone = job(host, script, ram_mib=160)
    host.launch(alone)
    await eventually(lambda: "all" in host.log(alone), "100 MiB of 160")
    together = job(host, script, ranks=2, ram_mib=160)
    host.launch(together)
    exits = await host.watch(together)
    assert exits.first_failure is not None
    assert exits.first_failure.exit_code == 137
    assert "at its memory limit" in host.log(together, exits.first_failure.rank)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU cannot be shared out")
async def test_ranks_get_as_many_cpus_as_asked_and_different_ones(host: HostRig) -> None:
    plan = job(host, SHOW_CPUS, ranks=2, cpus=2)
    host.launch(plan)
    first, second = [await cpus_of(host, plan, rank) for rank in (0, 1)]
    assert len(first) == len(second) == 1
    assert first != second


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU cannot be shared out")
async def test_jobs_side_by_side_get_different_cpus_also_after_a_restart(host: HostRig) -> None:
    wait = f"{SHOW_CPUS}; time.sleep(600)"
    first, second, third = (job(host, wait, cpus=1) for _ in range(3))
    host.launch(first)
    host.restart([CpuBinding(host.inventory, host.home)])
    host.launch(second)
    assert not await cpus_of(host, first) & await cpus_of(host, second)
    await host.stop(first.key)
    host.launch(third)
    assert await cpus_of(host, third) == await cpus_of(host, first)


async def test_a_rank_cannot_leave_its_cpus(host: HostRig) -> None:
    script = "import os; os.sched_setaffinity(0, range(os.cpu_count())); print(*sorted(os.sched_getaffinity(0)))"
    plan = job(host, script, cpus=1)
    host.launch(plan)
    await host.watch(plan)
    jail = Jail.of(str(attempt_dir(host.home, plan.key)))
    assert jail is not None
    assert len(await cpus_of(host, plan)) == 1


async def test_a_job_that_asks_for_no_cpus_has_them_all(host: HostRig) -> None:
    plan = job(host, SHOW_CPUS)
    host.launch(plan)
    assert await cpus_of(host, plan) == os.sched_getaffinity(0)


def test_lists_of_cpus_are_read_as_the_kernel_writes_them() -> None:
    assert parse_cpu_list("0-2,8,10-11\n") == {0, 1, 2, 8, 10, 11}
    assert parse_cpu_list("") == set()


def test_a_host_that_must_isolate_refuses_a_kernel_that_cannot_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    hierarchies = find_hierarchies()
    without = hierarchies._replace(
        v2=[name for name in hierarchies.v2 if name != "pids"],
        v1={name: path for name, path in hierarchies.v1.items() if name != "pids"},
    )
    monkeypatch.setattr(isolation, "_probe", lambda: ([], without))
    with pytest.raises(HostUnavailable, match="cannot: process limit: the kernel offers no pids controller"):
        isolation.choose_isolation(NodeSettings(isolation="required"))
    assert "process limit: the kernel offers no pids controller" in (
        isolation.choose_isolation(NodeSettings(isolation="auto")).missing
    )

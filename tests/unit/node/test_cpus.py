"""CPUs shared out between jobs, on a machine whose sysfs is made up: two sockets of four cores with two threads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.attempt import HostPlan, RankLimits, RankSpec
from gpu_platform.node.isolation.cgroups.cgroup import Cgroup, cpu_list, find_hierarchies, parse_cpu_list
from gpu_platform.node.isolation.cgroups.cgroup_limits import Limits, apply_limits
from gpu_platform.node.isolation.cgroups.cpus import CpuBinding
from gpu_platform.node.system.sysfs import Sysfs
from gpu_platform.topology.description import load_description
from tests.support.examples import few

CPUS = set(range(16))
INVENTORY = load_description("dgx-h100").inventory("box").model_copy(update={"simulated": False})
LEFT, RIGHT = {0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}


@pytest.fixture(scope="module")
def sysfs(tmp_path_factory: pytest.TempPathFactory) -> Sysfs:
    root = tmp_path_factory.mktemp("sys")
    for node, cpus in enumerate((LEFT, RIGHT)):
        path = root / f"devices/system/node/node{node}/cpulist"
        path.parent.mkdir(parents=True)
        path.write_text(cpu_list(cpus))
    for cpu in CPUS:
        path = root / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        path.parent.mkdir(parents=True)
        path.write_text(f"{cpu % 8},{cpu % 8 + 8}")
    return Sysfs(root)


@pytest.fixture(autouse=True)
def all_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: CPUS)


def plan(job: str, cpus: int, gpus: list[int], ranks: int = 1) -> HostPlan:
    uuids = [INVENTORY.gpus[gpu].uuid for gpu in gpus]
    return HostPlan(
        key=AttemptKey(job_id=job, attempt=1),
        host="box",
        user="ada",
        namespace="default",
        command=["true"],
        ranks=[RankSpec(rank=rank, local_rank=rank, gpu_uuids=uuids) for rank in range(ranks)],
        gpu_uuids=uuids,
        limits=RankLimits(cpus=cpus),
    )


def prepare(binding: CpuBinding, home: Path, wanted: HostPlan) -> list[set[int]]:
    (home / "jobs" / wanted.key.job_id / "1").mkdir(parents=True, exist_ok=True)
    binding.prepare(wanted)
    given = binding.provides(wanted).rank_cpus
    return [parse_cpu_list(given[spec.rank][0]) for spec in wanted.ranks]


def test_cpus_and_memory_are_next_to_the_gpus(tmp_path: Path, sysfs: Sysfs) -> None:
    binding = CpuBinding(INVENTORY, tmp_path, sysfs=sysfs)
    assert prepare(binding, tmp_path, plan("a", 4, [0])) == [{0, 8, 1, 9}]
    assert binding.provides(plan("a", 4, [0])).rank_cpus == {0: ("0-1,8-9", "0")}
    assert prepare(binding, tmp_path, plan("b", 4, [4])) == [{4, 12, 5, 13}]


def test_each_rank_is_next_to_its_own_gpu(tmp_path: Path, sysfs: Sysfs) -> None:
    binding = CpuBinding(INVENTORY, tmp_path, sysfs=sysfs)
    first, second = prepare(binding, tmp_path, plan("a", 8, [0, 4], ranks=2))
    assert first < LEFT
    assert second < RIGHT


def test_fewer_cpus_than_ranks_are_shared_by_them(tmp_path: Path, sysfs: Sysfs) -> None:
    binding = CpuBinding(INVENTORY, tmp_path, sysfs=sysfs)
    given = prepare(binding, tmp_path, plan("a", 2, [0, 1, 2], ranks=3))
    assert given == [{0, 8}] * 3


@settings(max_examples=few(60), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 7), st.booleans()), max_size=10))
def test_no_cpu_is_given_twice_while_another_is_free(
    tmp_path_factory: pytest.TempPathFactory, sysfs: Sysfs, wishes: list[tuple[int, int, bool]]
) -> None:
    home = tmp_path_factory.mktemp("home")
    binding = CpuBinding(INVENTORY, home, sysfs=sysfs)
    open_plans: dict[str, tuple[HostPlan, set[int]]] = {}
    for number, (cpus, gpu, ends) in enumerate(wishes):
        wanted = plan(f"job-{number}", cpus, [gpu])
        before = [cpu for _, taken in open_plans.values() for cpu in taken]
        [given] = prepare(binding, home, wanted)
        assert len(given) == cpus
        free = CPUS - set(before)
        assert len(given & free) == min(cpus, len(free))
        open_plans[wanted.key.job_id] = wanted, given
        successor = CpuBinding(INVENTORY, home, sysfs=sysfs)
        successor.recover([plan for plan, _ in open_plans.values()])
        assert all(successor.provides(p).rank_cpus == binding.provides(p).rank_cpus for p, _ in open_plans.values())
        if ends:
            binding.finish(wanted)
            del open_plans[wanted.key.job_id]


def test_a_pure_v2_hierarchy_gets_every_limit_where_it_belongs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel makes a cgroup's files with its directory; here ``mkdir`` does, since this machine may be hybrid."""
    root = tmp_path / "cgroup"
    controllers = "cpuset cpu memory pids"
    real_makedirs = os.makedirs

    def makedirs(path: Any, exist_ok: bool = False) -> None:
        if not os.path.isdir(path):
            real_makedirs(path)
            for file in (
                "cgroup.procs",
                "cgroup.subtree_control",
                "memory.max",
                "memory.oom.group",
                "memory.swap.max",
                "pids.max",
                "cpu.weight",
                "cpuset.cpus",
                "cpuset.mems",
            ):
                (Path(path) / file).touch()

    monkeypatch.setattr(os, "makedirs", makedirs)
    makedirs(root)
    (root / "cgroup.controllers").write_text(controllers)
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text(f"30 1 0:26 / {root} rw,nosuid shared:4 - cgroup2 cgroup2 rw\n")
    hierarchies = find_hierarchies(str(mountinfo))
    assert hierarchies == (str(root), ["cpuset", "cpu", "memory", "pids"], {})
    attempt = Cgroup(hierarchies, "gpu-platform/attempt")
    attempt.create(domain=True)
    apply_limits(attempt, Limits(memory_bytes=1 << 30, cpu_weight=400))
    rank = attempt.child("rank-0")
    rank.create()
    apply_limits(rank, Limits(memory_bytes=1 << 20, pids=100, cpus="0-3", mems="0"), ends_together=True)
    for directory in (root, root / "gpu-platform", root / "gpu-platform/attempt"):
        assert (directory / "cgroup.subtree_control").read_text() == "+cpuset +cpu +memory +pids"
    assert (root / "gpu-platform/attempt/memory.max").read_text() == str(1 << 30)
    assert (root / "gpu-platform/attempt/cpu.weight").read_text() == "400"
    own = root / "gpu-platform/attempt/rank-0"
    values = ("memory.max", "memory.oom.group", "memory.swap.max", "pids.max", "cpuset.cpus", "cpuset.mems")
    assert [(own / file).read_text() for file in values] == [str(1 << 20), "1", "0", "100", "0-3", "0"]
    assert (own / "cgroup.subtree_control").read_text() == ""

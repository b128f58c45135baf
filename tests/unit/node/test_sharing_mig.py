"""MIG through NVML: one contract for the simulated GPUs, the real ``pynvml`` on a library of ours, and a real GPU."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import HostUnavailable, PreflightFailed
from gpu_platform.domain.hosts.share import ShareGrant, ShareMode
from gpu_platform.domain.jobs.attempt import HostPlan, RankSpec
from gpu_platform.node.inventory.inventory import read_inventory
from gpu_platform.node.isolation.scrub.scrub_policy import Scrubber
from gpu_platform.node.nvml.fault_injection import inject_fault
from gpu_platform.node.nvml.opening import has_gpus, open_nvml
from gpu_platform.node.nvml.simulated_nvml import SimulatedNvml
from gpu_platform.node.sharing import mig
from gpu_platform.node.sharing.mig_records import MigInstanceRecords
from gpu_platform.node.sharing.stage import Sharing
from gpu_platform.node.system.paths import control_dir
from gpu_platform.settings import NodeSettings
from gpu_platform.topology.description import load_description
from gpu_platform.topology.mig import MigModel, mig_model
from tests.fake_nvml import FakeNvml, has_compiler
from tests.support.examples import few


@pytest.fixture(params=["simulated", "fake", "real"])
def nvml(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    if request.param == "real":
        if not has_gpus():
            pytest.skip("NVML finds no GPU on this machine: the contract is checked on the simulated and the fake one")
        opened = open_nvml(NodeSettings(name="box"), tmp_path)
        first = opened.nvmlDeviceGetUUID(opened.nvmlDeviceGetHandleByIndex(0))
        if mig.mode(opened, first) is None or mig.instances(opened, first):
            pytest.skip("the first GPU cannot do MIG, or is partitioned already")
    elif request.param == "fake":
        if not has_compiler():
            pytest.skip("no C compiler (Debian: apt-get install gcc libc6-dev)")
        library = FakeNvml(tmp_path / "fake")
        monkeypatch.setenv("FAKE_NVML_STATE", str(library.state_file))
        opened = library.load()
    else:
        opened = open_nvml(NodeSettings(name="box", simulate="dgx-h100"), tmp_path)
    yield opened
    opened.nvmlShutdown()


@pytest.fixture
def gpu(nvml: Any) -> str:
    return nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(0))


@pytest.fixture
def rules(nvml: Any) -> MigModel:
    model = mig_model(nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(0)))
    assert model is not None
    return model


@pytest.fixture
def partitioned(nvml: Any, gpu: str) -> Iterator[str]:
    if not mig.set_mode(nvml, gpu, True):
        pytest.skip("this GPU must be reset for MIG")
    yield gpu
    for instance in mig.instances(nvml, gpu):
        mig.destroy(nvml, gpu, instance.gi)
    mig.set_mode(nvml, gpu, False)


def test_every_profile_is_made_where_it_may_stand_and_is_gone_again(
    nvml: Any, partitioned: str, rules: MigModel
) -> None:
    for profile in rules.profiles:
        for start in (profile.starts[0], profile.starts[-1]):
            made = mig.create(nvml, partitioned, profile.name, start, profile.memory_slices)
            assert (made.start, made.size, made.ci) == (start, profile.memory_slices, 0)
            assert made.uuid is not None
            assert made.uuid.startswith("MIG-")
            assert mig.instances(nvml, partitioned) == [made]
            mig.destroy(nvml, partitioned, made.gi)
            assert mig.instances(nvml, partitioned) == []


def test_instances_side_by_side_have_names_of_their_own_and_never_overlap(
    nvml: Any, partitioned: str, rules: MigModel
) -> None:
    by_slices = {profile.compute_slices: profile for profile in reversed(rules.profiles)}
    three = by_slices[3]
    left, right = (mig.create(nvml, partitioned, three.name, start, 4) for start in (0, 4))
    assert left.uuid != right.uuid
    assert mig.instances(nvml, partitioned) == [left, right]
    with pytest.raises(PreflightFailed, match="cannot be made"):
        mig.create(nvml, partitioned, three.name, 0, 4)
    assert mig.instances(nvml, partitioned) == [left, right]


def test_a_placement_that_the_profile_does_not_have_is_refused_with_words(nvml: Any, partitioned: str) -> None:
    with pytest.raises(PreflightFailed, match=r"has no MIG profile 3g\.40gb at memory slices 1 to 4"):
        mig.create(nvml, partitioned, "3g.40gb", 1, 4)


def test_the_mode_is_not_switched_off_under_instances(nvml: Any, partitioned: str) -> None:
    mig.create(nvml, partitioned, "1g.10gb", 6, 1)
    with pytest.raises(HostUnavailable, match="something uses the GPU"):
        mig.set_mode(nvml, partitioned, False)


def test_destroying_what_is_gone_is_nothing(nvml: Any, partitioned: str) -> None:
    mig.destroy(nvml, partitioned, 13)


@settings(max_examples=few(40), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 7)), max_size=12))
def test_simulated_gpus_allow_exactly_what_the_rules_allow(
    tmp_path_factory: pytest.TempPathFactory, wishes: list[tuple[int, int]]
) -> None:
    nvml = SimulatedNvml(load_description("dgx-h100"), "box", tmp_path_factory.mktemp("nvml"))
    rules = nvml.mig_model
    assert rules is not None
    gpu = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(0))
    assert mig.set_mode(nvml, gpu, True)
    taken: list[tuple[int, int]] = []
    for which, start in wishes:
        profile = rules.profiles[which]
        possible = (
            start in profile.starts
            and not any(profile.mask(start) & rules.profiles[other].mask(at) for other, at in taken)
            and sum(rules.profiles[other].compute_slices for other, _ in [*taken, (which, start)]) <= 7
            and sum(rules.profiles[other].media_extensions for other, _ in [*taken, (which, start)]) <= 1
        )
        try:
            mig.create(nvml, gpu, profile.name, start, profile.memory_slices)
        except PreflightFailed:
            assert not possible
        else:
            assert possible
            taken.append((which, start))
        found = [(instance.start, instance.size) for instance in mig.instances(nvml, gpu)]
        assert found == sorted((at, rules.profiles[other].memory_slices) for other, at in taken)


# -- for jobs ------------------------------------------------------------------------------------


class Host:
    """The stage alone, with the GPUs of a machine; ``new`` is what a restarted node worker has."""

    def __init__(self, directory: Path, machine: str = "dgx-h100") -> None:
        self.node = NodeSettings(name="box", simulate=machine)
        self.nvml = SimulatedNvml(load_description(machine), "box", control_dir(directory))
        self.inventory = read_inventory(self.nvml, self.node)
        self.home = directory
        self.resets: list[str] = []
        self.stage = self.new()

    def new(self, *open_plans: HostPlan) -> Sharing:
        self.stage = Sharing(
            self.node,
            self.nvml,
            self.inventory,
            self.home,
            reset=self._reset,
            scrubber=Scrubber(self.node, self.nvml, self.home, reset=self._reset, on_failure=lambda *_: None),
        )
        self.stage.recover(open_plans)
        return self.stage

    def _reset(self, uuid: str) -> None:
        self.resets.append(uuid)
        self.nvml.reset_gpu(uuid)

    def uuid(self, index: int) -> str:
        return self.inventory.gpus[index].uuid

    def plan(self, job: str, *shares: ShareGrant, gpus: int = 1, ranks: int = 1, **changes: Any) -> HostPlan:
        uuids = [self.uuid(index) for index in range(gpus)]
        return HostPlan(
            key=AttemptKey(job_id=job, attempt=1),
            host="box",
            user="ada",
            namespace="default",
            world_size=ranks,
            command=["true"],
            ranks=[RankSpec(rank=rank, local_rank=rank, gpu_uuids=uuids) for rank in range(ranks)],
            gpu_uuids=uuids,
            shares=list(shares),
        ).model_copy(update=changes)

    def instances(self, index: int = 0) -> list[tuple[int, int]]:
        return [(i.start, i.size) for i in mig.instances(self.nvml, self.uuid(index))]

    def compute_mode(self, index: int = 0) -> int:
        return self.nvml.nvmlDeviceGetComputeMode(self.nvml.nvmlDeviceGetHandleByIndex(index))


def slice_of(profile: str, start: int, size: int) -> ShareGrant:
    return ShareGrant(
        mode=ShareMode.MIG, percent=14, memory_mib=9_000, mig_profile=profile, mig_start=start, mig_size=size
    )


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


SMALL, LARGE = slice_of("1g.10gb", 6, 1), slice_of("3g.40gb", 0, 4)


def test_two_jobs_have_their_instances_and_the_gpu_is_whole_again_after_them(host: Host) -> None:
    first, second = host.plan("a", SMALL), host.plan("b", LARGE)
    host.stage.prepare(first)
    host.stage.prepare(second)
    assert host.instances() == [(0, 4), (6, 1)]
    names = [host.stage.provides(plan).of_rank(0)["CUDA_VISIBLE_DEVICES"] for plan in (first, second)]
    assert all(name.startswith("MIG-") for name in names)
    assert names[0] != names[1]
    host.stage.finish(first)
    assert host.instances() == [(0, 4)]
    host.stage.finish(second)
    assert host.instances() == []
    whole = host.plan("c")
    host.stage.prepare(whole)
    assert mig.mode(host.nvml, host.uuid(0)) is False
    assert host.resets == []


def test_ampere_is_reset_for_mig_and_for_the_way_back(tmp_path: Path) -> None:
    host = Host(tmp_path, "dgx-a100-40gb")
    plan = host.plan("a", slice_of("1g.5gb", 6, 1))
    host.stage.prepare(plan)
    assert host.resets == [host.uuid(0)]
    host.stage.prepare(host.plan("b", slice_of("3g.20gb", 0, 4)))
    assert host.resets == [host.uuid(0)]
    host.stage.finish(plan)
    host.stage.finish(host.plan("b", slice_of("3g.20gb", 0, 4)))
    host.stage.prepare(host.plan("c"))
    assert host.resets == [host.uuid(0)] * 2
    assert mig.mode(host.nvml, host.uuid(0)) is False


def test_preparing_and_finishing_may_be_repeated_by_this_node_worker_and_the_next(host: Host) -> None:
    plan = host.plan("a", SMALL)
    for _ in range(2):
        host.stage.prepare(plan)
    host.new(plan).prepare(plan)
    assert host.instances() == [(6, 1)]
    host.new(plan).finish(plan)
    host.stage.finish(plan)
    assert host.instances() == []


def test_an_instance_of_an_attempt_that_is_open_no_more_is_destroyed_at_the_start(host: Host) -> None:
    stays, goes = host.plan("a", SMALL), host.plan("b", LARGE)
    host.stage.prepare(stays)
    host.stage.prepare(goes)
    host.new(stays)
    assert host.instances() == [(6, 1)]


@pytest.mark.parametrize("crash", ["before it is made", "after it is made"])
def test_a_crash_around_the_creation_leaves_no_instance_behind(
    host: Host, monkeypatch: pytest.MonkeyPatch, crash: str
) -> None:
    class Crash(BaseException): ...

    def die(*_: Any) -> None:
        raise Crash

    where = (mig, "create") if crash.startswith("before") else (MigInstanceRecords, "made")
    plan = host.plan("a", SMALL)
    with monkeypatch.context() as patch:
        patch.setattr(*where, die)
        with pytest.raises(Crash):
            host.stage.prepare(plan)
    assert host.instances() == ([] if crash.startswith("before") else [(6, 1)])
    host.new()
    assert host.instances() == []
    host.stage.prepare(plan)
    assert host.instances() == [(6, 1)]


def test_instances_of_others_are_not_touched_and_keep_the_gpu_from_being_used_whole(host: Host) -> None:
    mig.set_mode(host.nvml, host.uuid(0), True)
    mig.create(host.nvml, host.uuid(0), "1g.10gb", 2, 1)
    host.new()
    with pytest.raises(PreflightFailed, match="1 MIG instances that are not the platform's") as refused:
        host.stage.prepare(host.plan("a"))
    assert refused.value.details["kind"] == "hardware"
    host.stage.finish(host.plan("a"))
    assert host.instances() == [(2, 1)]
    plan = host.plan("b", SMALL)
    host.stage.prepare(plan)  # beside them is room
    host.stage.finish(plan)
    assert host.instances() == [(2, 1)]


def test_a_gpu_that_was_lost_does_not_keep_its_job_from_ending(host: Host) -> None:
    plan = host.plan("a", SMALL)
    host.stage.prepare(plan)
    inject_fault(host.nvml.control_dir, 0, lost=True)
    host.stage.finish(plan)
    host.new()


def test_ranks_get_one_instance_each_and_a_rank_cannot_have_two(host: Host) -> None:
    plan = host.plan("a", SMALL, SMALL, gpus=2, ranks=2)
    host.stage.prepare(plan)
    visible = [host.stage.provides(plan).of_rank(rank)["CUDA_VISIBLE_DEVICES"] for rank in (0, 1)]
    assert len(set(visible)) == 2
    assert not any("," in name for name in visible)
    with pytest.raises(PreflightFailed, match="ask for one rank per GPU") as refused:
        host.stage.prepare(host.plan("b", SMALL, SMALL, gpus=2, ranks=1))
    assert refused.value.details["kind"] == "user"


def test_a_gpu_that_cannot_be_partitioned_is_left_out(tmp_path: Path) -> None:
    host = Host(tmp_path, "dgx-1v")
    with pytest.raises(PreflightFailed, match="cannot be partitioned"):
        host.stage.prepare(host.plan("a", SMALL))


def test_whole_gpus_are_for_one_process_each_unless_ranks_share_them(host: Host) -> None:
    plan = host.plan("a", gpus=2)
    host.stage.prepare(plan)
    assert [host.compute_mode(index) for index in (0, 1, 2)] == [3, 3, 0]
    host.stage.finish(plan)
    assert host.compute_mode() == 0
    crowd = host.plan("b", ranks=2)
    host.stage.prepare(crowd)
    assert host.compute_mode() == 0


def test_a_gpu_is_not_given_while_an_earlier_attempt_is_on_it(host: Host) -> None:
    host.stage.prepare(host.plan("a", SMALL))
    with pytest.raises(PreflightFailed, match=r"not free yet on box: attempt a#1 has mig") as refused:
        host.stage.prepare(host.plan("b"))
    assert refused.value.details["kind"] == "hardware"
    host.stage.finish(host.plan("a", SMALL))
    host.stage.prepare(host.plan("b"))


def test_jobs_that_come_at_once_get_all_their_instances(host: Host) -> None:
    plans = [host.plan(f"job-{start}", slice_of("1g.10gb", start, 1)) for start in range(7)]
    threads = [threading.Thread(target=host.stage.prepare, args=[plan]) for plan in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert host.instances() == [(start, 1) for start in range(7)]
    names = {host.stage.provides(plan).of_rank(0)["CUDA_VISIBLE_DEVICES"] for plan in plans}
    assert len(names) == 7


def test_a_job_without_gpus_costs_nothing(host: Host) -> None:
    plan = host.plan("a", gpus=0)
    host.stage.prepare(plan)
    host.stage.finish(plan)
    assert sorted(os.listdir(host.home)) == ["nvml"]

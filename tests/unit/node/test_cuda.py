"""CUDA installations: found whatever their age, refused where the driver cannot run them, given to who asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_platform.domain.errors import PreflightFailed
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.node.inventory.cuda_driver import CudaStage, find_cuda, runs_on
from gpu_platform.node.inventory.inventory import read_inventory
from gpu_platform.node.nvml.simulated_nvml import SimulatedNvml
from gpu_platform.node.system.sysfs import Sysfs
from gpu_platform.settings import NodeSettings
from gpu_platform.topology.description import load_description
from tests.support.hosts_rig import HostRig


def install(path: Path, version: str, how: str) -> Path:
    (path / "bin").mkdir(parents=True)
    match how:
        case "json":
            (path / "version.json").write_text(json.dumps({"cuda": {"name": "CUDA SDK", "version": version}}))
        case "txt":
            (path / "version.txt").write_text(f"CUDA Version {version}\n")
        case _:
            nvcc = path / "bin" / "nvcc"
            nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {version[:4]}, V{version}'\n")
            nvcc.chmod(0o755)
    return path


def test_installations_are_found_by_what_they_say_of_themselves(tmp_path: Path) -> None:
    new = install(tmp_path / "cuda-12.4", "12.4.131", "json")
    old = install(tmp_path / "cuda-10.1", "10.1.243", "txt")
    bare = install(tmp_path / "cuda-11.8", "11.8.89", "nvcc")
    (tmp_path / "cuda-0.0").mkdir()
    broken = tmp_path / "cuda-9.9"
    broken.mkdir()
    (broken / "version.json").write_text("{")
    (tmp_path / "cuda").symlink_to(new)
    found = find_cuda(places=[str(tmp_path / "cuda"), str(tmp_path / "cuda-*")])
    assert found == {"10.1": str(old), "11.8": str(bare), "12.4": str(new)}
    assert list(found) == ["10.1", "11.8", "12.4"]
    mine = install(tmp_path / "mine", "12.4.0", "json")
    assert find_cuda([mine], [str(tmp_path / "cuda-*")])["12.4"] == str(mine)


@pytest.mark.parametrize(
    ("driver", "version", "runs"),
    [("12.2", "11.8", True), ("12.2", "12.9", True), ("12.2", "13.0", False), (None, "13.0", True)],
)
def test_a_driver_runs_its_own_major_version_and_older_ones(
    tmp_path: Path, driver: str | None, version: str, runs: bool
) -> None:
    assert runs_on(driver, version, str(tmp_path)) is runs
    (tmp_path / "compat").mkdir()
    (tmp_path / "compat" / "libcuda.so.1").touch()
    assert runs_on(driver, version, str(tmp_path))


def plan_with(tmp_path: Path, cuda: str | None) -> HostPlan:
    rig = HostRig(tmp_path / "state")
    plan = rig.plan("true", env={"PATH": "/my/bin"}).model_copy(update={"cuda": cuda})
    rig.worker.close()
    return plan


def test_a_rank_gets_what_it_asked_for(tmp_path: Path) -> None:
    directory = str(install(tmp_path / "cuda", "12.4.0", "json"))
    stage = CudaStage({"12.4": directory}, "12.4")
    plan = plan_with(tmp_path, "12.4")
    stage.prepare(plan)
    environ = stage.provides(plan).of_rank(0)
    assert environ["CUDA_HOME"] == directory
    assert environ["PATH"] == f"{directory}/bin:/my/bin"
    assert environ["LD_LIBRARY_PATH"].split(":")[0] == f"{directory}/lib64"
    assert stage.provides(plan_with(tmp_path, None)).of_rank(0) == {}


def test_what_cannot_be_is_said_before_the_start(tmp_path: Path) -> None:
    directory = str(install(tmp_path / "cuda", "13.0.0", "json"))
    with pytest.raises(PreflightFailed, match=r"CUDA 12.4 was asked for; box has 13.0") as failure:
        CudaStage({"13.0": directory}, "13.0").prepare(plan_with(tmp_path, "12.4"))
    assert failure.value.details["kind"] == "user"
    with pytest.raises(PreflightFailed, match=r"box has it, but its driver runs CUDA up to 12.8: ask for that or an"):
        CudaStage({}, "12.8", {"13.0": "its driver runs CUDA up to 12.8"}).prepare(plan_with(tmp_path, "13.0"))
    with pytest.raises(PreflightFailed, match=r"cannot run: it goes up to CUDA 12.2"):
        CudaStage({"13.0": directory}, "12.2").prepare(plan_with(tmp_path, "13.0"))


def test_what_the_driver_cannot_run_stays_in_the_inventory_with_the_reason(tmp_path: Path) -> None:
    new = install(tmp_path / "cuda-99.1", "99.1.0", "json")
    old = install(tmp_path / "cuda-11.8", "11.8.89", "json")
    nvml = SimulatedNvml(load_description("dgx-h100"), "box", tmp_path / "nvml")
    found = read_inventory(nvml, NodeSettings(name="box", cuda_roots=[new, old]), Sysfs(tmp_path / "sys"))
    assert found.cuda_installations["11.8"] == str(old)
    assert found.unusable_cuda["99.1"] == f"its driver runs CUDA up to {found.cuda_version}"
    assert "99.1" not in found.cuda_installations


async def test_a_real_rank_finds_the_compiler_of_its_cuda(tmp_path: Path) -> None:
    directory = install(tmp_path / "cuda-11.8", "11.8.89", "nvcc")
    rig = HostRig(tmp_path / "state", cuda_roots=[directory])
    assert rig.inventory.cuda_installations["11.8"] == str(directory)
    rig.restart([CudaStage(rig.inventory.cuda_installations, rig.inventory.cuda_version)])
    try:
        plan = rig.plan("nvcc", "--version", cuda="11.8")
        rig.launch(plan)
        assert (await rig.watch(plan)).first_failure is None
        assert "release 11.8" in rig.log(plan)
    finally:
        await rig.aclose()


def test_a_job_with_gpus_that_names_none_gets_the_newest_but_not_its_libraries(tmp_path: Path) -> None:
    old, new = (str(install(tmp_path / f"cuda-{v}", f"{v}.0", "json")) for v in ("12.4", "12.10"))
    stage = CudaStage({"12.4": old, "12.10": new}, "12.10", default=True)
    plan = plan_with(tmp_path, None)
    provision = stage.provides(plan)
    assert provision.of_rank(0) == {"CUDA_HOME": new, "CUDA_PATH": new, "PATH": f"/my/bin:{new}/bin"}
    assert provision.readable == [new]
    assert CudaStage({"12.4": old}, "12.4").provides(plan).of_rank(0) == {}, "not by default"
    own = plan.model_copy(update={"env": {"CUDA_HOME": "/mine"}})
    assert stage.provides(own).of_rank(0) == {}
    without = plan.model_copy(update={"ranks": [plan.ranks[0].model_copy(update={"gpu_uuids": []})]})
    assert stage.provides(without).of_rank(0) == {}


@pytest.mark.parametrize(("wanted", "given"), [("12", "12.10"), (">=12.4", "13.0"), ("12.4", "12.4"), ("11", None)])
def test_versions_are_asked_for_as_people_say_them(tmp_path: Path, wanted: str, given: str | None) -> None:
    installed = {v: str(install(tmp_path / f"cuda-{v}", f"{v}.0", "json")) for v in ("12.4", "12.10", "13.0")}
    stage = CudaStage(installed, "13.0")
    plan = plan_with(tmp_path, wanted)
    if given is None:
        with pytest.raises(PreflightFailed, match=r"CUDA 11 was asked for; box has 12.4, 12.10, 13.0"):
            stage.prepare(plan)
        return
    stage.prepare(plan)
    assert stage.provides(plan).of_rank(0)["CUDA_HOME"] == installed[given]


def test_an_installation_that_went_away_is_named(tmp_path: Path) -> None:
    stage = CudaStage({"12.4": str(tmp_path / "gone")}, "12.4")
    with pytest.raises(PreflightFailed, match=r"box had 12.4 in .*gone, which is not there any more: install it again"):
        stage.prepare(plan_with(tmp_path, "12"))

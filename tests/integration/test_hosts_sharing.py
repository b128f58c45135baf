"""Parts of GPUs for jobs: MPS, time slices and MIG, by the real ``pynvml`` and programs that play NVIDIA's."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import HostUnavailable, PreflightFailed
from gpu_platform.domain.hosts.share import ShareGrant, ShareMode
from gpu_platform.domain.jobs.attempt import HostPlan, RankSpec
from gpu_platform.node.health import gpu_reset
from gpu_platform.node.inventory.inventory import read_inventory
from gpu_platform.node.isolation.scrub.scrub_policy import Scrubber
from gpu_platform.node.sharing import mig
from gpu_platform.node.sharing.mps import MpsDaemon
from gpu_platform.node.sharing.stage import Sharing
from gpu_platform.node.system.process_tree import FoundProcess
from gpu_platform.settings import NodeSettings
from tests.fake_nvidia import FakeNvidia
from tests.fake_nvml import FakeNvml, has_compiler

EXCLUSIVE_PROCESS, DEFAULT = 3, 0


@pytest.fixture
def directory() -> Iterator[Path]:
    """Short, and open to every account: MPS has sockets in it, and runs as its tenant."""
    path = Path(tempfile.mkdtemp(prefix="mps-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def tools(directory: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvidia:
    tools = FakeNvidia(directory / "nvidia")
    monkeypatch.setenv("PATH", f"{tools.bin}:{os.environ['PATH']}")
    return tools


@pytest.fixture
def nvml(directory: Path, monkeypatch: pytest.MonkeyPatch, tools: FakeNvidia) -> Any:
    if not has_compiler():
        pytest.skip("no C compiler (Debian: apt-get install gcc libc6-dev)")
    library = FakeNvml(directory / "nvml", "dgx-a100-40gb")
    monkeypatch.setenv("FAKE_NVML_STATE", str(library.state_file))
    return library.load()


class Host:
    """The stage alone; ``new`` is what a restarted node worker has."""

    def __init__(self, nvml: Any, home: Path, **node: Any) -> None:
        self.node = NodeSettings(name="box", isolation="plain", scrub="never", **node)
        self.nvml, self.home = nvml, home
        self.inventory = read_inventory(nvml, self.node)
        self.uuid = self.inventory.gpus[0].uuid
        self.stage = self.new()

    def new(self, *open_plans: HostPlan) -> Sharing:
        self.stage = Sharing(
            self.node,
            self.nvml,
            self.inventory,
            self.home,
            reset=lambda uuid: gpu_reset.reset_gpu(self.nvml, uuid, timeout_s=5),
            scrubber=Scrubber(self.node, self.nvml, self.home, reset=lambda uuid: None, on_failure=lambda *_: None),
        )
        self.stage.recover(open_plans)
        return self.stage

    def plan(self, job: str, mode: ShareMode | None = ShareMode.MPS, percent: int = 30) -> HostPlan:
        return HostPlan(
            key=AttemptKey(job_id=job, attempt=1),
            host="box",
            user="ada",
            namespace="default",
            command=["true"],
            ranks=[RankSpec(rank=0, local_rank=0, gpu_uuids=[self.uuid])],
            gpu_uuids=[self.uuid],
            shares=[] if mode is None else [ShareGrant(mode=mode, percent=percent, memory_mib=4096)],
        )

    @property
    def daemon(self) -> list[FoundProcess]:
        return MpsDaemon(self.home / "mps" / "0", self.uuid).processes()

    @property
    def compute_mode(self) -> int:
        return self.nvml.nvmlDeviceGetComputeMode(self.nvml.nvmlDeviceGetHandleByIndex(0))


@pytest.fixture
def host(nvml: Any, directory: Path) -> Iterator[Host]:
    host = Host(nvml, directory)
    yield host
    for process in host.daemon:
        os.kill(process.pid, signal.SIGKILL)


def test_the_daemon_comes_with_the_first_client_and_goes_with_the_last(host: Host) -> None:
    first, second = host.plan("a", percent=30), host.plan("b", percent=60)
    host.stage.prepare(first)
    daemon, server = host.daemon
    assert host.stage.daemon_pids(host.uuid) == {daemon.pid, server.pid}
    assert host.compute_mode == EXCLUSIVE_PROCESS
    host.stage.prepare(second)
    assert host.daemon == [daemon, server]
    environ = host.stage.provides(second).of_rank(0)
    assert environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "60"
    assert environ["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=4096M"
    assert os.path.exists(environ["CUDA_MPS_PIPE_DIRECTORY"] + "/control")
    assert environ["CUDA_VISIBLE_DEVICES"] == host.uuid
    host.stage.finish(first)
    assert host.daemon == [daemon, server]
    host.stage.finish(second)
    assert host.daemon == []
    assert host.compute_mode == DEFAULT
    assert not os.path.exists(environ["CUDA_MPS_PIPE_DIRECTORY"])


def test_the_daemon_serves_one_gpu_and_is_told_so(host: Host) -> None:
    host.stage.prepare(host.plan("a"))
    environ = Path(f"/proc/{host.daemon[0].pid}/environ").read_bytes().split(b"\0")
    assert f"CUDA_VISIBLE_DEVICES={host.uuid}".encode() in environ


def test_a_killed_daemon_is_replaced_for_the_next_client(host: Host) -> None:
    host.stage.prepare(host.plan("a"))
    old = host.daemon
    for process in old:
        os.kill(process.pid, signal.SIGKILL)
    _until(lambda: not host.daemon)
    host.stage.prepare(host.plan("b"))
    assert len(host.daemon) == 2
    assert not set(old) & set(host.daemon)


def test_the_daemon_outlives_its_node_worker_and_is_stopped_by_the_next_when_nobody_needs_it(host: Host) -> None:
    plan = host.plan("a")
    host.stage.prepare(plan)
    daemon = host.daemon
    host.new(plan)
    assert host.daemon == daemon
    host.new()
    assert host.daemon == []


def test_a_daemon_that_does_not_quit_is_killed(host: Host, tools: FakeNvidia, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_platform.node.sharing.mps._QUIT_S", 0.05)
    tools.become("stubborn")
    plan = host.plan("a")
    host.stage.prepare(plan)
    host.stage.finish(plan)
    assert host.daemon == []


def test_a_daemon_that_cannot_start_is_told_with_its_own_words(host: Host, tools: FakeNvidia) -> None:
    tools.become("broken")
    with pytest.raises(PreflightFailed, match="cannot start: the driver says no"):
        host.stage.prepare(host.plan("a"))
    host.stage.finish(host.plan("a"))


def test_a_daemon_that_ends_at_once_is_noticed(host: Host, tools: FakeNvidia) -> None:
    tools.become("mortal")
    with pytest.raises(PreflightFailed, match=r"ended at once: Start"):
        host.stage.prepare(host.plan("a"))


def test_a_host_without_mps_says_so(host: Host, tools: FakeNvidia) -> None:
    (tools.bin / "nvidia-cuda-mps-control").unlink()
    with pytest.raises(PreflightFailed, match="nvidia-cuda-mps-control is not installed"):
        host.stage.prepare(host.plan("a"))


def test_the_daemon_is_its_tenants_and_serves_no_other_account(directory: Path, tools: FakeNvidia) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    daemon = MpsDaemon(directory / "mps" / "0", "GPU-0")
    daemon.start(65534, 65534)
    try:
        assert {os.stat(f"/proc/{process.pid}").st_uid for process in daemon.processes()} == {65534}
        daemon.start(65534, 65534)
        with pytest.raises(PreflightFailed, match="shared by MPS for the account 65534, not for 0") as refused:
            daemon.start()
        assert refused.value.details["kind"] == "hardware"
    finally:
        daemon.stop()
    assert daemon.processes() == []


def test_time_slices_are_set_for_the_job_and_back_after_it(nvml: Any, directory: Path, tools: FakeNvidia) -> None:
    host = Host(nvml, directory, time_slice="long")
    first, second = (host.plan(job, ShareMode.TIME_SLICE) for job in "ab")
    host.stage.prepare(first)
    host.stage.prepare(second)
    assert host.compute_mode == DEFAULT
    host.stage.finish(first)
    assert tools.smi_calls == [f"compute-policy -i {host.uuid} --set-timeslice=3"]
    host.stage.finish(second)
    assert tools.smi_calls[1:] == [f"compute-policy -i {host.uuid} --set-timeslice=0"]


def test_a_whole_gpu_is_exclusive_and_no_longer_after_its_job(host: Host) -> None:
    plan = host.plan("a", None)
    host.stage.prepare(plan)
    assert host.compute_mode == EXCLUSIVE_PROCESS
    host.stage.finish(plan)
    assert host.compute_mode == DEFAULT


def test_ampere_is_reset_by_nvidia_smi_for_mig_and_back(host: Host, tools: FakeNvidia) -> None:
    share = ShareGrant(
        mode=ShareMode.MIG, percent=42, memory_mib=19_000, mig_profile="3g.20gb", mig_start=4, mig_size=4
    )
    plan = host.plan("a", None).model_copy(update={"shares": [share]})
    host.stage.prepare(plan)
    reset = f"--gpu-reset -i {host.uuid}"
    assert tools.smi_calls == [reset]
    [instance] = mig.instances(host.nvml, host.uuid)
    assert (instance.start, instance.size) == (4, 4)
    assert host.stage.provides(plan).of_rank(0)["CUDA_VISIBLE_DEVICES"] == instance.uuid
    host.stage.finish(plan)
    host.stage.prepare(host.plan("b", None))
    assert tools.smi_calls == [reset, reset]
    assert mig.mode(host.nvml, host.uuid) is False


def test_an_instance_that_is_in_use_keeps_its_job_from_ending_until_it_is_not(nvml: Any, directory: Path) -> None:
    library = FakeNvml(directory / "hopper")
    os.environ["FAKE_NVML_STATE"] = str(library.state_file)  # the fixture puts it back
    host = Host(library.load(), directory)
    share = ShareGrant(mode=ShareMode.MIG, percent=14, memory_mib=9_000, mig_profile="1g.10gb", mig_start=0, mig_size=1)
    plan = host.plan("a", None).model_copy(update={"shares": [share]})
    host.stage.prepare(plan)
    library.strike(0, mig_in_use=True)
    with pytest.raises(HostUnavailable, match="cannot be destroyed"):
        host.stage.finish(plan)
    library.strike(0, mig_in_use=False)
    host.stage.finish(plan)
    assert mig.instances(host.nvml, host.uuid) == []


def test_an_instance_without_compute_is_taken_back(nvml: Any, directory: Path) -> None:
    library = FakeNvml(directory / "hopper")
    os.environ["FAKE_NVML_STATE"] = str(library.state_file)
    host = Host(library.load(), directory)
    library.strike(0, mig_no_compute_instance=True)
    mig.set_mode(host.nvml, host.uuid, True)
    with pytest.raises(PreflightFailed, match="cannot be made"):
        mig.create(host.nvml, host.uuid, "1g.10gb", 0, 1)
    assert mig.instances(host.nvml, host.uuid) == []


def test_ranks_may_crowd_a_gpu_where_the_host_is_told_to_let_them(nvml: Any, directory: Path) -> None:
    host = Host(nvml, directory, exclusive_process=False)
    host.stage.prepare(host.plan("a", None))
    assert host.compute_mode == DEFAULT


def _until(condition: Any) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)

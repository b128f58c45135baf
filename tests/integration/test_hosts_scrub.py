"""Memory of GPUs between tenants: overwritten by the real program, on a ``libcuda`` whose memory is a file."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import HostUnavailable, PreflightFailed
from gpu_platform.domain.hosts.share import ShareGrant, ShareMode
from gpu_platform.domain.jobs.attempt import HostPlan, RankSpec
from gpu_platform.node.inventory.inventory import read_inventory
from gpu_platform.node.isolation.scrub import scrub_process
from gpu_platform.node.isolation.scrub.scrub_policy import Scrubber
from gpu_platform.node.processes.stopping import close_attempt
from gpu_platform.node.sharing import mig
from gpu_platform.node.sharing.stage import Sharing
from gpu_platform.node.system import records
from gpu_platform.settings import NodeSettings
from tests.fake_cuda import FakeCuda
from tests.fake_nvml import FakeNvml, has_compiler
from tests.support.hanging_disk import hanging_disk

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C compiler (Debian: apt-get install gcc libc6-dev)")


@pytest.fixture
def cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    cuda = FakeCuda(tmp_path / "cuda")
    for name, value in cuda.environ.items():
        monkeypatch.setenv(name, value)
    return cuda


# -- the program ---------------------------------------------------------------------------------


def run_scrub(*arguments: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "gpu_platform.node.isolation.scrub.scrub_process", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def test_all_memory_is_overwritten_and_verified(cuda: FakeCuda) -> None:
    assert not cuda.is_clean
    code, told = run_scrub()
    assert (code, told["problem"], told["total_mib"], told["scrubbed_mib"]) == (scrub_process.DONE, "", 70, 70)
    assert cuda.is_clean


def test_memory_that_comes_in_pieces_is_taken_to_the_last_page(cuda: FakeCuda) -> None:
    cuda.fail(f"pieces={20 << 20}")
    assert run_scrub()[1]["scrubbed_mib"] == 70
    assert cuda.is_clean


def test_what_the_driver_keeps_for_itself_is_told(cuda: FakeCuda) -> None:
    cuda.fail(f"reserved={8 << 20}")
    code, told = run_scrub()
    assert (code, told["total_mib"], told["scrubbed_mib"]) == (scrub_process.DONE, 70, 62)


@pytest.mark.parametrize("offset", [0, 33 << 20, (70 << 20) - 1])
def test_one_byte_that_stays_is_found(cuda: FakeCuda, offset: int) -> None:
    memory = bytearray(cuda.memory.read_bytes())
    memory[offset] = 7
    cuda.memory.write_bytes(memory)
    cuda.fail(f"stuck={offset}")
    code, told = run_scrub()
    assert code == scrub_process.DIRTY
    assert f"{0x10000000 + offset:#x}" in told["problem"]


@pytest.mark.parametrize(("fault", "code"), [("no_device", scrub_process.NO_CUDA), ("lost", scrub_process.FAILED)])
def test_failures_of_cuda_are_told_apart(cuda: FakeCuda, fault: str, code: int) -> None:
    cuda.fail(fault)
    assert run_scrub()[0] == code


def test_a_host_without_cuda_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda) -> None:
    # The file that is found first hides the driver's library, a real one as well: no real GPU is scrubbed here.
    hiding = tmp_path / "hiding"
    hiding.mkdir()
    (hiding / "libcuda.so.1").write_text("no library")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{hiding}:{cuda.environ['LD_LIBRARY_PATH']}")
    code, told = run_scrub()
    assert code == scrub_process.NO_CUDA
    assert "libcuda.so.1 does not load" in told["problem"]
    assert not cuda.is_clean


# -- between jobs --------------------------------------------------------------------------------


class Host:
    """The stage with its scrubber, on a fake NVML and a fake CUDA; ``unknown``: nobody recorded whose data it holds."""

    def __init__(self, nvml: Any, home: Path, *, unknown: bool = False, **node: Any) -> None:
        self.node = NodeSettings(name="box", isolation="plain", **node)
        self.nvml, self.home = nvml, home
        self.inventory = read_inventory(nvml, self.node)
        self.uuid = self.inventory.gpus[0].uuid
        self.failures: list[str] = []
        self.resets = 0
        self.reset_fails = False
        scrubber = Scrubber(
            self.node, nvml, home, reset=self._reset, on_failure=lambda _, problem: self.failures.append(problem)
        )
        self.stage = Sharing(self.node, nvml, self.inventory, home, reset=self._reset, scrubber=scrubber)
        record = home / "scrub" / f"{self.uuid}.json"
        if not unknown and not record.exists():
            record.parent.mkdir(parents=True, exist_ok=True)
            records.write_record(str(record), {"namespace": ""}, durable=False)

    def _reset(self, uuid: str) -> None:
        if self.reset_fails:
            raise HostUnavailable("nvidia-smi was not found")
        self.resets += 1

    def run(self, job: str, namespace: str, *shares: ShareGrant) -> None:
        self.start(job, namespace, *shares)
        self.stage.finish(self.plan(job, namespace, *shares))

    def start(self, job: str, namespace: str, *shares: ShareGrant) -> None:
        self.stage.prepare(self.plan(job, namespace, *shares))

    def plan(self, job: str, namespace: str, *shares: ShareGrant) -> HostPlan:
        return HostPlan(
            key=AttemptKey(job_id=job, attempt=1),
            host="box",
            user="ada",
            namespace=namespace,
            command=["true"],
            ranks=[RankSpec(rank=0, local_rank=0, gpu_uuids=[self.uuid])],
            gpu_uuids=[self.uuid],
            shares=list(shares),
        )


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    library = FakeNvml(tmp_path / "nvml")
    monkeypatch.setenv("FAKE_NVML_STATE", str(library.state_file))
    return library.load()


def test_memory_is_scrubbed_when_the_gpu_goes_to_another_namespace(nvml: Any, tmp_path: Path, cuda: FakeCuda) -> None:
    host = Host(nvml, tmp_path)
    host.run("a", "red")
    host.run("b", "red")
    assert cuda.devices == []
    host.start("c", "blue")
    assert cuda.devices == [host.uuid]
    assert cuda.is_clean


def test_what_nobody_recorded_is_another_tenants_data(nvml: Any, tmp_path: Path, cuda: FakeCuda) -> None:
    host = Host(nvml, tmp_path, unknown=True)
    host.run("a", "red")
    assert cuda.devices == [host.uuid]
    assert cuda.is_clean
    cuda.soil()
    host.run("b", "red")
    assert len(cuda.devices) == 1


@pytest.mark.parametrize(("every", "found"), [(None, True), (3, False)])
def test_every_window_is_read_back_unless_the_operator_wants_fewer(
    nvml: Any, tmp_path: Path, cuda: FakeCuda, every: int | None, found: bool
) -> None:
    fewer = {} if every is None else {"scrub_verify_every": every}
    host = Host(nvml, tmp_path, scrub="always", **fewer)
    memory = bytearray(cuda.memory.read_bytes())
    memory[33 << 20] = 7  # in the second of three windows
    cuda.memory.write_bytes(memory)
    cuda.fail(f"stuck={33 << 20}")
    host.run("a", "red")
    assert bool(host.failures) is found


def test_whose_data_it_is_outlives_the_node_worker(nvml: Any, tmp_path: Path, cuda: FakeCuda) -> None:
    Host(nvml, tmp_path).run("a", "red")
    Host(nvml, tmp_path).start("b", "blue")
    assert cuda.is_clean


def test_memory_is_scrubbed_after_every_job_of_a_namespace_that_asks_for_it(
    nvml: Any, tmp_path: Path, cuda: FakeCuda
) -> None:
    host = Host(nvml, tmp_path, scrub="never", scrub_namespaces={"medical": "always"})
    host.run("a", "medical")
    assert cuda.is_clean
    cuda.soil()
    host.run("b", "red")
    host.start("c", "blue")
    assert len(cuda.devices) == 1
    assert not cuda.is_clean


def test_a_gpu_that_keeps_a_byte_costs_the_next_job_nothing_and_is_reported(
    nvml: Any, tmp_path: Path, cuda: FakeCuda
) -> None:
    host = Host(nvml, tmp_path)
    host.run("a", "red")
    cuda.fail("stuck=0")
    with pytest.raises(PreflightFailed, match="cannot be scrubbed: the byte at 0x10000000 is not zero") as refused:
        host.start("b", "blue")
    assert (refused.value.details["kind"], refused.value.details["gpu_uuid"]) == ("hardware", host.uuid)
    assert len(host.failures) == 1
    host.stage.finish(host.plan("b", "blue"))
    cuda.fail()
    host.start("c", "blue")  # it is still known to be dirty
    assert cuda.is_clean


def test_a_failure_after_a_job_does_not_keep_it_from_ending(nvml: Any, tmp_path: Path, cuda: FakeCuda) -> None:
    host = Host(nvml, tmp_path, scrub="always")
    cuda.fail("lost")
    host.run("a", "red")
    assert host.failures == ["its memory cannot be scrubbed: cuMemcpyDtoH_v2 returned CUDA error 719"]


def test_a_reset_does_it_where_cuda_cannot_be_used(nvml: Any, tmp_path: Path, cuda: FakeCuda) -> None:
    host = Host(nvml, tmp_path, scrub="always")
    cuda.fail("no_device")
    host.run("a", "red")
    assert (host.resets, host.failures) == (1, [])
    host.reset_fails = True
    host.run("b", "red")
    assert host.failures == ["its memory cannot be scrubbed: nvidia-smi was not found"]


def test_a_scrub_that_hangs_has_failed(nvml: Any, tmp_path: Path, cuda: FakeCuda) -> None:
    host = Host(nvml, tmp_path, scrub="always", scrub_timeout_s=0.001)
    host.run("a", "red")
    why = f"the scrub of {host.uuid} did not end within 0.001 s"
    assert host.failures == [f"its memory cannot be scrubbed: {why}"]


def test_a_stop_ends_a_scrub_and_the_next_job_has_it_done(nvml: Any, tmp_path: Path, cuda: FakeCuda) -> None:
    host = Host(nvml, tmp_path)
    host.run("a", "red")
    cuda.soil()
    cuda.fail("hangs")
    began, plan = time.monotonic(), host.plan("b", "blue")
    threading.Timer(0.5, lambda: close_attempt(tmp_path, plan.key, "test", 0.0)).start()
    with pytest.raises(HostUnavailable, match="nobody waits for it any more"):
        host.stage.prepare(plan)
    host.stage.finish(plan)
    assert time.monotonic() - began < 3
    assert host.failures == [], "the GPU is not to blame"
    cuda.fail()
    host.start("c", "blue")
    assert cuda.is_clean


def test_a_scrub_that_not_even_sigkill_ends_costs_the_gpu_and_not_the_host(
    nvml: Any, tmp_path: Path, cuda: FakeCuda
) -> None:
    """As a driver that hangs: the process is in the state D."""
    host = Host(nvml, tmp_path, scrub="always", scrub_timeout_s=1.0)
    with hanging_disk(tmp_path) as disk, disk.hangs():
        cuda.fail(f"hangs_at={disk.path}/device")
        for most_s, why in ((5, "did not end within 1 s"), (0.5, "hangs in the kernel (process ")):
            began = time.monotonic()
            host.run("a", "red")
            assert time.monotonic() - began < most_s
            assert f"the scrub of {host.uuid} {why}" in host.failures.pop()
        cuda.fail()


def test_a_mig_instance_is_scrubbed_before_it_goes_and_the_gpu_before_it_is_parted(
    nvml: Any, tmp_path: Path, cuda: FakeCuda
) -> None:
    host = Host(nvml, tmp_path)
    share = ShareGrant(mode=ShareMode.MIG, percent=14, memory_mib=9_000, mig_profile="1g.10gb", mig_start=6, mig_size=1)
    host.run("a", "red")
    host.start("b", "blue", share)
    [instance] = mig.instances(nvml, host.uuid)
    assert cuda.devices == [host.uuid]
    cuda.soil()
    host.stage.finish(host.plan("b", "blue", share))
    assert cuda.devices == [host.uuid, instance.uuid]
    assert cuda.is_clean
    assert mig.instances(nvml, host.uuid) == []

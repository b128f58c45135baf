"""Jailed jobs that share a GPU: each opens its own MIG instance and no other's, and MPS joins its clients alone.

The driver is the fake one; capability nodes are played by character devices of this machine, as GPUs are.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_platform.domain.hosts.share import ShareGrant, ShareMode
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.node.isolation.jail import Jail
from gpu_platform.node.isolation.scrub.scrub_policy import Scrubber
from gpu_platform.node.sharing.mps import MpsDaemon
from gpu_platform.node.sharing.stage import Sharing
from gpu_platform.node.system.paths import attempt_dir
from tests.fake_nvidia import FakeNvidia
from tests.fake_nvml import FakeNvml, has_compiler
from tests.security.attacks import PRELUDE, PYTHON, STAND_INS, can_open
from tests.support.hosts_rig import HostRig

pytestmark = pytest.mark.usefixtures("jails")

FIRST, SECOND = (
    ShareGrant(mode=ShareMode.MIG, percent=42, memory_mib=1, mig_profile="3g.40gb", mig_start=start, mig_size=4)
    for start in (0, 4)
)


@pytest.fixture
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="shares-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def dev(directory: Path) -> Path:
    """``nvidia0``, and the capabilities of its GPU instances 1 (minors 21 and 22) and 2 (31 and 32)."""
    dev, proc = directory / "dev", directory / "proc"
    names = [["nvidia0"], ["nvidia-caps/nvidia-cap21", "nvidia-caps/nvidia-cap22"], ["nvidia-caps/nvidia-cap31"]]
    (dev / "nvidia-caps").mkdir(parents=True)
    for number in STAND_INS:
        path = dev / "probe"
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(*number))
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        except OSError:
            continue
        finally:
            path.unlink()
        for name in names.pop(0):
            os.mknod(dev / name, stat.S_IFCHR | 0o666, os.makedev(*number))
        if not names:
            break
    else:
        pytest.skip(f"this kernel has too few of the devices {STAND_INS} to play GPUs and capabilities")
    for gi, minors in ((1, (21, 22)), (2, (31, 32))):
        instance = proc / f"driver/nvidia/capabilities/gpu0/mig/gi{gi}"
        for path, minor in zip((instance / "access", instance / "ci0/access"), minors, strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
    # Nobody made the last node: its numbers are the driver's, and we make it.
    shown = (dev / "nvidia-caps/nvidia-cap31").stat().st_rdev
    (proc / "devices").write_text(f"Character devices:\n  1 mem\n{os.major(shown)} nvidia-caps\n\nBlock devices:\n")
    return dev


@pytest.fixture
async def host(directory: Path, dev: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HostRig]:
    if not has_compiler():
        pytest.skip("no C compiler (Debian: apt-get install gcc libc6-dev)")
    library = FakeNvml(directory / "nvml")
    monkeypatch.setenv("FAKE_NVML_STATE", str(library.state_file))
    tools = FakeNvidia(directory / "nvidia")
    monkeypatch.setenv("PATH", f"{tools.bin}:{os.environ['PATH']}")
    rig = HostRig(
        directory / "state",
        nvml=library.load(),
        dev=dev,
        isolation="required",
        writable_paths=[Path(sys.prefix)],
        users={"tenant": "nobody"},
        scrub="never",
    )
    sharing = Sharing(
        rig.settings.node,
        rig.nvml,
        rig.inventory,
        rig.home,
        reset=lambda uuid: None,
        scrubber=Scrubber(rig.settings.node, rig.nvml, rig.home, reset=lambda uuid: None, on_failure=lambda *_: None),
        dev=dev,
        proc=directory / "proc",
    )
    rig.restart([sharing])
    yield rig
    await rig.aclose()
    for gpu in rig.inventory.gpus:
        MpsDaemon(rig.home / "mps" / str(gpu.index), gpu.uuid, jailed=True).stop()


def job(host: HostRig, script: str, share: ShareGrant, **changes: Any) -> HostPlan:
    return host.plan(PYTHON, "-c", PRELUDE + script, shares=[share], **changes)


async def run(host: HostRig, plan: HostPlan) -> list[str]:
    host.launch(plan)
    exits = await host.watch(plan)
    lines = host.log(plan).splitlines()
    assert exits.first_failure is None, lines
    return lines


async def test_a_rank_sees_the_capabilities_of_its_own_instance_alone(host: HostRig) -> None:
    script = """
cuda, nvidia = os.environ["CUDA_VISIBLE_DEVICES"], os.environ["NVIDIA_VISIBLE_DEVICES"]
print(cuda == nvidia, cuda[:4])
for name in sorted(os.listdir("/dev/nvidia-caps")):
    attempt(name, open_it, "/dev/nvidia-caps/" + name)
attempt("gpu", open_it, "/dev/nvidia0")
"""
    lines = await run(host, job(host, script, FIRST))
    assert lines == ["True MIG-", "nvidia-cap21 WORKS", "nvidia-cap22 WORKS", "gpu WORKS"]


async def test_another_jobs_instance_cannot_be_opened_by_any_name(host: HostRig, dev: Path) -> None:
    victim = job(host, "time.sleep(600)", FIRST)
    host.launch(victim)
    other = (dev / "nvidia-caps/nvidia-cap21").stat().st_rdev
    script = f"""
attempt("by its name", open_it, "/dev/nvidia-caps/nvidia-cap21")
attempt("by path", open_it, {str(dev / "nvidia-caps/nvidia-cap21")!r})
for place in ("/tmp/n", "/dev/shm/n", "/dev/nvidia-caps/n"):
    attempt("mknod", node, place, {other})
attempt("bind", call, "mount", {str(dev).encode()!r}, b"/tmp", None, 4096, None)
for pid in filter(str.isdigit, os.listdir("/proc")):
    attempt("root of a process", open_it, f"/proc/{{pid}}/root{dev}/nvidia-caps/nvidia-cap21")
attempt("own", open_it, "/dev/nvidia-caps/nvidia-cap31")
"""
    attacker = job(host, script, SECOND)
    lines = await run(host, attacker)
    assert lines[-1] == "own WORKS"
    assert not [line for line in lines[:-1] if "WORKS" in line]


async def test_the_kernels_filter_knows_instances_apart(host: HostRig, dev: Path) -> None:
    """Root with all capabilities, on the host's own files, but in the rank's cgroup: only the filter is left."""
    first, second = job(host, "time.sleep(600)", FIRST), job(host, "time.sleep(600)", SECOND)
    own, others = dev / "nvidia-caps/nvidia-cap21", dev / "nvidia-caps/nvidia-cap31"
    for plan, opens, refused in ((first, own, others), (second, others, own)):
        host.launch(plan)
        jail = Jail.of(str(attempt_dir(host.home, plan.key)))
        assert jail is not None
        assert can_open(jail.cgroup.child("rank-0"), opens)
        assert not can_open(jail.cgroup.child("rank-0"), refused)


async def test_a_capability_that_no_node_stands_for_yet_gets_one(host: HostRig, dev: Path) -> None:
    host.launch(job(host, "time.sleep(600)", FIRST))
    assert not (dev / "nvidia-caps/nvidia-cap32").exists()
    host.launch(job(host, "time.sleep(600)", SECOND))
    made = (dev / "nvidia-caps/nvidia-cap32").stat()
    assert (os.major(made.st_rdev), os.minor(made.st_rdev), stat.S_IMODE(made.st_mode)) == (
        os.major((dev / "nvidia-caps/nvidia-cap31").stat().st_rdev),
        32,
        0o444,
    )


async def test_mps_clients_reach_their_daemon_and_share_memory_with_it_alone(host: HostRig) -> None:
    share = ShareGrant(mode=ShareMode.MPS, percent=30, memory_mib=1000)
    script = """
pipes = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
with socket.socket(socket.AF_UNIX) as client:
    client.connect(pipes + "/control")
print(os.getuid(), pipes, sorted(os.listdir("/dev/shm")))
open("/dev/shm/" + sys.argv[1], "w").close()
"""
    plans = [host.plan("python3", "-c", PRELUDE + script, name, shares=[share], user="tenant") for name in "ab"]
    host.launch(plans[0])
    daemon = MpsDaemon(host.home / "mps" / "0", plans[0].gpu_uuids[0], jailed=True)
    assert {os.stat(f"/proc/{process.pid}").st_uid for process in daemon.processes()} == {65534}
    await host.watch(plans[0])
    assert await run(host, plans[1]) == ["65534 /dev/shm/nvidia-mps ['a', 'nvidia-log', 'nvidia-mps']"]
    assert host.log(plans[0]) == "65534 /dev/shm/nvidia-mps ['nvidia-log', 'nvidia-mps']\n"
    assert not [name for name in os.listdir("/dev/shm") if name in ("a", "b")]
    for plan in plans:
        await host.stop(plan.key)
    assert daemon.processes() == []

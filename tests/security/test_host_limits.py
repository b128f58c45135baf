"""What the jobs of a host may use, all of them together and each attempt: held by the kernel, tried by real ranks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.node.isolation.cgroups import host_limits
from gpu_platform.node.isolation.cgroups.cgroup import Cgroup, Hierarchies, find_hierarchies
from gpu_platform.node.isolation.cgroups.cgroup_limits import Limits, apply_limits, local_disks
from gpu_platform.node.isolation.jail import Jail
from gpu_platform.node.system.paths import attempt_dir
from gpu_platform.settings import NodeSettings
from tests.security import attacks
from tests.support.hosts_rig import HostRig
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("jails")

PYTHON = "/usr/bin/python3"
MIB = 1 << 20
FORKS = """
made = 0
try:
    while made < 300:  # our own cap
        if os.fork() == 0:
            time.sleep(600)
        made += 1
except OSError as error:
    print(made, errno.errorcode[error.errno], flush=True)
time.sleep(600)
"""
FILL = """
def fill(path, size, count):
    for number in range(count):
        with open(path % number, "wb") as file:
            file.write(bytes(size))
"""


@asynccontextmanager
async def host_with(directory: Path, **node: Any) -> AsyncIterator[HostRig]:
    rig = HostRig(directory / "state", isolation="required", **node)
    try:
        yield rig
    finally:
        await rig.aclose()


def cgroup_of(host: HostRig, plan: HostPlan) -> Cgroup:
    jail = Jail.of(str(attempt_dir(host.home, plan.key)))
    assert jail is not None
    return jail.cgroup


def value(cgroup: Cgroup, controller: str, v2: str, v1: str) -> str:
    """What the kernel says of a limit, in the tree that has its controller."""
    path = cgroup.path_of(controller)
    if path is None:
        pytest.skip(f"this kernel offers no {controller} controller")
    return Path(path, v2 if controller in cgroup.hierarchies.v2 else v1).read_text().strip()


async def test_the_memory_of_an_attempt_is_limited_also_if_its_job_does_not_say(tmp_path: Path) -> None:
    script = "kept = [bytearray(os.urandom(1 << 20) * 10) for _ in range(10)]\ntime.sleep(600)"
    async with host_with(tmp_path, attempt_memory_mib=160) as host:
        plan = host.plan(PYTHON, "-c", attacks.PRELUDE + script, ranks=2)
        host.launch(plan)
        exits = await host.watch(plan)
        assert exits.first_failure is not None, "each rank takes less than the limit, both take more"
        assert exits.first_failure.exit_code == 137
        assert "at its memory limit" in host.log(plan, exits.first_failure.rank)


async def test_a_fork_bomb_of_several_ranks_ends_at_the_attempts_limit(tmp_path: Path) -> None:
    async with host_with(tmp_path, attempt_pids_max=64, rank_pids_max=200) as host:
        plan = host.plan(PYTHON, "-c", attacks.PRELUDE + FORKS, ranks=2)
        host.launch(plan)
        await eventually(lambda: all(host.log(plan, rank) for rank in (0, 1)), "both ranks at the limit")
        answers = [host.log(plan, rank).split() for rank in (0, 1)]
        assert {code for _, code in answers} == {"EAGAIN"}
        assert sum(int(made) for made, _ in answers) < 64
        bystander = host.plan("true")
        host.launch(bystander)
        assert (await host.watch(bystander)).first_failure is None


@pytest.fixture
def platform() -> Iterator[Callable[[NodeSettings], Cgroup]]:
    """Makes the cgroup of all jails, under a name that no running host uses."""
    cgroup = Cgroup(find_hierarchies(), f"gpu-platform-test-{os.getpid()}")

    def make(node: NodeSettings) -> Cgroup:
        host_limits.limit_all_jails(node, cgroup.hierarchies, cgroup.name)
        return cgroup

    yield make
    cgroup.kill()
    assert cgroup.wait_empty(10)
    assert cgroup.remove()


def test_all_jobs_of_a_host_together_leave_it_pids_and_memory(platform: Callable[[NodeSettings], Cgroup]) -> None:
    """One job after the other takes what its own limit allows: the sum has a limit too."""
    cgroup = platform(NodeSettings(pids_max=64, host_reserve_mib=512))
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert int(value(cgroup, "memory", "memory.max", "memory.limit_in_bytes")) == total - 512 * MIB
    jobs: list[tuple[subprocess.Popen[str], int]] = []
    for name in ("one", "two", "three"):
        attempt = cgroup.child(name)
        attempt.create()
        apply_limits(attempt, Limits(pids=30))
        jobs.append(_fork_in(attempt))
    cgroup.kill()
    for process, _ in jobs:
        process.wait(10)
    made = [count for _, count in jobs]
    assert made == [29, 29, 3], "each has its own limit, and the third gets what is left of the host's: 64"


FORK_HERE = """
import os, sys, time
for path in sys.argv[1:]:
    open(path + "/cgroup.procs", "w").write("0")
made = 0
try:
    while os.fork():
        made += 1
    time.sleep(600)
except OSError:
    print(made, flush=True)
    time.sleep(600)
"""


def _fork_in(cgroup: Cgroup) -> tuple[subprocess.Popen[str], int]:
    """A process in the cgroup that forks as often as it can, and how often that was. All of them stay."""
    paths = {cgroup.path, str(cgroup.path_of("pids"))}
    process = subprocess.Popen([PYTHON, "-c", FORK_HERE, *paths], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as answer:
        return process, int(answer.readline())


def test_the_defaults_follow_the_host() -> None:
    limits = host_limits.of_host(NodeSettings())
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert limits.memory_bytes is not None
    assert 0.9 * total < limits.memory_bytes < total
    most = min(int(Path("/proc/sys/kernel", name).read_text()) for name in ("pid_max", "threads-max"))
    assert limits.pids == most // 2


async def test_what_all_jails_use_is_limited_when_a_host_starts(tmp_path: Path) -> None:
    async with host_with(tmp_path) as host:
        root = Cgroup(find_hierarchies(), "gpu-platform")
        assert int(value(root, "pids", "pids.max", "pids.max")) == host_limits.of_host(host.settings.node).pids
        assert value(root, "cpu", "cpu.weight", "cpu.shares") in ("100", "1024")


async def test_an_attempts_weight_follows_its_gpus(tmp_path: Path) -> None:
    async with host_with(tmp_path) as host:
        weights: list[str] = []
        for gpus in (1, 4):
            plan = host.plan("sleep", "600", ranks=gpus)
            host.launch(plan)
            weights.append(value(cgroup_of(host, plan), "cpu", "cpu.weight", "cpu.shares"))
            await host.stop(plan.key)
        assert weights in (["100", "400"], ["1024", "4096"])


async def test_an_attempts_reading_and_writing_is_slowed_down(tmp_path: Path) -> None:
    """6 MiB at 2 MiB/s, past the page cache: at least two seconds, the burst of the first one apart."""
    work = tmp_path / "work"
    work.mkdir()
    work.chmod(0o777)
    tmp_path.chmod(0o755)
    device = f"{os.major(work.stat().st_dev)}:{os.minor(work.stat().st_dev)}"
    if device not in local_disks():
        pytest.skip("the test's directory is not on a local disk")
    script = f"""
import mmap
block = mmap.mmap(-1, 1 << 20)
fd = os.open({str(work / "file")!r}, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
began = time.monotonic()
for _ in range(6):
    os.write(fd, block)
print(time.monotonic() - began)
"""
    async with host_with(tmp_path, attempt_io_mib_s=2, writable_paths=[work]) as host:
        plan = host.plan(PYTHON, "-c", attacks.PRELUDE + script)
        host.launch(plan)
        exits = await host.watch(plan)
        assert exits.first_failure is None, host.log(plan)
        assert float(host.log(plan)) > 1.5


async def test_files_and_shared_memory_of_a_jail_have_an_end(tmp_path: Path) -> None:
    """A million empty files cost no space in /tmp, but memory of the kernel."""
    script = f"""
{FILL}
attempt("tmp", fill, "/tmp/%d", 0, 300)
attempt("var", fill, "/var/tmp/%d", 0, 300)
attempt("shm", fill, "/dev/shm/%d", 0, 300)
for name in os.listdir("/dev/shm"):
    os.unlink("/dev/shm/" + name)
attempt("size of shm", fill, "/dev/shm/%d", 1 << 20, 12)
"""
    async with host_with(tmp_path, rank_tmp_files=200, rank_shm_mib=8) as host:
        lines = await attacks.run(host, script, None, PYTHON)
        assert lines == ["tmp ENOSPC", "var ENOSPC", "shm ENOSPC", "size of shm ENOSPC"]


async def test_shared_memory_is_half_of_the_host_unless_the_host_says_otherwise(tmp_path: Path) -> None:
    """NCCL and data loaders need much of it, so no small default: what is in it counts as the job's memory."""
    script = "disk = os.statvfs('/dev/shm')\nprint(disk.f_frsize * disk.f_blocks)"
    async with host_with(tmp_path) as host:
        [size] = await attacks.run(host, script, None, PYTHON)
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        assert int(size) == pytest.approx(total / 2, rel=0.05)


async def test_records_keep_a_part_of_the_disk(small_disk: Path) -> None:
    """A job fills the disk that has the records: what runs can still be recorded, and nothing new starts."""
    rig = HostRig(small_disk, disk_reserve_mib=2)
    try:
        running, later = rig.plan("sh", "-c", "sleep 1; exit 7"), rig.plan("true")
        rig.launch(running)
        (small_disk / "checkpoint").write_bytes(bytes(3 * MIB // 2))
        with pytest.raises(
            HostUnavailable, match=r"starts nothing new: the disk of .* is full \(1 MiB are free, and 2 MiB are kept"
        ):
            rig.worker.prepare(later)
        exits = await rig.watch(running)
        assert exits.first_failure is not None
        assert exits.first_failure.exit_code == 7
        (small_disk / "checkpoint").unlink()
        rig.launch(later)
        assert (await rig.watch(later)).first_failure is None
    finally:
        await rig.aclose()


def test_an_unknown_controller_limits_nothing_and_is_no_error(tmp_path: Path) -> None:
    hierarchies = Hierarchies(str(tmp_path), [], {})
    cgroup = Cgroup(hierarchies, "jail")
    (tmp_path / "cgroup.subtree_control").touch()
    cgroup.create()
    apply_limits(cgroup, Limits(1, 1, "0", "0", 1, 1, 1))
    assert list(Path(cgroup.path).iterdir()) == []

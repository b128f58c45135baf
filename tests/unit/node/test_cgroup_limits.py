"""What is written to the kernel for the limits of a cgroup. Kernel: Documentation/admin-guide/cgroup-v2.rst, "IO"."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from gpu_platform.node.isolation.cgroups import cgroup_limits
from gpu_platform.node.isolation.cgroups.cgroup import Cgroup, Hierarchies
from gpu_platform.node.isolation.cgroups.cgroup_limits import Limits, apply_limits, local_disks

LIMITS = Limits(memory_bytes=1 << 30, pids=100, cpu_weight=400, io_weight=2000, io_bytes_s=10 << 20)


@pytest.fixture
def sys_block(tmp_path: Path) -> Path:
    """``/sys/block`` of a machine: a SATA disk with a partition, an NVMe disk with two paths, and what is no disk."""
    root = tmp_path / "block"
    for name, device, numbers in (
        ("sda", True, "8:0"),
        ("nvme0n1", True, "259:0"),
        ("nvme0c0n1", True, None),
        ("nvme0c1n1", True, None),
        ("dm-0", False, "253:0"),
        ("md0", False, "9:0"),
        ("loop0", False, "7:0"),
        ("zram0", False, "252:0"),
    ):
        (root / name).mkdir(parents=True)
        if device:
            (root / name / "device").mkdir()
        if numbers is not None:
            (root / name / "dev").write_text(f"{numbers}\n")
    (root / "sda" / "sda1").mkdir()
    (root / "sda" / "sda1" / "dev").write_text("8:1\n")
    return root


@pytest.fixture
def written(sys_block: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """(file, line) as they are written, in order."""
    lines: list[tuple[str, str]] = []
    monkeypatch.setattr(cgroup_limits, "local_disks", lambda: local_disks(str(sys_block)))
    monkeypatch.setattr(cgroup_limits, "write_control", lambda path, text: lines.append((path, text)))
    return lines


def test_limits_are_for_whole_disks_of_this_machine(sys_block: Path) -> None:
    """For a partition the kernel answers ENODEV. A path to an NVMe disk has no number at all."""
    assert local_disks(str(sys_block)) == ["259:0", "8:0"]


def test_every_disk_of_this_machine_has_a_number() -> None:
    assert all(len(list(map(int, disk.split(":")))) == 2 for disk in local_disks())


def test_the_lines_of_cgroup_v2(tmp_path: Path, written: list[tuple[str, str]]) -> None:
    root = tmp_path / "cgroup"
    cgroup = root / "gpu-platform" / "attempt"
    cgroup.mkdir(parents=True)
    for name in ("io.weight", "io.bfq.weight", "memory.swap.max"):
        (cgroup / name).touch()
    hierarchies = Hierarchies(str(root), ["memory", "pids", "cpu", "io"], {})
    apply_limits(Cgroup(hierarchies, "gpu-platform/attempt"), LIMITS, ends_together=True)
    assert written == [
        (f"{cgroup}/memory.max", str(1 << 30)),
        (f"{cgroup}/memory.oom.group", "1"),
        (f"{cgroup}/memory.swap.max", "0"),
        (f"{cgroup}/pids.max", "100"),
        (f"{cgroup}/cpu.weight", "400"),
        (f"{cgroup}/io.weight", "2000"),
        (f"{cgroup}/io.bfq.weight", "1000"),
        (f"{cgroup}/io.max", "259:0 rbps=10485760 wbps=10485760"),
        (f"{cgroup}/io.max", "8:0 rbps=10485760 wbps=10485760"),
    ]


def test_the_lines_of_cgroup_v1(tmp_path: Path, written: list[tuple[str, str]]) -> None:
    blkio = tmp_path / "blkio"
    (blkio / "a").mkdir(parents=True)
    (blkio / "a" / "blkio.bfq.weight").touch()
    hierarchies = Hierarchies(None, [], {"io": str(blkio), "freezer": str(tmp_path)})
    apply_limits(Cgroup(hierarchies, "a"), Limits(io_weight=2000, io_bytes_s=4096))
    assert written == [
        (f"{blkio}/a/blkio.bfq.weight", "1000"),
        (f"{blkio}/a/blkio.throttle.read_bps_device", "259:0 4096"),
        (f"{blkio}/a/blkio.throttle.write_bps_device", "259:0 4096"),
        (f"{blkio}/a/blkio.throttle.read_bps_device", "8:0 4096"),
        (f"{blkio}/a/blkio.throttle.write_bps_device", "8:0 4096"),
    ]


def test_a_disk_that_was_pulled_out_is_no_error_and_everything_else_is(
    tmp_path: Path, sys_block: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def refuse(path: str, text: str) -> None:
        seen.append(text)
        raise OSError(errno.ENODEV if text.startswith("259") else errno.EINVAL, "refused")

    monkeypatch.setattr(cgroup_limits, "local_disks", lambda: local_disks(str(sys_block)))
    monkeypatch.setattr(cgroup_limits, "write_control", refuse)
    with pytest.raises(OSError, match="refused") as refused:
        apply_limits(Cgroup(Hierarchies(str(tmp_path), ["io"], {}), "a"), Limits(io_bytes_s=1))
    assert refused.value.errno == errno.EINVAL
    assert len(seen) == 2

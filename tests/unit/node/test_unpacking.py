"""Hostile archives of code: nothing is written outside of the directory, and the process says why it refuses."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from gpu_platform.disk_room import is_fault_of_disk
from gpu_platform.node.environments.unpacking import NOT_WRITTEN, REFUSED
from tests.unit.test_archive import unpacked

Entry = tuple[tarfile.TarInfo, bytes]


def entry(name: str, kind: bytes = tarfile.REGTYPE, content: bytes = b"", link: str = "") -> Entry:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname, info.mode = kind, len(content), link, 0o7777
    return info, content


def is_refused(done: subprocess.CompletedProcess[bytes]) -> bool:
    """By what it says, or because a file cannot be written, which is not the fault of the disk."""
    if done.returncode == NOT_WRITTEN:
        return not is_fault_of_disk(int(done.stderr.split()[0]))
    return done.returncode == REFUSED


def archive(*entries: Entry) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


ATTACKS = {
    "parent": [entry("../out", content=b"x")],
    "inner parent": [entry("a/../../out", content=b"x")],
    "absolute": [entry("/tmp/gpu-platform-hostile", content=b"x")],
    "empty part": [entry("a//b", content=b"x")],
    "link out": [entry("l", tarfile.SYMTYPE, link="../..")],
    "absolute link": [entry("l", tarfile.SYMTYPE, link="/etc")],
    "hard link": [entry("l", tarfile.LNKTYPE, link="/etc/passwd")],
    "device": [entry("d", tarfile.CHRTYPE)],
    "block device": [entry("d", tarfile.BLKTYPE)],
    "pipe": [entry("p", tarfile.FIFOTYPE)],
    "sparse": [entry("s", tarfile.GNUTYPE_SPARSE)],
    "twice": [entry("a", content=b"x"), entry("a", content=b"y")],
    "file as directory": [entry("a", content=b"x"), entry("a/b", content=b"y")],
    "link twice": [entry("l", tarfile.SYMTYPE, link="a"), entry("l", tarfile.SYMTYPE, link="b")],
    "deep": [entry("/".join("a" * 70), content=b"x")],
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_archive_is_refused(tmp_path: Path, name: str) -> None:
    done = unpacked(archive(*ATTACKS[name]), tmp_path / "code")
    assert is_refused(done), done.stderr
    assert done.stderr, "it says why"
    assert sorted(os.listdir(tmp_path)) == ["code"], "nothing beside the directory"
    assert not Path("/tmp/gpu-platform-hostile").exists()


def test_no_file_is_written_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    # The link comes first in the archive, and leads out by another one that is inside.
    hostile = archive(
        entry("up", tarfile.SYMTYPE, link="inside"),
        entry("inside/x", content=b"ok"),
        entry("up/y", content=b"stolen"),
    )
    done = unpacked(hostile, tmp_path / "code")
    assert is_refused(done), "its place is a directory already"
    assert os.listdir(victim) == []


def test_bombs_are_refused(tmp_path: Path) -> None:
    many = archive(*(entry(f"f{number}") for number in range(20)))
    assert b"more than 10 entries" in unpacked(many, tmp_path / "many", most=10).stderr
    lying = bytearray(archive(entry("a", content=b"x" * 512)))
    lying[124:136] = b"77777777777\0"  # its size: 8 GiB
    checksum = sum(lying[:148]) + 8 * 32 + sum(lying[156:512])
    lying[148:156] = b"%06o\0 " % checksum
    done = unpacked(bytes(lying), tmp_path / "lying")
    assert done.returncode == REFUSED
    assert b"larger than the archive" in done.stderr


@pytest.mark.parametrize("content", [b"", b"no archive at all" * 100, archive(entry("a", content=b"x" * 5000))[:3000]])
def test_what_is_no_whole_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    done = unpacked(content, tmp_path / "code")
    assert done.returncode == REFUSED, done.stderr


def test_modes_give_nobody_more_rights(tmp_path: Path) -> None:
    done = unpacked(archive(entry("d", tarfile.DIRTYPE), entry("d/program", content=b"x")), tmp_path / "code")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "code" / "d" / "program").stat().st_mode & 0o7777 == 0o755
    assert (tmp_path / "code" / "d").stat().st_mode & 0o7777 == 0o755

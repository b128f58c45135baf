"""What is kept free of a disk, for whom, and how a full disk is told."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gpu_platform import disk_room
from gpu_platform.disk_room import KEPT_BY_OUTPUT, KEPT_BY_PROGRAMS, KEPT_BY_PULLS, DiskRoom, Kept, kept_by_starts

MIB, GIB, TIB = 1 << 20, 1 << 30, 1 << 40


@pytest.mark.parametrize(
    ("kept", "of_small", "of_large", "of_huge"),
    [
        (KEPT_BY_PROGRAMS, MIB // 4, GIB, GIB),
        (KEPT_BY_OUTPUT, 4 * MIB, 64 * MIB, 64 * MIB),
        (kept_by_starts(None), 64 * MIB // 20, GIB, GIB),
        (kept_by_starts(7), 7 * MIB, 7 * MIB, 7 * MIB),
        (KEPT_BY_PULLS, 64 * MIB, GIB, GIB),
    ],
)
def test_each_keeps_a_part_of_a_small_disk_and_no_more_of_a_huge_one(
    kept: Kept, of_small: int, of_large: int, of_huge: int
) -> None:
    assert [kept.of(size) for size in (64 * MIB, 2 * TIB, 500 * TIB)] == [of_small, of_large, of_huge]


def test_a_disk_is_full_for_who_keeps_more_than_is_free(small_disk: Path) -> None:
    room = DiskRoom.of(small_disk, kept_by_starts(1))
    assert not room.is_full(MIB)
    assert room.is_full(2 * MIB + 1)
    assert room.why(2 * MIB + 1) == "3 MiB are free, and 1 MiB are kept for others, and 3 MiB are needed"
    assert not disk_room.is_full(str(small_disk / "none"), KEPT_BY_PULLS), "nobody can say it"


def test_a_broken_disk_is_told_from_a_full_one() -> None:
    full, broken, closed = (
        OSError(number, os.strerror(number)) for number in (errno.EDQUOT, errno.EROFS, errno.EACCES)
    )
    assert disk_room.told_of_error("x", full) == "the disk of x is full (Disk quota exceeded): make room there"
    assert disk_room.told_of_error("x", broken) == "the disk of x takes nothing (Read-only file system): mend it"
    assert [disk_room.is_fault_of_disk(one.errno) for one in (full, broken, closed)] == [True, True, False]
    assert disk_room.says_full("Error: writing blob: no space left on device")
    assert not disk_room.says_full("Error: permission denied")

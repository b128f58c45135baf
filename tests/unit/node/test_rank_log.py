"""What a rank writes, in files that follow one another: nothing torn, nothing twice, and never too much."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_platform.node.processes.rank_log import LogBounds, LogPump, LogWriter, read_log, segments
from tests.support.examples import few

pytestmark = pytest.mark.processes

LINE = st.binary(max_size=40).map(lambda data: data.replace(b"\n", b"") + b"\n")
WRITES = st.lists(st.one_of(LINE, st.binary(max_size=300), st.lists(LINE, max_size=30).map(b"".join)), max_size=40)


def everything(directory: str, limit: int = 1 << 20) -> tuple[int, bytes]:
    """(first byte that is there, all from there on), read in pieces of ``limit``. A log begins with the first byte."""
    if not segments(directory):
        return 0, b""
    first = read_log(directory, 0, limit)
    data = first.data
    while first.offset + len(data) < first.size:
        piece = read_log(directory, first.offset + len(data), limit)
        assert piece.offset == first.offset + len(data)
        data += piece.data
    return first.offset, data


@settings(max_examples=few(150), deadline=None)
@given(writes=WRITES, file_bytes=st.integers(50, 400), files=st.integers(2, 4), limit=st.integers(1, 500))
def test_what_is_kept_is_the_end_of_what_was_written(
    writes: list[bytes], file_bytes: int, files: int, limit: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        writer = LogWriter(directory, LogBounds(file_bytes, files))
        written = b""
        for data in writes:
            writer.write(data)
            written += data
            found = segments(directory)
            assert bool(written) <= len(found) <= files
            # A file is full, or ends one line later.
            assert all(os.stat(path).st_size <= file_bytes + 300 for _, path in found)
        offset, kept = everything(directory, limit)
        assert not written or read_log(directory, 0, 1).size == len(written)
        assert kept == written[offset:]
        assert len(kept) >= min(len(written), (files - 1) * (file_bytes - 300)), "no more goes than has to"
        assert not written or read_log(directory, -limit, limit).data == written[max(offset, len(written) - limit) :]


@settings(max_examples=few(60), deadline=None)
@given(lines=st.lists(LINE, max_size=200), sizes=st.lists(st.integers(1, 120), min_size=1, max_size=20))
def test_files_end_at_the_end_of_a_line_however_it_comes(lines: list[bytes], sizes: list[int]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        writer = LogWriter(directory, LogBounds(100, 3))
        data = b"".join(lines)
        at = 0
        for number in range(len(data)):
            size = sizes[number % len(sizes)]
            writer.write(data[at : at + size])
            at += size
            if at >= len(data):
                break
        offset, kept = everything(directory)
        assert kept == data[offset:]
        assert offset == 0 or data[offset - 1 : offset] == b"\n"


def test_a_line_longer_than_a_file_is_cut(tmp_path: Path) -> None:
    writer = LogWriter(str(tmp_path), LogBounds(1000, 3))
    writer.write(b"x" * 200_000)
    writer.write(b"\nend\n")
    offset, kept = everything(str(tmp_path))
    assert kept.endswith(b"x\nend\n")
    assert len(kept) <= 3 * 1000
    assert offset + len(kept) == 200_005


def test_a_reader_that_falls_behind_goes_on_with_the_oldest_there_is(tmp_path: Path) -> None:
    writer = LogWriter(str(tmp_path), LogBounds(100, 2))
    for number in range(1000):
        writer.write(b"%03d\n" % number)
    found = read_log(str(tmp_path), 8, 4)
    assert found.offset > 8
    assert found.data == b"%03d\n" % (found.offset // 4)
    assert read_log(str(tmp_path), 4000, 10).data == b""
    assert read_log(str(tmp_path), 5000, 10).data == b""


def test_a_log_of_one_file_from_before_there_were_more(tmp_path: Path) -> None:
    (tmp_path / "output.log").write_bytes(b"old\n")
    assert read_log(str(tmp_path), 0, 100).data == b"old\n"
    with pytest.raises(FileNotFoundError):
        read_log(str(tmp_path / "none"), 0, 100)


def test_a_full_disk_loses_output_and_the_log_says_so(small_disk: Path) -> None:
    log = small_disk / "rank"
    log.mkdir()
    writer = LogWriter(str(log), LogBounds(1 << 30, 2))
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(2600 << 10))
    writer.write(b"before\n")
    lost = b"y" * 99 + b"\n"
    for _ in range(20_000):
        writer.write(lost)
    ballast.unlink()
    writer.write(b"after\n")
    text = (log / "output.log").read_bytes()
    kept = text.count(b"y")
    assert text.startswith(b"before\n" + lost)
    missing = int(text.split(b"gpu-platform: ")[1].split()[0])
    assert b"bytes of output are missing here: No space left on device\nafter\n" in text
    assert kept + missing - missing // 100 == pytest.approx(20_000 * 99, abs=100)
    writer.write(b"and on\n")
    assert (log / "output.log").read_bytes().endswith(b"after\nand on\n")


def test_a_pump_brings_all_and_ends_with_the_last_writer(tmp_path: Path) -> None:
    pump = LogPump(LogWriter(str(tmp_path), LogBounds(1 << 20, 2)))
    children = [
        subprocess.Popen(["sh", "-c", f"for i in $(seq 500); do echo {name} $i; done"], stdout=pump.write_end)
        for name in "abc"
    ]
    pump.start()
    for child in children:
        child.wait()
    pump.finish(5.0)
    lines = everything(str(tmp_path))[1].decode().splitlines()
    for name in "abc":
        assert [line for line in lines if line.startswith(name)] == [f"{name} {i}" for i in range(1, 501)]

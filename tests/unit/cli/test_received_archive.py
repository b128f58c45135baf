"""Archives that a hostile job sends: nothing is written outside the target, and nothing that should not be."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import IO, Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_platform.cli.jobs.received_archive import BadArchive, ReceivedArchive, remove_tree
from tests.support.examples import few


class Pieces(io.RawIOBase):
    """The bytes as they come from a network, in small pieces."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def read(self, size: int = -1) -> bytes:
        return self._data.read(min(size, 700))


def member(name: str, content: bytes = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return data.getvalue()


DOT = member(".", type=tarfile.DIRTYPE, mode=0o755)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory, in another one whose other content must not change."""
    (tmp_path / "victim").write_text("untouched")
    (tmp_path / "outside").mkdir()
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def unpack(root: Path, data: bytes, *, tree: bool = True) -> ReceivedArchive:
    archive = ReceivedArchive(cast(IO[bytes], Pieces(data)), root, lambda size: None)
    archive.unpack("wanted", tree=tree)
    return archive


def nothing_outside(root: Path) -> bool:
    beside = sorted(path.name for path in root.parent.iterdir())
    untouched = (root.parent / "victim").read_text() == "untouched"
    return untouched and beside == ["in", "outside", "victim"] and not any((root.parent / "outside").iterdir())


def test_files_directories_links_modes_and_times_arrive(root: Path) -> None:
    data = tar(
        DOT,
        member("./bin", type=tarfile.DIRTYPE, mode=0o500, mtime=1_000_000_000),
        member("./bin/tool", b"#!" * 5000, mode=0o4755, mtime=1_000_000_000.25),
        member("./bin/link", type=tarfile.SYMTYPE, linkname="../bin/tool"),
        member("./again", type=tarfile.LNKTYPE, linkname="./bin/tool"),
    )
    assert unpack(root, data).left_out == []
    found = (root / "bin/tool").stat()
    assert (found.st_size, found.st_mode & 0o7777, found.st_mtime) == (10_000, 0o755, 1_000_000_000.25)
    assert ((root / "bin").stat().st_mode & 0o777, (root / "bin").stat().st_mtime) == (0o500, 1_000_000_000)
    assert os.readlink(root / "bin/link") == "../bin/tool"
    assert (root / "again").stat().st_ino == found.st_ino
    remove_tree(root)
    assert not root.exists()


def test_one_file_gets_the_name_that_was_asked_for(root: Path) -> None:
    unpack(root, tar(member("../../.bashrc", b"evil")), tree=False)
    assert [path.name for path in root.iterdir()] == ["wanted"]
    assert nothing_outside(root)


HOSTILE = {
    "a name with ..": [DOT, member("./../victim", b"evil")],
    "a name with .. inside": [DOT, member("./a/../../victim", b"evil")],
    "an absolute name": [DOT, member("/tmp/victim", b"evil")],
    "a hard link to what is outside": [DOT, member("x", type=tarfile.LNKTYPE, linkname="../victim")],
    "a hard link with an absolute name": [DOT, member("x", type=tarfile.LNKTYPE, linkname="/etc/passwd")],
    "a file through a link": [
        DOT,
        member("d", type=tarfile.SYMTYPE, linkname="../outside"),
        member("d/file", b"evil"),
    ],
    "a file in place of a link": [
        DOT,
        member("f", type=tarfile.SYMTYPE, linkname="../victim"),
        member("f", b"evil"),
    ],
    "a file twice": [DOT, member("f", b"good"), member("f", b"evil")],
    "a file in a file": [DOT, member("f", b"good"), member("f/g", b"evil")],
    "a directory that was not asked for": [member("./d", type=tarfile.DIRTYPE)],
    "a link instead of all": [member(".", type=tarfile.SYMTYPE, linkname="../outside")],
    "two files instead of one": [member("a", b"1"), member("b", b"2")],
    "a sparse file": [DOT, member("f", b"x", pax_headers={"GNU.sparse.map": "0,1", "GNU.sparse.size": "9" * 12})],
    "nothing": [],
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_archive_is_refused_and_writes_nothing_outside(root: Path, what: str) -> None:
    with pytest.raises((BadArchive, OSError)):
        unpack(root, tar(*HOSTILE[what]))
    assert nothing_outside(root)


def test_links_that_lead_outside_and_devices_are_left_out(root: Path) -> None:
    data = tar(
        DOT,
        member("sub", type=tarfile.DIRTYPE, mode=0o755),
        member("sub/deep", type=tarfile.DIRTYPE, mode=0o755),
        member("absolute", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("sub/up", type=tarfile.SYMTYPE, linkname="../../victim"),
        # Each alone stays inside as text; together they lead out.
        member("sub/deep/root", type=tarfile.SYMTYPE, linkname="../.."),
        member("sub/deep/sly", type=tarfile.SYMTYPE, linkname="root/../victim"),
        member("null", type=tarfile.CHRTYPE),
        member("pipe", type=tarfile.FIFOTYPE),
    )
    left_out = [text.split(":")[0] for text in unpack(root, data).left_out]
    assert sorted(left_out) == ["absolute", "null", "pipe", "sub/deep/sly", "sub/up"]
    assert sorted(str(path.relative_to(root)) for path in root.rglob("*")) == ["sub", "sub/deep", "sub/deep/root"]


def test_a_header_that_needs_much_memory_is_refused(root: Path) -> None:
    """It says 1 TiB; a careful reader does not even begin to read that."""
    for kind in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
        info = tarfile.TarInfo("long")
        info.type, info.size = kind, 1 << 40
        with pytest.raises(BadArchive, match="header of 1099511627776 bytes"):
            unpack(root, tar(DOT)[:512] + info.tobuf(tarfile.GNU_FORMAT) + b"x" * 10_000)


def test_half_an_archive_is_refused(root: Path) -> None:
    whole = tar(DOT, member("f", b"x" * 5000))
    for size in (0, 100, 3000):
        with pytest.raises(BadArchive):
            unpack(root, whole[:size])
        remove_tree(root)
        root.mkdir()


names = st.lists(st.sampled_from(["..", ".", "", "a", "b", "victim", "outside"]), min_size=1, max_size=4).map("/".join)
kinds = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE])


@settings(max_examples=few(150), deadline=None)
@given(st.lists(st.tuples(names, kinds, names), max_size=6))
def test_no_archive_writes_or_links_outside(tmp_path_factory: pytest.TempPathFactory, made: list[Any]) -> None:
    base = tmp_path_factory.mktemp("archives", numbered=True)
    (base / "victim").write_text("untouched")
    (base / "outside").mkdir()
    (base / "in").mkdir()
    members = [DOT] + [
        member(name or "x", b"evil" if kind == tarfile.REGTYPE else b"", type=kind, linkname=target)
        for name, kind, target in made
    ]
    try:
        unpack(base / "in", tar(*members))
    except (BadArchive, OSError):
        assert nothing_outside(base / "in")
        return
    assert nothing_outside(base / "in")
    for path in (base / "in").rglob("*"):
        assert Path(os.path.realpath(path)).is_relative_to(os.path.realpath(base / "in"))

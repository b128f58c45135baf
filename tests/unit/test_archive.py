"""Archives of code: the same files make the same bytes, git says which files, and what comes out is what went in."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_platform.client import archive
from gpu_platform.client.archive import files_of, pack, stays_inside
from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.jobs.upload_limits import MAX_DEPTH
from gpu_platform.node.environments import unpacking

LIMIT = 1 << 20
PINNED = "3aed727b3c59b372a10c769f65c6c37351c17123d4776b925564792483b76ba2"


def tree(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def git(root: Path, *arguments: str) -> None:
    own = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", "-C", str(root), *own, *arguments], check=True, capture_output=True)


def unpacked(content: bytes, place: Path, most: int = 100) -> subprocess.CompletedProcess[bytes]:
    place.mkdir(exist_ok=True)
    command = [sys.executable, "-I", "-S", unpacking.__file__, str(len(content)), str(most)]
    return subprocess.run(command, input=content, cwd=place, capture_output=True, check=False)


def shown(root: Path) -> dict[str, tuple[str, bytes]]:
    """Path -> (kind, content) of all files and links."""
    found: dict[str, tuple[str, bytes]] = {}
    for directory, inner, files in os.walk(root):
        for name in (*files, *(one for one in inner if os.path.islink(os.path.join(directory, one)))):
            path = Path(directory, name)
            kind = "link" if path.is_symlink() else "program" if os.access(path, os.X_OK) else "file"
            content = os.fsencode(os.readlink(path)) if kind == "link" else path.read_bytes()
            found[str(path.relative_to(root))] = kind, content
    return found


def test_the_bytes_do_not_depend_on_times_owners_and_umask(tmp_path: Path) -> None:
    first = tree(tmp_path / "a", main="print(1)", pkg__mod="x", **{"a" * 120: "long name"})
    second = tree(tmp_path / "b", pkg__mod="x", main="print(1)", **{"a" * 120: "long name"})
    os.utime(second / "main", (1, 1))
    (second / "pkg").chmod(0o700)
    (second / "main").chmod(0o600)
    hashes: set[str] = set()
    for root in (first, second):
        with pack(root, LIMIT) as archive:
            hashes.add(archive.sha256)
    assert len(hashes) == 1
    (second / "main").chmod(0o755)
    with pack(second, LIMIT) as archive:
        assert archive.sha256 not in hashes, "whether a file can be executed is part of it"


def test_the_format_is_pinned(tmp_path: Path) -> None:
    root = tree(tmp_path / "a", train="print('hi')\n", pkg__init="", ä="umlaut")
    (root / "link").symlink_to("pkg/init")
    with pack(root, LIMIT) as archive:
        assert archive.sha256 == PINNED, "other bytes: every cluster would get all code anew"


def test_git_says_which_files(tmp_path: Path) -> None:
    root = tree(tmp_path / "a", keep="1", skip__data="2", **{".gitignore": "skip/\n*.ckpt\n", "b.ckpt": "3"})
    assert files_of(root) == [".gitignore", "keep"], "also outside of a repository"
    tree(root, sub__x="4", sub__y="5", **{".gpuignore": "sub/y\n"})
    assert files_of(root) == [".gitignore", ".gpuignore", "keep", "sub/x"]
    git(root, "init")
    git(root, "add", "-f", "b.ckpt")
    assert files_of(root) == [".gitignore", ".gpuignore", "b.ckpt", "keep", "sub/x"], "what git has is code"
    (root / "keep").unlink()
    assert "keep" not in files_of(root)
    assert files_of(root / "sub") == ["x", "y"], "a directory of a repository has the rules of the repository"
    inner = tree(root / "inner", z="6", w="7", **{".gitignore": "w\n"})
    git(inner, "init")
    git(inner, "add", ".")
    git(inner, "commit", "-m", "x")
    assert [name for name in files_of(root) if name.startswith("inner")] == ["inner/.gitignore", "inner/z"]


def test_what_is_too_large_is_refused_with_the_largest_files(tmp_path: Path) -> None:
    root = tree(tmp_path / "a", small="x")
    for number in range(6):
        (root / f"model-{number}.bin").write_bytes(bytes(1000 * (number + 1)))
    with pytest.raises(InvalidRequest) as refused:
        pack(root, 10_000)
    assert refused.value.message.startswith(
        f"{root} has 21.0 kB, the limit is 10.0 kB; the 5 largest: model-5.bin (6.0 kB), model-4.bin (5.0 kB), "
    )
    assert "small" not in refused.value.message
    assert ".gpuignore" in refused.value.message


def test_what_hosts_would_refuse_is_refused_before_it_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = tree(tmp_path / "many", a__x="", b__x="", c__x="")
    monkeypatch.setattr(archive, "MAX_ENTRIES", 5)
    with pytest.raises(InvalidRequest, match="has 3 files in 3 directories, the limit is 5 together"):
        pack(many, LIMIT)
    monkeypatch.setattr(archive, "MAX_ENTRIES", 6)
    with pack(many, LIMIT) as packed:
        content = packed.read(0, LIMIT)
    assert unpacked(content, tmp_path / "enough", most=6).returncode == 0
    assert unpacked(content, tmp_path / "too-many", most=5).returncode == unpacking.REFUSED
    monkeypatch.undo()
    with pytest.raises(InvalidRequest, match="a file in 64 directories, each in the other, the limit is 63"):
        pack(tree(tmp_path / "deep", **{"d__" * MAX_DEPTH + "x": ""}), LIMIT)
    with pack(tree(tmp_path / "less", **{"d__" * (MAX_DEPTH - 1) + "x": ""}), LIMIT) as packed:
        assert unpacked(packed.read(0, LIMIT), tmp_path / "out").returncode == 0


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "sub/../../outside"])
def test_a_link_that_leads_out_is_refused(tmp_path: Path, target: str) -> None:
    root = tree(tmp_path / "a", sub__x="1")
    (root / "link").symlink_to(target)
    with pytest.raises(InvalidRequest, match=r"link is a link to .*outside of .*\.gpuignore"):
        pack(root, LIMIT)


def test_nothing_to_pack_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="that is no directory here"):
        pack(tmp_path / "nowhere", LIMIT)
    with pytest.raises(InvalidRequest, match="there is no file in it"):
        pack(tmp_path, LIMIT)


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    root = tree(tmp_path / "a", main="print(1)", pkg__deep__mod="x", **{"n" * 200: "y"})
    (root / "main").chmod(0o755)
    (root / "pkg" / "link").symlink_to("../main")
    (root / "to-directory").symlink_to("pkg")
    with pack(root, LIMIT) as archive:
        done = unpacked(archive.read(0, LIMIT), tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert shown(tmp_path / "out") == shown(root)


NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
    lambda name: name not in (".", "..", ".git", ".gitignore", ".gpuignore")
)


@settings(max_examples=5, deadline=None)
@given(st.dictionaries(st.tuples(NAMES, NAMES), st.binary(max_size=2000), min_size=1, max_size=5))
def test_any_tree_survives(files: dict[tuple[str, str], bytes]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory, "in")
        for (above, name), content in files.items():
            (root / above).mkdir(parents=True, exist_ok=True)
            (root / above / name).write_bytes(content)
        with pack(root, LIMIT) as archive:
            done = unpacked(archive.read(0, LIMIT), Path(directory, "out"))
        assert done.returncode == 0, done.stderr
        assert shown(Path(directory, "out")) == shown(root)


@given(NAMES, st.lists(st.sampled_from(["..", "a", ".", "b"]), min_size=1, max_size=6))
def test_no_link_that_is_taken_leaves_the_archive(name: str, parts: list[str]) -> None:
    if stays_inside(f"x/{name}", "/".join(parts)):
        assert os.path.normpath(os.path.join("/root/x", *parts)).startswith("/root")


def test_an_archive_for_which_there_is_no_room_says_where(
    tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "large").write_bytes(bytes(4 << 20))
    monkeypatch.setattr("tempfile.tempdir", str(small_disk))
    with pytest.raises(InvalidRequest, match=r"cannot be packed: the disk of temporary files .* is full"):
        pack(tmp_path / "code", 100 << 20)

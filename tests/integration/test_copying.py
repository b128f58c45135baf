"""``jobs cp`` from the command line to a rank: the real service, the real node worker's HTTP side, a real tar."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gpu_platform.cli.jobs import copying
from tests.integration.test_exec_api import Platform, platform  # noqa: F401  # a fixture
from tests.support.command_line import Ran, run, start
from tests.support.waiting import eventually


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A directory where the rank runs."""
    (tmp_path / "there").mkdir()
    return tmp_path / "there"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory of the user."""
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


async def cp(platform: Platform, here: Path, *words: str) -> Ran:  # noqa: F811
    return await run("jobs", "cp", *words, url=platform.url, cwd=here)


def make_tree(directory: Path) -> None:
    (directory / "run/sub").mkdir(parents=True)
    (directory / "run/sub/a file").write_bytes(os.urandom(100_000))
    (directory / "run/tool").write_text("#!/bin/sh\n")
    (directory / "run/tool").chmod(0o750)
    (directory / "run/link").symlink_to("sub/a file")
    os.utime(directory / "run/tool", (1_000_000_000, 1_000_000_000))
    os.utime(directory / "run/sub", (1_100_000_000, 1_100_000_000))


def is_tree(copied: Path, original: Path) -> None:
    assert sorted(path.name for path in copied.rglob("*")) == ["a file", "link", "sub", "tool"]
    assert (copied / "link").readlink() == Path("sub/a file")
    assert (copied / "sub/a file").read_bytes() == (original / "sub/a file").read_bytes()
    found = (copied / "tool").stat()
    assert (found.st_mode & 0o777, found.st_mtime) == (0o750, 1_000_000_000)
    assert (copied / "sub").stat().st_mtime == 1_100_000_000


async def test_files_and_directories_go_both_ways(platform: Platform, there: Path, here: Path) -> None:  # noqa: F811
    platform.running("j-1")
    make_tree(there)
    for words in (["-r", f"j-1:{there}/run", "copy"], ["-r", f"j-1:{there}/run/", "."], [f"j-1:{there}/run/tool", "x"]):
        ran = await cp(platform, here, *words)
        assert (ran.code, ran.err) == (0, "")
    is_tree(here / "copy", there / "run")
    is_tree(here / "run", there / "run")
    assert (here / "x").stat().st_mtime == 1_000_000_000
    for words in (["-r", "run", f"j-1:{there}/back"], ["-r", "run", f"j-1:{there}/back"], ["x", f"j-1:{there}"]):
        ran = await cp(platform, here, *words)
        assert (ran.code, ran.err) == (0, "")
    is_tree(there / "back/run", there / "run")
    (here / "x").write_bytes(b"newer")
    assert (await cp(platform, here, "x", f"j-1:{there}/x")).code == 0, "a file is replaced"
    assert (there / "x").read_bytes() == b"newer"
    assert sorted(path.name for path in there.iterdir()) == ["back", "run", "x"]
    assert sorted(path.name for path in here.iterdir()) == ["copy", "run", "x"]


async def test_what_cannot_be_copied_says_why(platform: Platform, there: Path, here: Path) -> None:  # noqa: F811
    platform.running("j-1")
    make_tree(there)
    (here / "run").mkdir()
    for words, why in (
        ([f"j-1:{there}/none", "."], f"there is no {there}/none where the rank runs"),
        ([f"j-1:{there}/run", "x"], "is a directory: copy it with -r"),
        (["-r", f"j-1:{there}/run/.", "."], "has no name of its own"),
        ([f"j-1:{there}/run/tool", "none/x"], "there is no directory none"),
        (["run", "j-1:x"], "run is a directory: copy it with -r"),
        (["none", "j-1:x"], "there is no none"),
        (["-r", "run", f"j-1:{there}/none/x"], f"there is no directory {there}/none where the rank runs"),
        (["run", "run2"], "exactly one of the two must be JOB:PATH"),
        (["j-1:/dev/null", "x"], "/dev/null is neither a file nor a directory"),
    ):
        ran = await cp(platform, here, *words)
        assert (ran.code in (1, 2), why in " ".join(ran.err.replace("│", "").split())) == (True, True), (words, ran.err)
    assert [path.name for path in here.rglob("*")] == ["run"]
    assert sorted(path.name for path in there.iterdir()) == ["run"]


EVIL = """#!/bin/sh
exec {python} -c 'import io, sys, tarfile
out = tarfile.open(fileobj=sys.stdout.buffer, mode="w|")
dot = tarfile.TarInfo("."); dot.type = tarfile.DIRTYPE; out.addfile(dot)
link = tarfile.TarInfo("d"); link.type, link.linkname = tarfile.SYMTYPE, "../.."; out.addfile(link)
evil = tarfile.TarInfo("{name}"); evil.size = 4; out.addfile(evil, io.BytesIO(b"evil"))
out.close()'
"""


@pytest.mark.parametrize("name", ["../../victim", "d/victim", "{home}/victim"])
async def test_a_job_with_a_tar_of_its_own_writes_nothing_here(
    platform: Platform,  # noqa: F811
    there: Path,
    here: Path,
    name: str,
) -> None:
    (there / "tar").write_text(EVIL.format(python=sys.executable, name=name.format(home=here.parent)))
    (there / "tar").chmod(0o755)
    platform.running("j-1", env={"PATH": f"{there}:/usr/bin:/bin"})
    ran = await cp(platform, here, "-r", f"j-1:{there}", "copy")
    assert ran.code == 1
    assert "nothing was copied" in ran.err
    assert list(here.iterdir()) == []
    assert sorted(path.name for path in here.parent.iterdir() if "victim" in path.name) == []


async def test_what_is_cut_off_in_the_middle_leaves_no_file_of_that_name(
    platform: Platform,  # noqa: F811
    there: Path,
    here: Path,
) -> None:
    """Once the user's command is killed while it sends, once the job is killed while it is read."""
    platform.running("j-1")
    (here / "large").touch()
    os.truncate(here / "large", 3 << 30)
    sending = await start("jobs", "cp", str(here / "large"), f"j-1:{there}/target", url=platform.url)
    await eventually(lambda: list(there.glob(".gpu-platform-cp-*/copied")), "it sends")
    sending.send_signal(2)
    await sending.wait()
    await eventually(lambda: not list(there.iterdir()), "what is not complete is removed")
    reading = await start("jobs", "cp", f"j-1:{here}/large", f"{there}/target", url=platform.url)
    await eventually(lambda: list(there.glob(".target.*.partial/copied/target")), "it is read")
    await platform.rig.stop(platform.rig.keys[-1])
    assert await reading.wait() == 1
    assert list(there.iterdir()) == []
    assert reading.stderr is not None
    assert "nothing was copied" in (await reading.stderr.read()).decode()


def test_a_place_is_a_job_or_a_path() -> None:
    assert copying.parse_place("j-1jrp3k2h0x4t7za:a b:c") == ("j-1jrp3k2h0x4t7za", "a b:c")
    assert copying.parse_place("a-1jrp3k2h0x4t7za.17:/x") == ("a-1jrp3k2h0x4t7za.17", "/x")
    assert copying.parse_place("j-1:") == ("j-1", ".")
    for path in ("./j-1:x", "x:y", "C:x", "j-", "data"):
        assert copying.parse_place(path) == Path(path)

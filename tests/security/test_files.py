"""Which files of the host a job reaches: its working directory is opened once, with its rights, where that is allowed.

Each directory here was once the way to root: ``workdir: /root``, and a directory that became a link between two looks.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpu_platform.domain.errors import PreflightFailed
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.node.isolation import furnishing, workdirs
from gpu_platform.node.isolation.passwd import Account
from gpu_platform.node.isolation.workdirs import AS_ACCOUNT, Directory, RefusedDirectory
from tests.security.attacks import attack
from tests.support.hosts_rig import HostRig

pytestmark = pytest.mark.usefixtures("jails")

STRANGER = Account("stranger", 1_900_000_001, 1_900_000_001, "/tmp/home", [1_900_000_001])
_RENAME_EXCHANGE = 2
_libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every account reaches, which pytest's own is not."""
    path = Path(tempfile.mkdtemp(prefix="files-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def host(tmp_path: Path, place: Path) -> AsyncIterator[HostRig]:
    rig = HostRig(tmp_path / "state", isolation="required", workdirs=["~", str(place)])
    yield rig
    await rig.aclose()


def in_workdir(host: HostRig, workdir: Path | str, script: str) -> HostPlan:
    return attack(host, script, gpu=None).model_copy(update={"workdir": str(workdir)})


async def log_of(host: HostRig, plan: HostPlan) -> list[str]:
    host.launch(plan)
    await host.watch(plan)
    return host.log(plan).splitlines()


@pytest.mark.parametrize("workdir", ["/root", "/var/lib/dpkg", "/opt", "/var/spool", "/home", "/etc", "/"])
async def test_a_workdir_outside_the_allowed_ones_is_refused_and_the_allowed_ones_are_named(
    host: HostRig, workdir: str, place: Path
) -> None:
    with pytest.raises(PreflightFailed) as refused:
        host.launch(in_workdir(host, workdir, ""))
    assert "node.workdirs" in refused.value.message
    assert str(place) in refused.value.message


async def test_an_allowed_workdir_works_by_its_links_too(host: HostRig, place: Path) -> None:
    (place / "work").mkdir()
    (place / "work").chmod(0o777)
    (place / "link").symlink_to(place / "work")
    plan = in_workdir(host, place / "link", "open('made', 'w').write('x'); print(os.getcwd())")
    assert await log_of(host, plan) == [str(place / "work")]
    assert (place / "work" / "made").stat().st_uid in host.settings.node.attempt_uid_range
    assert (place / "work" / "made").read_text() == "x"


async def test_a_link_out_of_the_allowed_directory_is_refused(host: HostRig, place: Path) -> None:
    (place / "link").symlink_to("/opt")
    with pytest.raises(PreflightFailed, match=r"node\.workdirs"):
        host.launch(in_workdir(host, place / "link", ""))


async def test_a_rank_reads_nothing_that_only_root_reads(host: HostRig) -> None:
    script = """
    for path in ("/etc/shadow", "/root/.bashrc", "/root", "/var/lib/dpkg/lock", "/proc/1/environ"):
        attempt(path, (lambda p: os.listdir(p) if os.path.isdir(p) else open(p).read()), path)
    attempt("root's home", lambda: os.listdir("/root") and print("SEEN"))
    """
    lines = await log_of(host, attack(host, script, gpu=None))
    assert lines[0] == "/etc/shadow EACCES"
    assert "SEEN" not in lines
    assert not [line for line in lines if line.startswith(("/etc/shadow", "/root/", "/var")) and "WORKS" in line]


async def test_a_workdir_that_the_account_may_not_enter_is_refused_and_one_it_may_not_write_is_read_only(
    host: HostRig, place: Path
) -> None:
    (place / "closed").mkdir(0o700)
    with pytest.raises(PreflightFailed, match=r"may not enter .*/closed.*node\.users"):
        host.launch(in_workdir(host, place / "closed", ""))
    (place / "code").mkdir()
    (place / "code").chmod(0o755)
    (place / "code" / "train.py").write_text("1")
    (place / "code" / "train.py").chmod(0o666)
    script = "print(open('train.py').read()); attempt('write', open, 'train.py', 'a'); attempt('make', open, 'x', 'w')"
    assert await log_of(host, in_workdir(host, place / "code", script)) == ["1", "write EROFS", "make EROFS"]


async def test_a_job_does_not_learn_what_is_in_closed_directories(host: HostRig, place: Path) -> None:
    """The checks before a start are made by root. What is there and what is not must sound alike."""
    closed = place / "closed"
    (closed / "here").mkdir(parents=True)
    (closed / "here" / "program").write_text("#!/bin/sh\n")
    (closed / "here" / "program").chmod(0o755)
    (place / "link").symlink_to(closed)
    closed.chmod(0o700)
    changes: list[Callable[[str], dict[str, Any]]] = [
        lambda name: {"command": [f"{closed}/{name}/program"]},
        lambda name: {"command": [f"{place}/link/{name}/program"]},
        lambda name: {"command": ["program"], "env": {"PATH": f"{closed}/{name}"}},
        lambda name: {"workdir": f"{closed}/{name}"},
    ]
    for change in changes:
        said: set[str] = set()
        for name in ("here", "gone"):  # of one length: long messages are cut
            with pytest.raises(PreflightFailed) as refused:
                host.launch(attack(host, "", gpu=None).model_copy(update=change(name)))
            said.add(re.sub(r"\d{6,}", "UID", refused.value.message).replace(name, "NAME"))
        assert len(said) == 1, "\n".join(said)


async def test_a_workdir_with_the_platforms_state_in_it_is_refused(place: Path) -> None:
    rig = HostRig(place / "state", isolation="required", workdirs=[str(place)])
    (place / "state" / "checkpoints").mkdir(exist_ok=True)
    try:
        for workdir in (place, place / "state", place / "state" / "checkpoints"):
            with pytest.raises(PreflightFailed, match="belongs to the platform"):
                rig.launch(in_workdir(rig, workdir, ""))
    finally:
        await rig.aclose()


@contextmanager
def swapping(one: Path, other: Path) -> Iterator[None]:
    """Exchange two names again and again, thousands of times a second, in a process of its own."""
    script = f"""
import ctypes
libc = ctypes.CDLL(None)
while True:
    libc.renameat2(-100, {os.fsencode(one)!r}, -100, {os.fsencode(other)!r}, {_RENAME_EXCHANGE})
"""
    process = subprocess.Popen([sys.executable, "-c", script])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.timeout(60)
def test_a_directory_that_becomes_a_link_is_never_opened_as_what_the_link_names(place: Path) -> None:
    """Thousands of looks at a name that is a directory now, a link to the victim's in the next moment."""
    victim, work = place / "victim", place / "work"
    for directory in (victim, work, work / "sub"):
        directory.mkdir()
        directory.chmod(0o777)
    (work / "other").symlink_to("../victim")
    own, forbidden = (work / "sub").stat().st_ino, victim.stat().st_ino
    wanted = Directory(str(work / "sub"), str(place), AS_ACCOUNT)
    opened = refused = 0
    with swapping(work / "sub", work / "other"):
        for _ in range(5_000):
            try:
                fd = workdirs.open_below(wanted)
            except RefusedDirectory:
                refused += 1
                continue
            found = os.fstat(fd).st_ino
            os.close(fd)
            assert found != forbidden
            assert found == own
            opened += 1
    assert opened
    assert refused, "the race was never lost, so this test tried nothing"


async def test_a_swapped_workdir_gives_its_job_nothing_of_the_victims(tmp_path: Path, place: Path) -> None:
    """The whole way: launches, while the attacker's other job exchanges a directory and a link to the victim's files.

    Whoever had the victim's directory mounted could write there; in a jail all else of the host is read-only.
    """
    victim, work = place / "victim", place / "allowed" / "work"
    for directory in (victim, place / "allowed", work, work / "sub"):
        directory.mkdir()
        directory.chmod(0o777)
    (work / "other").symlink_to("../../victim")
    rig = HostRig(tmp_path / "state", isolation="required", workdirs=[str(place / "allowed")])
    script = f"""
    for place in (".", {str(work / "sub")!r}, {str(work / "other")!r}, {str(victim)!r}):
        attempt(place, open, place + "/planted", "w")
    """
    started = refused = 0
    try:
        with swapping(work / "sub", work / "other"):
            for _ in range(20):
                plan = in_workdir(rig, work / "sub", script)
                try:
                    await log_of(rig, plan)
                    started += 1
                except PreflightFailed:
                    refused += 1
                await rig.stop(plan.key)
                assert list(victim.iterdir()) == []
    finally:
        await rig.aclose()
    assert refused, "the race was never lost, so this test tried nothing"


async def test_the_check_of_the_race_finds_a_planted_mistake(
    host: HostRig, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the flags of openat2, the link is followed: the test above would see it."""
    victim, work = place / "victim", place / "work"
    victim.mkdir()
    work.mkdir()
    (work / "sub").symlink_to("../victim")
    wanted = Directory(str(work / "sub"), str(place), AS_ACCOUNT)
    with pytest.raises(RefusedDirectory, match="replaced by a link"):
        workdirs.open_below(wanted)
    monkeypatch.setattr(workdirs, "_RESOLVE_NO_SYMLINKS", 0)
    fd = workdirs.open_below(wanted)
    assert os.fstat(fd).st_ino == victim.stat().st_ino
    os.close(fd)


def test_a_tree_that_was_replaced_before_it_was_mounted_is_refused(place: Path) -> None:
    """The directory is opened, then another takes its name: nothing is mounted at a name that leads elsewhere."""
    (place / "work").mkdir()
    (place / "work").chmod(0o777)
    (place / "victim").mkdir()
    answer = _in_own_namespace(lambda: _attach_after_swap(place))
    assert "replaced" in answer, answer


def _attach_after_swap(place: Path) -> str:
    [tree] = furnishing.open_trees([Directory(str(place / "work"), str(place), AS_ACCOUNT)], STRANGER, [])
    (place / "work").rename(place / "moved")
    (place / "work").symlink_to("victim")
    try:
        workdirs.attach(tree)
    except RefusedDirectory as error:
        return str(error)
    return "mounted"


def _in_own_namespace(do) -> str:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _libc.unshare(0x20000)
            _libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None)
            os.write(write_end, do().encode())
        except BaseException as error:
            os.write(write_end, repr(error).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with open(read_end) as file:
        answer = file.read()
    os.waitpid(pid, 0)
    return answer


async def test_a_checkpoint_directory_that_became_a_link_gets_no_new_owner(host: HostRig, place: Path) -> None:
    (place / "victim").mkdir()
    plan = attack(host, "pass", gpu=None)
    host.worker.prepare(plan)
    directory = host.settings.state_dir / "checkpoints" / plan.key.job_id / "1"
    directory.rmdir()
    directory.symlink_to(place / "victim")
    with pytest.raises(PreflightFailed, match="replaced by a link"):
        host.launch(plan)
    assert (place / "victim").stat().st_uid == 0
    directory.unlink()


async def test_a_checkpoint_of_another_job_that_is_a_link_shows_nothing_else(host: HostRig, place: Path) -> None:
    """``resume from another job`` shows that job's checkpoint, which its own ranks can replace by a link."""
    checkpoints = host.settings.state_dir / "checkpoints"
    (checkpoints / "other" / "1").mkdir(parents=True)
    (checkpoints / "other" / "1" / "step-1").symlink_to("/etc")
    wanted = Directory(str(checkpoints / "other" / "1" / "step-1"), str(checkpoints), workdirs.READ)
    with pytest.raises(RefusedDirectory, match="replaced by a link"):
        workdirs.open_below(wanted)


async def test_a_swapped_writable_file_shows_nothing_of_the_victims(tmp_path: Path, place: Path) -> None:
    """A file in ``node.writable_paths`` is mounted by its name. Another job exchanges it and a link to the victim's."""
    victim, shared = place / "victim", place / "shared"
    for directory in (victim, shared):
        directory.mkdir()
        directory.chmod(0o777)
    for file in (victim / "file", shared / "file"):
        file.touch()
        file.chmod(0o666)
    (shared / "other").symlink_to("../victim/file")
    rig = HostRig(tmp_path / "state", isolation="required", writable_paths=[shared / "file"])
    script = f"""
    for path in ({str(shared / "file")!r}, {str(victim / "file")!r}):
        attempt("write", lambda: open(path, "w").write("planted"))
    """
    started = refused = 0
    try:
        plan = attack(rig, script, gpu=None)
        assert await log_of(rig, plan) == ["write WORKS", "write ENOENT"]
        await rig.stop(plan.key)
        with swapping(shared / "file", shared / "other"):
            for _ in range(20):
                plan = attack(rig, script, gpu=None)
                try:
                    await log_of(rig, plan)
                    started += 1
                except PreflightFailed:
                    refused += 1
                await rig.stop(plan.key)
                assert (victim / "file").read_text() == ""
    finally:
        await rig.aclose()
    assert refused, "the race was never lost, so this test tried nothing"


def test_what_is_mounted_by_name_is_verified_afterwards(place: Path) -> None:
    """The right file in the right place, and nothing else: not another file, and not the place of another name."""
    for name in ("file", "victim", "elsewhere"):
        (place / name).touch()

    def seen(mounted: str, at: str) -> str:
        [named] = workdirs.look_at([str(place / "file"), str(place / "missing")])
        _libc.mount(os.fsencode(place / mounted), os.fsencode(place / at), None, 0x1000, None)
        try:
            workdirs.verify(named)
        except RefusedDirectory as error:
            return str(error)
        return "verified"

    assert _in_own_namespace(lambda: seen("file", "file")) == "verified"
    assert "was replaced" in _in_own_namespace(lambda: seen("victim", "file"))
    assert "was replaced" in _in_own_namespace(lambda: seen("file", "elsewhere"))


async def test_a_writable_directory_with_the_state_directory_in_it_hides_that(place: Path) -> None:
    place.chmod(0o1777)
    rig = HostRig(place / "state", isolation="required", writable_paths=[place])
    try:
        lines = await log_of(
            rig,
            attack(
                rig,
                f"""
                open({str(place / "made")!r}, "w").write("x")
                print(os.listdir({str(place / "state")!r}))
                attempt("state", open, {str(place / "state" / "planted")!r}, "w")
                open(os.environ["GPU_PLATFORM_CHECKPOINT_DIR"] + "/saved", "w").write("x")
                """,
                gpu=None,
            ),
        )
        assert lines == ["['checkpoints']", "state EACCES"]
        assert (place / "made").read_text() == "x"
    finally:
        await rig.aclose()

"""The table of ``docs/explanation/bounds-of-a-host.md``: for each row the largest that is allowed passes, and what is
larger is refused with what was asked and what is allowed."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_platform import job
from gpu_platform.domain.errors import HostUnavailable, InUse, PlatformError, PreflightFailed
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.domain.jobs.environment import JobEnvironment
from gpu_platform.domain.jobs.exec import ExecRequest
from gpu_platform.node.checkpoints import store as checkpoint_store
from gpu_platform.node.checkpoints.store import CheckpointStore
from gpu_platform.node.environments import containers, unpacking
from gpu_platform.node.environments.containers import UNPACKED, ContainerStage
from gpu_platform.node.processes import exec_sessions
from gpu_platform.node.processes.exec_sessions import ExecSessions
from gpu_platform.node.processes.step_process import Bounds, StepProgram, run
from gpu_platform.node.system.paths import attempt_dir
from tests.integration.test_steps_that_hang import KINDS
from tests.support.hosts_rig import HostRig
from tests.support.hung_mount import hung_mount

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "bounds-of-a-host.md"
MIB = 1 << 20
needs_squashfs = pytest.mark.skipif(
    os.geteuid() != 0 or not (shutil.which("mksquashfs") and shutil.which("unsquashfs")), reason="needs squashfs-tools"
)


class Images:
    """A host that takes images of ``max_mib`` and ``max_files``."""

    def __init__(self, tmp_path: Path, max_mib: float = 4, max_files: int = 50) -> None:
        settings = {"image_max_gib": max_mib / 1024, "image_max_files": max_files}
        self.rig = HostRig(tmp_path / "state", **settings)
        rig = self.rig
        self.stage = ContainerStage(rig.settings.node, rig.settings.state_dir, rig.home, jailed=True, simulated=True)

    def plan(self, image: Path) -> HostPlan:
        plan = self.rig.plan("ls", environment=JobEnvironment(container=str(image)))
        attempt_dir(self.rig.home, plan.key).mkdir(parents=True)
        return plan

    def unpacked(self, image: Path) -> Path:
        plan = self.plan(image)
        try:
            self.stage.prepare(plan)
        except PlatformError:
            self.stage.finish(plan)
            assert not (attempt_dir(self.rig.home, plan.key) / UNPACKED).exists(), "nothing is left"
            raise
        return attempt_dir(self.rig.home, plan.key) / UNPACKED / "rootfs"


@pytest.fixture
def place() -> Iterator[Path]:
    """Every account reaches it."""
    found = Path("/srv") / f"gpu-platform-bounds-{os.getpid()}"
    found.mkdir(mode=0o755)
    yield found
    shutil.rmtree(found, ignore_errors=True)


def squashed(place: Path, name: str, files: dict[str, int]) -> Path:
    """An image with files of these sizes, which repeat one block: it is small."""
    tree = place / f"{name}-tree"
    tree.mkdir()
    pattern = b"0123456789abcdef"
    for file, size in files.items():
        (tree / file).write_bytes((pattern * (size // len(pattern) + 1))[:size])
    image = place / f"{name}.sqsh"
    subprocess.run(["mksquashfs", tree, image, "-quiet", "-no-progress"], check=True, capture_output=True)
    image.chmod(0o644)
    return image


@pytest.mark.parametrize("kind", KINDS)
@needs_squashfs
def test_an_image_that_is_no_file_is_refused_at_once(tmp_path: Path, place: Path, kind: str) -> None:
    image = place / "odd.sqsh"
    KINDS[kind](image)
    began = time.monotonic()
    with pytest.raises(PreflightFailed, match=r"odd\.sqsh cannot be used on box"):
        Images(tmp_path).unpacked(image)
    assert time.monotonic() - began < 5


@needs_squashfs
def test_a_small_image_that_becomes_large_is_refused_before_it_is_written(tmp_path: Path, place: Path) -> None:
    bomb = squashed(place, "bomb", {"large": 200 * MIB})
    assert bomb.stat().st_size < MIB
    images = Images(tmp_path, max_mib=100)
    before = shutil.disk_usage(tmp_path).used
    with pytest.raises(PreflightFailed, match=r"unpacked it has 0\.195 GiB or more, and 0\.0977 GiB are the most"):
        images.unpacked(bomb)
    assert shutil.disk_usage(tmp_path).used - before < 20 * MIB
    images.rig.worker.close()


@needs_squashfs
@pytest.mark.parametrize("where", ["image", "directory"])
async def test_a_stop_ends_an_image_on_a_file_system_that_hangs(tmp_path: Path, place: Path, where: str) -> None:
    images = Images(tmp_path)
    images.rig.restart([images.stage])
    with hung_mount(place / "hung") as hung:
        image = hung / ("i.sqsh" if where == "image" else "rootfs")
        plan = images.rig.plan("ls", environment=JobEnvironment(container=str(image)))
        launch = asyncio.create_task(asyncio.to_thread(images.rig.launch, plan))
        await asyncio.sleep(1.0)
        assert not launch.done(), launch
        await images.rig.stop(plan.key, timeout_s=6.0)
        with pytest.raises(PlatformError):
            await asyncio.wait_for(launch, 5)
    await images.rig.aclose()


# -- archives: what tarfile took 45 s of CPU and 298 MiB for

HEADER = unpacking.MOST_HEADER_BYTES


def block(name: bytes, kind: bytes, size: int) -> bytes:
    info = tarfile.TarInfo(name.decode())
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


def padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 512)


BOMBS = {
    "a PAX header of 200 MiB": lambda: block(b"x", b"x", 200 * MIB) + bytes(200 * MIB) + block(b"f", b"0", 0),
    "digits without an end": lambda: block(b"x", b"x", 3 * MIB) + b"1" * 3 * MIB + block(b"f", b"0", 0),
    "headers about headers": lambda: (block(b"x", b"x", 512) + padded(b"9 a=bcde\n")) * 60_000 + block(b"f", b"0", 0),
    "a GNU name of 100 MiB": lambda: block(b"L", b"L", 100 * MIB) + b"a" * 100 * MIB + block(b"f", b"0", 0),
    "a GNU link of 100 MiB": lambda: block(b"K", b"K", 100 * MIB) + b"a" * 100 * MIB + block(b"f", b"2", 0),
    "headers for all": lambda: (block(b"g", b"g", HEADER) + padded(b"1" * HEADER)) * 6000 + block(b"f", b"0", 0),
    "a negative size": lambda: block(b"f", b"0", 0)[:124] + b"\xff" * 12 + block(b"f", b"0", 0)[136:],
    "directories in names": lambda: b"".join(
        block(f"{n}/{'/'.join('abcdefghij' * 4)}/f".encode()[:99], b"0", 0) for n in range(90)
    ),
    "an old sparse map": lambda: block(b"s", b"S", 0),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_an_archive_is_refused_with_little_time_and_memory(tmp_path: Path, bomb: str) -> None:
    content = BOMBS[bomb]() + bytes(1024)
    archive = tmp_path / "archive"
    archive.write_bytes(content)
    place = tmp_path / "code"
    place.mkdir()
    with archive.open("rb") as file:
        program = [sys.executable, "-I", "-S", unpacking.__file__, str(len(content)), "100"]
        bounds = Bounds(wall_s=20, cpu_s=2, memory_bytes=96 * MIB)
        ended = run(StepProgram(program, stdin=file, cwd=place, env={}), bounds)
    assert ended.stopped is None, ended
    assert ended.code in (unpacking.REFUSED, unpacking.NOT_WRITTEN), ended
    assert sum(1 for _ in place.rglob("*")) <= 101


# -- the table


def rows() -> dict[str, str]:
    """First column -> what is said when it is over."""
    found: dict[str, str] = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if line.startswith("| ") and len(cells) == 6 and cells[0] != "what" and not cells[0].startswith("--"):
            found[cells[0]] = cells[5]
    return found


Over = Callable[[Path, Path, pytest.MonkeyPatch], Awaitable[str]]


async def image_bytes(tmp_path: Path, place: Path, _: pytest.MonkeyPatch) -> str:
    images = Images(tmp_path, max_mib=4)
    assert images.unpacked(squashed(place, "fits", {"a": 2 * MIB, "b": 2 * MIB})).is_dir()
    with pytest.raises(PreflightFailed) as error:
        images.unpacked(squashed(place, "over", {"a": 2 * MIB, "b": 2 * MIB + 1}))
    return error.value.message


async def image_files(tmp_path: Path, place: Path, _: pytest.MonkeyPatch) -> str:
    images = Images(tmp_path, max_files=10)
    assert images.unpacked(squashed(place, "fits", {f"f{n}": 1 for n in range(9)})).is_dir()
    with pytest.raises(PreflightFailed) as error:
        images.unpacked(squashed(place, "over", {f"f{n}": 1 for n in range(10)}))
    return error.value.message


async def image_time(tmp_path: Path, place: Path, patch: pytest.MonkeyPatch) -> str:
    patch.setattr(containers, "_UNPACK_TIMEOUT_S", 1.0)
    with hung_mount(place / "hung") as hung, pytest.raises(PreflightFailed) as error:
        Images(tmp_path).unpacked(hung / "i.sqsh")
    return error.value.message


def unpacked_by_us(tmp_path: Path, content: bytes, most: int = 100) -> subprocess.CompletedProcess[bytes]:
    place = tmp_path / f"code-{time.monotonic_ns()}"
    place.mkdir()
    program = [sys.executable, "-I", "-S", unpacking.__file__, str(len(content)), str(most)]
    return subprocess.run(program, input=content, cwd=place, capture_output=True, check=False)


def archive(names: list[str]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in names:
            tar.addfile(tarfile.TarInfo(name))
    return file.getvalue()


async def archive_entries(tmp_path: Path, *_: Any) -> str:
    assert unpacked_by_us(tmp_path, archive([f"f{n}" for n in range(10)]), 10).returncode == 0
    return unpacked_by_us(tmp_path, archive([f"f{n}" for n in range(11)]), 10).stderr.decode()


async def archive_directories(tmp_path: Path, *_: Any) -> str:
    assert unpacked_by_us(tmp_path, archive(["a/b/c/f", "a/b/d/f"]), 6).returncode == 0
    return unpacked_by_us(tmp_path, archive(["a/b/c/f", "a/b/d/f", "a/e/f"]), 6).stderr.decode()


async def archive_headers(tmp_path: Path, *_: Any) -> str:
    def with_header(size: int) -> bytes:
        value = b"v" * (size - len(f"{size} comment=\n"))
        content = f"{size} comment=".encode() + value + b"\n"
        assert len(content) == size
        return block(b"x", b"x", size) + padded(content) + block(b"f", b"0", 0) + bytes(1024)

    done = unpacked_by_us(tmp_path, with_header(HEADER))
    assert done.returncode == 0, done.stderr
    return unpacked_by_us(tmp_path, with_header(HEADER + 1)).stderr.decode()


def checkpoint(root: Path, number: int, files: dict[str, Any], pad: int = 0) -> Path:
    directory = root / "j" / "1" / f"step-{number}"
    directory.mkdir(parents=True)
    (directory / "state").write_text("x")
    text = json.dumps({"files": {"state": {"size": 1}, **files}})
    (directory / job.MANIFEST).write_text(text + " " * max(0, pad - len(text)))
    (directory / job.COMPLETE).touch()
    return directory


async def manifest_bytes(tmp_path: Path, *_: Any) -> str:
    checkpoint(tmp_path, 1, {}, 8 << 20)
    checkpoint(tmp_path, 2, {}, (8 << 20) + 1)
    fits, over = sorted(CheckpointStore(tmp_path).list_job("j"), key=lambda one: one.name)
    assert fits.complete
    return over.problem or ""


async def manifest_files(tmp_path: Path, _: Path, patch: pytest.MonkeyPatch) -> str:
    patch.setattr(checkpoint_store, "MOST_FILES", 5)
    checkpoint(tmp_path, 1, {f"d{n}/../state"[:0] + f"f{n}": {"size": 1} for n in range(4)})
    for n in range(4):
        (tmp_path / "j" / "1" / "step-1" / f"f{n}").write_text("x")
    checkpoint(tmp_path, 2, {f"f{n}": {"size": 1} for n in range(5)})
    fits, over = sorted(CheckpointStore(tmp_path).list_job("j"), key=lambda one: one.name)
    assert fits.complete, fits
    return over.problem or ""


async def damaged_checkpoints(tmp_path: Path, *_: Any) -> str:
    most = checkpoint_store.MOST_DAMAGED
    whole = checkpoint(tmp_path, 0, {})
    os.utime(whole / job.COMPLETE, (1, 1))
    for number in range(1, most + 1):
        checkpoint(tmp_path, number, {"missing": {"size": 1}})
    found, damaged = CheckpointStore(tmp_path).newest("j", 1)
    assert found is not None
    assert len(damaged) == most
    checkpoint(tmp_path, most + 1, {"missing": {"size": 1}})
    with pytest.raises(PreflightFailed) as error:
        CheckpointStore(tmp_path).newest("j", 1)
    return error.value.message


async def checkpoint_time(tmp_path: Path, *_: Any) -> str:
    rig = HostRig(tmp_path / "state", checkpoint_check_s=1.0, checkpoint_hash_mib=1 << 20)
    root = tmp_path / "state" / "checkpoints"
    directory = checkpoint(root, 1, {"big": {"size": 20 << 30, "sha256": "0" * 64}})
    (directory / "big").touch()
    os.truncate(directory / "big", 20 << 30)
    began = time.monotonic()
    with pytest.raises(HostUnavailable) as error:
        rig.worker.checkpointing.list_job("j", hashes=True)
    assert time.monotonic() - began < 5
    assert len(rig.worker.checkpointing.list_job("j")) == 1
    rig.worker.close()
    return error.value.message


async def output_bytes(tmp_path: Path, *_: Any) -> str:
    rig = HostRig(tmp_path / "state")
    directory = rig.worker.artifacts._root / "p"
    directory.mkdir(parents=True)
    text = json.dumps("x" * (64 * 1024 - 2))
    (directory / "output.json").write_text(text)
    assert rig.worker.artifacts.read_output("p").text == text
    (directory / "output.json").write_text(json.dumps("x" * (64 * 1024 - 1)))
    problem = rig.worker.artifacts.read_output("p").problem
    rig.worker.close()
    return problem or ""


class Sessions:
    """Jobs that sleep, and the sessions beside them."""

    def __init__(self, tmp_path: Path) -> None:
        self.rig = HostRig(tmp_path / "state")
        self.sessions = ExecSessions(self.rig.home, "box", self.rig.worker.start_helper, jailed=False)
        self.plans: dict[str, HostPlan] = {}

    def launched(self, name: str) -> HostPlan:
        if name not in self.plans:
            self.plans[name] = self.rig.plan("sleep", "600")
            self.rig.launch(self.plans[name])
        return self.plans[name]

    async def start(self, name: str, by: str, **how: Any) -> str:
        request = ExecRequest(command=["sleep", "600"], unread_s=604_800)
        return await self.sessions.start(self.launched(name).key, request, by, **how)

    async def aclose(self) -> None:
        self.sessions.close()
        await asyncio.sleep(0)
        await self.rig.aclose()


async def sessions_of_a_user(tmp_path: Path, _: Path, patch: pytest.MonkeyPatch) -> str:
    patch.setattr(exec_sessions, "MAX_SESSIONS_OF_A_USER", 3)
    host = Sessions(tmp_path)
    for number in range(3):
        await host.start(f"job{number}", "mallory")
    with pytest.raises(InUse) as error:
        await host.start("job3", "mallory")
    await host.start("job4", "alice")
    await host.aclose()
    return error.value.message


async def sessions_of_a_host(tmp_path: Path, _: Path, patch: pytest.MonkeyPatch) -> str:
    for name, value in (("MAX_SESSIONS", 6), ("KEPT_FOR_NEW_USERS", 1), ("KEPT_FOR_OPERATORS", 1)):
        patch.setattr(exec_sessions, name, value)
    host = Sessions(tmp_path)
    for number in range(5):
        await host.start("job", f"mallory{number % 2}")
    with pytest.raises(InUse) as error:
        await host.start("job", "mallory0")
    await host.start("other", "alice")  # what is kept for new users
    with pytest.raises(InUse):
        await host.start("other", "bob")
    await host.start("job", "root", operator=True)  # what is kept for operators
    with pytest.raises(InUse):
        await host.start("job", "root", operator=True)
    patch.setattr(exec_sessions, "UNREAD_GIVES_WAY_S", 0.0)
    await host.start("other", "bob")  # a session that nobody reads makes place
    users = sorted(one.user for one in host.sessions._sessions.values())
    assert users.count("bob") == 1
    await host.aclose()
    return error.value.message


async def session_time(tmp_path: Path, _: Path, patch: pytest.MonkeyPatch) -> str:
    patch.setattr(exec_sessions, "LONGEST_SESSION_S", 1.0)
    host = Sessions(tmp_path)
    session_id = await host.start("job", "mallory")
    session = host.sessions.get(host.plans["job"].key, 0, session_id)
    async with asyncio.timeout(10):
        ends = [chunk.reason async for chunk in session.follow(0) if chunk.exit_code is not None]
    await host.aclose()
    return ends[0] or ""


CHECKS: dict[str, Over] = {
    "bytes of an image file, unpacked": image_bytes,
    "files of an image": image_files,
    "time to unpack an image file": image_time,
    "entries of uploaded code": archive_entries,
    "directories that names of uploaded code mention": archive_directories,
    "what an archive says about one entry": archive_headers,
    "bytes of a checkpoint's manifest": manifest_bytes,
    "files of a checkpoint's manifest": manifest_files,
    "damaged checkpoints before a whole one": damaged_checkpoints,
    "time to verify checkpoints": checkpoint_time,
    "bytes of a step's output": output_bytes,
    "sessions of a user": sessions_of_a_user,
    "sessions of a host": sessions_of_a_host,
    "time of a session": session_time,
}
ELSEWHERE = {
    "a path that a job names": "tests/integration/test_steps_that_hang.py",
    "bytes of an image of a registry": "tests/integration/test_image_registries.py",
    "time to get an image": "tests/integration/test_image_registries.py",
    "time of a tool of the host: nvidia-smi, MPS, scrub": "tests/unit/node/test_tools.py",
    "bytes of uploaded code": "tests/security/test_uploads.py",
    "sessions of a job": "tests/integration/test_hosts_exec.py",
    "connections to a port": "tests/integration/test_forwarding.py",
    "bytes of a log": "tests/integration/test_large_logs.py",
    "files that a job leaves in its code or image": "tests/security/test_environments.py",
}
"""Rows that other tests look at."""


def test_each_row_has_a_test() -> None:
    assert rows().keys() == {*CHECKS, *ELSEWHERE}
    assert all((PAGE.parents[2] / place).exists() for place in ELSEWHERE.values())


@needs_squashfs
@pytest.mark.parametrize("what", CHECKS)
async def test_the_largest_passes_and_the_next_is_refused(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    said = await CHECKS[what](tmp_path, place, monkeypatch)
    for word in re.findall(r"`([^`]+)`", rows()[what]):
        pattern = re.escape(word).replace("N", r"[\d.]+(?:e\+\d+)?")
        assert re.search(pattern, said), (word, said)

"""Steps of a launch that never end by themselves: nothing else of the host waits for them, and a stop ends them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.node.launch import LaunchActivities
from activities.node.watch import RankWatcher
from gpu_platform import job
from gpu_platform.domain.errors import IllegalTransition, PlatformError, PreflightFailed
from gpu_platform.domain.jobs.attempt import HostPlan, LaunchRequest
from gpu_platform.domain.jobs.checkpoint import CheckpointPolicy
from gpu_platform.domain.jobs.environment import JobEnvironment
from gpu_platform.node.environments.stages import environment_stages
from gpu_platform.node.processes import step_process
from gpu_platform.node.processes.step_process import Bounds, StepGivenUp, StepProgram, StepStopped, run
from gpu_platform.node.processes.stopping import is_closed
from gpu_platform.node.system.paths import attempt_dir
from tests.support.hosts_rig import HostRig, NoFaults, is_running
from tests.support.hung_mount import hung_mount
from tests.support.waiting import eventually

STOP_WITHIN_S = 6.0
Rig = Callable[..., HostRig]


@pytest.fixture
async def rig(tmp_path: Path):
    made = HostRig(tmp_path / "state", outputs_root=tmp_path / "outputs")
    yield made
    await made.aclose()


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[Path]:
    with hung_mount(tmp_path / "hung") as place:
        yield place


def launching(rig: HostRig) -> LaunchActivities:
    return LaunchActivities(rig.worker, RankWatcher(rig.worker, NoFaults()))


def children() -> set[int]:
    """Processes below this one that live."""
    found = set[int]()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return {pid for pid in found if is_running(pid)}


async def test_a_file_system_that_hangs_keeps_nothing_else_waiting(
    rig: HostRig, hung: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_process, "LOOK_TIMEOUT_S", 3.0)
    steps, loop = launching(rig), asyncio.get_running_loop()
    first = rig.plan("true")
    await ActivityEnvironment().run(steps.launch_ranks, LaunchRequest(plan=first))
    threads = threading.active_count()
    with ThreadPoolExecutor(2) as shared:
        loop.set_default_executor(shared)
        plans = [rig.plan("true", workdir=str(hung / "work")) for _ in range(9)]
        launches = [
            asyncio.create_task(ActivityEnvironment().run(steps.launch_ranks, LaunchRequest(plan=plan)))
            for plan in plans
        ]
        await asyncio.sleep(0.5)
        async with asyncio.timeout(2.0):
            await asyncio.gather(*[asyncio.to_thread(lambda: None) for _ in range(4)])  # as the lease's
            other = rig.plan("true", workdir=str(rig.home))
            await ActivityEnvironment().run(steps.launch_ranks, LaunchRequest(plan=other))
        failed = await asyncio.gather(*launches, return_exceptions=True)
    for one in failed:
        assert isinstance(one, Exception)
        assert f"{hung / 'work'} (mounted at {hung}) has not answered for 3 s: mend or unmount {hung}" in str(one)
    assert not {plan.key for plan in plans} & set(rig.worker.attempts()), "the host is as before"
    await eventually(lambda: threading.active_count() <= threads + 2, "no thread is left")


async def test_a_mount_at_which_a_process_hangs_in_the_kernel_is_refused_until_it_ends(
    rig: HostRig, hung: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that a cgroup of version 1 has frozen takes no SIGKILL, as one in the state D does not."""
    freezer = Path(f"/sys/fs/cgroup/freezer/gpu-platform-test-{os.getpid()}")
    if not freezer.parent.is_dir():
        pytest.skip("no freezer of cgroup v1")
    monkeypatch.setattr(step_process, "LOOK_TIMEOUT_S", 2.0)
    monkeypatch.setattr(step_process, "KILL_PATIENCE_S", 0.5)
    step_process.close()
    freezer.mkdir()
    try:
        plan = rig.plan("true", workdir=str(hung))
        before = children()
        launch = asyncio.create_task(asyncio.to_thread(rig.launch, plan))
        await eventually(lambda: children() - before, "a helper")
        for pid in children() - before:
            (freezer / "cgroup.procs").write_text(str(pid))
        (freezer / "freezer.state").write_text("FROZEN")
        with pytest.raises(PreflightFailed, match="has not answered for 2 s"):
            await launch
        began = time.monotonic()
        with pytest.raises(PreflightFailed, match=r"has not answered for \d+ s: mend or unmount"):
            rig.launch(rig.plan("true", workdir=str(hung / "other")))
        assert time.monotonic() - began < 1.0, "it is refused at once"
        rig.launch(rig.plan("true", workdir=str(tmp_path)))
    finally:
        (freezer / "freezer.state").write_text("THAWED")
        await eventually(lambda: not freezer.joinpath("cgroup.procs").read_text(), "its end")
        freezer.rmdir()
    await eventually(lambda: not step_process._HUNG.mounts(), "it is noticed")
    with pytest.raises(PreflightFailed, match="has not answered for 2 s"):
        rig.launch(rig.plan("true", workdir=str(hung)))


def sparse_checkpoints(root: Path, job_id: str, count: int, size: int) -> None:
    """Checkpoints whose one file has a wrong hash: the same sparse file in all of them."""
    root.mkdir(parents=True, exist_ok=True)
    big = root / "big"
    with big.open("wb") as file:
        file.truncate(size)
    for number in range(count):
        directory = root / job_id / "1" / f"step-{number}"
        directory.mkdir(parents=True)
        os.link(big, directory / "state")
        wrong = {"files": {"state": {"size": size, "sha256": "0" * 64}}}
        (directory / job.MANIFEST).write_text(json.dumps(wrong))
        (directory / job.COMPLETE).touch()


class SilentSource:
    """A service that never gives the code."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def __call__(self, plan: HostPlan, file: IO[bytes]) -> None:
        while not is_closed(self._home, plan.key):
            time.sleep(0.05)
        raise StepGivenUp


STAGES: dict[str, Callable[[HostRig, Path], dict[str, Any]]] = {
    "working directory": lambda _, hung: {"workdir": str(hung / "w")},
    "program": lambda _, hung: {"command": [str(hung / "program")]},
    "PATH": lambda _, hung: {"command": ["some-program"], "env": {"PATH": f"{hung}/bin:/usr/bin"}},
    "virtual environment": lambda _, hung: {"environment": JobEnvironment(venv=str(hung / "venv"))},
    "checkpoints": lambda *_: {"checkpoint": CheckpointPolicy(resume_from="big-job")},
    "uploaded code": lambda *_: {"environment": JobEnvironment(upload=hashlib.sha256(b"x").hexdigest())},
}


def of_stage(stage: str, rig: HostRig, hung: Path) -> HostPlan:
    if stage == "checkpoints":
        sparse_checkpoints(rig.settings.state_dir / "checkpoints", "big-job", 12, 2 << 30)
    if stage == "uploaded code":
        rig.restart(environment_stages(rig.settings, rig.home, rig.inventory, SilentSource(rig.home)))
    changes = STAGES[stage](rig, hung)
    return rig.plan(*changes.pop("command", ["true"]), **changes)


async def _stopped(rig: HostRig, plan: HostPlan) -> None:
    await rig.stop(plan.key, timeout_s=STOP_WITHIN_S)


async def _lease_ended(rig: HostRig, _: HostPlan) -> None:
    await rig.worker.end_ranks_without_lease()


ORDERS: dict[str, Callable[[HostRig, HostPlan], Awaitable[None]]] = {
    "cancel, kill, offline --force": _stopped,  # each is the same order to the host
    "end of the lease": _lease_ended,
}


@pytest.mark.some(4)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("stage", STAGES)
async def test_a_stop_ends_every_stage_that_hangs(rig: HostRig, hung: Path, stage: str, order: str) -> None:
    plan = of_stage(stage, rig, hung)
    launch = asyncio.create_task(asyncio.to_thread(rig.worker.launch, LaunchRequest(plan=plan)))
    await asyncio.sleep(1.0)
    assert not launch.done(), launch
    if order == "end of the lease" and not rig.worker.attempts():
        await rig.stop(plan.key)  # it is not open yet: nothing of it would start
    began = time.monotonic()
    await ORDERS[order](rig, plan)
    assert time.monotonic() - began < STOP_WITHIN_S
    with pytest.raises((IllegalTransition, PlatformError)):
        await asyncio.wait_for(launch, 5.0)
    assert plan.key not in rig.worker.attempts()


async def test_a_stop_waits_for_no_jail_whose_maker_hangs(rig: HostRig) -> None:
    """Who makes a jail may hang at a directory of the job. The lock says who it is."""
    plan = rig.plan("true")
    directory = attempt_dir(rig.home, plan.key)
    program = (
        "import sys, time; sys.path.insert(0, sys.argv[1]);"
        "from gpu_platform.node.isolation.jail import jail_lock\n"
        "with jail_lock(sys.argv[2]): print('held', flush=True); time.sleep(600)"
    )
    maker = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", program, str(Path(__file__).parents[2]), str(directory)], stdout=subprocess.PIPE
    )
    assert maker.stdout is not None
    assert maker.stdout.readline() == b"held\n"
    began = time.monotonic()
    await rig.stop(plan.key, timeout_s=30)
    assert time.monotonic() - began < 15
    assert maker.wait(5) == -9
    maker.stdout.close()


def _bind(place: Path) -> None:
    # By its directory's descriptor: the whole path may be longer than the name of a socket can be.
    directory = os.open(place.parent, os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(f"/proc/self/fd/{directory}/{place.name}")
    finally:
        os.close(directory)


def _sparse(place: Path) -> None:
    place.touch()
    os.truncate(place, 2 << 40)


KINDS: dict[str, Callable[[Path], None]] = {
    "fifo": os.mkfifo,
    "device": lambda place: os.mknod(place, 0o20644, os.makedev(1, 5)),
    "socket": _bind,
    "directory": lambda place: place.mkdir(),
    "loop": lambda place: place.symlink_to(place.name),
    "dangling link": lambda place: place.symlink_to("nowhere"),
    "endless link": lambda place: place.symlink_to("/dev/zero"),
    "file of proc": lambda place: place.symlink_to("/proc/kmsg"),
    "sparse": _sparse,
    "unreadable": lambda place: place.touch(mode=0o000),
}
"""What a user may put where a file is expected."""


def _output(rig: HostRig, place: Path) -> object:
    return rig.worker.artifacts.read_output(str(place.parent.relative_to(rig.worker.artifacts._root)))


def _manifest(rig: HostRig, _: Path) -> object:
    return rig.worker.checkpointing.list_job("odd", hashes=True)


def _prepared(rig: HostRig, **changes: Any) -> object:
    return rig.worker.prepare(rig.plan(*changes.pop("command", ["true"]), **changes))


PLACES: dict[str, tuple[str, Callable[[HostRig, Path], object]]] = {
    "working directory": ("w", lambda rig, place: _prepared(rig, workdir=str(place))),
    "program": ("p", lambda rig, place: _prepared(rig, command=[str(place)])),
    "virtual environment": ("v", lambda rig, place: _prepared(rig, environment=JobEnvironment(venv=str(place)))),
    "its mark": ("v/pyvenv.cfg", lambda rig, place: _prepared(rig, environment=JobEnvironment(venv=str(place.parent)))),
    "output": ("state/artifacts/p/s/j/output.json", _output),
    "manifest of a checkpoint": (f"state/checkpoints/odd/1/step-1/{job.MANIFEST}", _manifest),
    "mark of a checkpoint": (f"state/checkpoints/odd/1/step-1/{job.COMPLETE}", _manifest),
    "file of a checkpoint": ("state/checkpoints/odd/1/step-1/state", _manifest),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
async def test_what_is_no_file_is_never_waited_for(rig: HostRig, tmp_path: Path, place: str, kind: str) -> None:
    where, use = PLACES[place]
    path = tmp_path / where
    path.parent.mkdir(parents=True, exist_ok=True)
    if "checkpoint" in place:
        for name, text in ((job.MANIFEST, '{"files": {"state": {"size": 1}}}'), (job.COMPLETE, ""), ("state", "x")):
            (path.parent / name).write_text(text)
        path.unlink()
    KINDS[kind](path)
    began = time.monotonic()
    try:
        await asyncio.to_thread(use, rig, path)
    except PreflightFailed as error:
        said = error.message
    else:
        said = "box"
    assert "box" in said
    assert time.monotonic() - began < 5.0
    path.unlink() if not path.is_dir() or path.is_symlink() else path.rmdir()


@pytest.mark.parametrize(
    ("argv", "bounds", "stopped"),
    [
        (["sleep", "60"], Bounds(wall_s=0.5), StepStopped.TOO_SLOW),
        (["sh", "-c", "while :; do :; done"], Bounds(wall_s=30, cpu_s=1), StepStopped.OUT_OF_CPU),
        (["yes"], Bounds(wall_s=30, output_bytes=1 << 20), StepStopped.TOO_LARGE),
        (["sh", "-c", "setsid sleep 60 & setsid sh -c 'sleep 60; :' & wait"], Bounds(wall_s=0.5), StepStopped.TOO_SLOW),
    ],
)
def test_a_step_that_is_over_its_bounds_ends_with_all_that_it_started(
    argv: list[str], bounds: Bounds, stopped: StepStopped
) -> None:
    began = time.monotonic()
    ended = run(StepProgram(argv), bounds)
    assert ended.stopped is stopped
    assert time.monotonic() - began < 10
    left = [line for line in Path("/proc").glob("[0-9]*/cmdline") if _reads(line) == b"sleep\x0060\x00"]
    assert not left


def _reads(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_step_writes_no_larger_file_and_takes_no_more_memory(tmp_path: Path) -> None:
    ended = run(
        StepProgram(["dd", "if=/dev/zero", f"of={tmp_path / 'f'}", "bs=1M", "count=4"]), Bounds(30, file_bytes=1 << 20)
    )
    assert ended.code != 0
    assert (tmp_path / "f").stat().st_size == 1 << 20
    ended = run(StepProgram([sys.executable, "-c", "bytearray(1 << 30)"]), Bounds(30, memory_bytes=256 << 20))
    assert "MemoryError" in ended.said

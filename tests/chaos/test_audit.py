"""The parts of the audit that read the world see what they are there to see."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpu_platform.domain.events import Event
from gpu_platform.store import Store
from tests.chaos.audit import Audit
from tests.chaos.checks import double_holds
from tests.chaos.plan import RANK, make_plan
from tests.chaos.truth import Run, Truth, observed, read_truth
from tests.support.store_cluster import Cluster


def gang(kind: str, job_id: str, *gpus: str) -> Event:
    return Event(
        seq=0, at=datetime.now(UTC), kind=f"gang.{kind}", actor="test", job_id=job_id, attempt=1, data={"gpus": gpus}
    )


def test_one_holder_after_the_other_is_right() -> None:
    log = [gang("reserved", "a", "x", "y"), gang("released", "a", "x", "y"), gang("reserved", "b", "y")]
    assert double_holds([*log, gang("released", "b", "y")]) == []
    assert double_holds(log) == ["y: b#1 never released it"]


def test_two_holders_at_once_are_found() -> None:
    log = [gang("reserved", "a", "x", "y"), gang("reserved", "b", "y"), gang("released", "a", "x", "y")]
    assert double_holds([*log, gang("released", "b", "y")]) == [
        "y: b#1 reserved it while a#1 held it",
        "y: a#1 released it without holding it",
        "y: b#1 released it without holding it",
    ]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    with observed(tmp_path):
        yield tmp_path


def rank(directory: Path, job: str, attempt: int, gpus: str, *arguments: str) -> subprocess.Popen[bytes]:
    env = {
        "GPU_PLATFORM_JOB_ID": job,
        "GPU_PLATFORM_ATTEMPT": str(attempt),
        "GPU_PLATFORM_HOST": "a",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GPU_PLATFORM_GPUS": gpus,
    }
    return subprocess.Popen([sys.executable, "-S", "-E", str(RANK), str(directory), *arguments], env=env)


def truth_when(directory: Path, condition: str, runs: int, ended: int) -> Truth:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        truth = read_truth(directory)
        if len(truth.runs) >= runs and sum(run.end is not None for run in truth.runs) >= ended:
            return truth
        time.sleep(0.01)
    raise AssertionError(f"not within 20 s: {condition}; {read_truth(directory)}")


def test_a_rank_writes_its_begin_and_its_end(directory: Path) -> None:
    assert rank(directory, "j", 1, "x,y", "0", "3").wait() == 3
    (run,) = truth_when(directory, "one run, ended", 1, 1).runs
    assert (run.job, run.attempt, run.host, run.gpus, run.exit_code) == ("j", 1, "a", ("x", "y"), 3)
    assert run.watched
    assert run.end is not None
    assert run.end > run.begin


def test_the_end_of_a_killed_rank_is_known(directory: Path) -> None:
    killed = rank(directory, "j", 1, "x", "600", "0")
    truth_when(directory, "a run", 1, 0)
    killed.kill()
    killed.wait()
    (run,) = truth_when(directory, "its end", 1, 1).runs
    assert run.exit_code is None


def test_two_attempts_at_once_are_proved_by_the_later_one(directory: Path) -> None:
    first = rank(directory, "j", 2, "x", "600", "0")
    try:
        truth_when(directory, "the first", 1, 0)
        assert rank(directory, "j", 1, "y", "0", "0").wait() == 0
        assert rank(directory, "k", 1, "x", "0", "0").wait() == 0
    finally:
        first.kill()
        first.wait()
    truth = truth_when(directory, "all", 3, 3)
    assert truth.together == {("j", 1, 2)}
    assert truth.taken == {("k", 1, "x")}
    assert {run.name: run.exit_code for run in truth.runs if isinstance(run, Run)} == {
        "j#2 rank 0": None,
        "j#1 rank 0": 0,
        "k#1 rank 0": 0,
    }


def test_attempts_in_turn_are_no_violation(directory: Path) -> None:
    for attempt in (1, 2, 3):
        assert rank(directory, "j", attempt, "x", "0", "0").wait() == 0
    truth = truth_when(directory, "three runs", 3, 3)
    assert (truth.together, truth.taken, truth.repeated) == (frozenset(), frozenset(), ())


def test_a_rank_that_begins_again_in_its_attempt_is_found(directory: Path) -> None:
    for _ in range(2):
        assert rank(directory, "j", 1, "x", "0", "0").wait() == 0
        truth_when(directory, "its end", 1, 1)
    truth = truth_when(directory, "both runs", 1, 1)
    (run,), (before,) = truth.runs, truth.repeated
    assert before.end is not None
    assert run.end is not None
    assert before.begin < before.end < run.begin < run.end


def test_a_child_that_was_left_behind_keeps_its_rank_alive(directory: Path) -> None:
    assert rank(directory, "j", 1, "x", "0", "0", "forks").wait() == 0
    assert rank(directory, "j", 2, "y", "0", "0").wait() == 0
    truth = truth_when(directory, "two runs, one of them ended", 2, 1)
    assert truth.together == {("j", 1, 2)}
    assert {run.attempt: run.end is None for run in truth.runs} == {1: True, 2: False}
    for pid in _left_behind(directory):
        subprocess.run(["kill", "-9", pid], check=True)


def _left_behind(directory: Path) -> list[str]:
    found = subprocess.run(["pgrep", "-f", f"{RANK} {directory} "], capture_output=True, text=True, check=False)
    return found.stdout.split()


def test_what_is_left_behind_is_found(sqlite_store: Store, tmp_path: Path) -> None:
    """GPUs that a job holds which nobody ends, one that waits for ever, and a process that no host knows."""
    cluster = Cluster(sqlite_store).host("a")
    held = cluster.running("held", {"a": [0]})
    cluster.queued("waits")
    env = {"GPU_PLATFORM_NODE_DIR": f"{tmp_path}/nodes/a", "GPU_PLATFORM_ATTEMPT_ID": "left/1"}
    process = subprocess.Popen(["cat"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    # It answers. Popen returns a little earlier, when the environment of the new program cannot be read yet.
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"\n"
    audit = Audit(str(sqlite_store.url), "nowhere", tmp_path)
    try:
        found = audit.leftovers()
    finally:
        process.kill()
        process.communicate()
        audit.close()
    assert [str(violation) for violation in found] == [
        f"something left behind: {held} still holds GPUs",
        "something left behind: waits still waits",
        f"something left behind: process {process.pid} of left/1 lives",
        "a GPU in two hands: GPU-a-0: held#1 never released it",
    ]


@pytest.mark.usefixtures("temporal")  # it waits until the server answers
async def test_a_job_that_only_the_store_knows_is_found(
    sqlite_store: Store, temporal_address: str, tmp_path: Path
) -> None:
    Cluster(sqlite_store).host("a").queued("j")
    audit = Audit(str(sqlite_store.url), temporal_address, tmp_path)
    assert await audit.open_jobs(["j", "unknown"]) == {"j": "QUEUED in the store, None in Temporal; None"}
    assert list(audit.jobs(["j", "unknown"])) == ["j"]
    audit.close()


def test_a_plan_is_its_seeds() -> None:
    plans = [make_plan(seed, 20, jobs_per_s=3, disruptions_per_s=2) for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]

"""The audit of the chaos tests sees what it is there to see."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from gpu_platform.domain.job import JobEvent
from tests.chaos.audit import Ledger, double_holds
from tests.chaos.monkey import RANK
from tests.chaos.plan import make_plan


def gang(kind: str, job_id: str, *gpus: str) -> JobEvent:
    return JobEvent(
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


def rank(directory: Path, job_id: str, gpus: str, *arguments: str) -> subprocess.Popen[bytes]:
    env = {
        "GPU_PLATFORM_JOB_ID": job_id,
        "GPU_PLATFORM_ATTEMPT": "1",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GPU_PLATFORM_GPUS": gpus,
    }
    return subprocess.Popen([sys.executable, "-S", "-E", str(RANK), str(directory), *arguments], env=env)


def test_a_rank_tells_when_its_gpu_is_in_use(tmp_path: Path) -> None:
    assert rank(tmp_path, "first", "x,y", "0", "3").wait() == 3
    assert not (tmp_path / "overlaps").exists()
    holder = rank(tmp_path, "holder", "y,z", "600", "0")
    try:
        while not Ledger(tmp_path / "ledger").runs()["holder", 1, 0]:
            assert holder.poll() is None
        assert rank(tmp_path, "second", "x,y", "0", "0").wait() == 0
    finally:
        holder.kill()
        holder.wait()
    assert (tmp_path / "overlaps").read_text() == "second 1 0 found y in use\n"
    assert Ledger(tmp_path / "ledger").runs()["first", 1, 0] == 1


def test_a_plan_is_its_seeds() -> None:
    plans = [make_plan(seed, 20, jobs_per_s=3, disruptions_per_s=2) for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]

"""When attempts last saved their work, as their host sees it."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.hosts.lease import SavedCheckpoint
from gpu_platform.node.checkpoints import checkpoint_times
from gpu_platform.node.checkpoints.checkpoint_times import CheckpointTimes
from tests.support.store_cluster import key
from tests.support.waiting import eventually


def complete(root: Path, of: AttemptKey, at: float) -> Path:
    marker = root / of.job_id / str(of.attempt) / "COMPLETE"
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()
    os.utime(marker, (at, at))
    return marker


def test_each_attempt_has_the_time_of_its_own_newest_checkpoint(tmp_path: Path) -> None:
    times = CheckpointTimes(tmp_path)
    first, second, begun = key("job", 1), key("job", 2), key("other")
    (tmp_path / "other" / "1").mkdir(parents=True)
    (tmp_path / "other" / "1" / "part").touch()
    complete(tmp_path, first, 100.5)
    assert times.newest([first, second, begun]) == [SavedCheckpoint(key=first, written_at=100.5)]
    complete(tmp_path, second, 200.0)
    complete(tmp_path, first, 300.0)
    assert times.newest([second]) == [SavedCheckpoint(key=second, written_at=200.0)]
    complete(tmp_path, second, 400.0).unlink()
    assert times.newest([second]) == []


def test_times_that_users_made_up_are_no_trouble(tmp_path: Path) -> None:
    times = CheckpointTimes(tmp_path)
    for made_up, least in ((-5000.0, 0.0), (4e9, time.time())):
        complete(tmp_path, key("job"), made_up)
        [found] = times.newest([key("job")])
        assert least <= found.written_at <= (time.time() if made_up > 0 else 0.0)


def test_a_link_says_nothing_about_where_it_points(tmp_path: Path) -> None:
    target = tmp_path / "secret"
    target.touch()
    os.utime(target, (100.0, 100.0))
    marker = complete(tmp_path, key("job"), 0.0)
    marker.unlink()
    marker.symlink_to(target)
    [found] = CheckpointTimes(tmp_path).newest([key("job")])
    assert found.written_at == os.lstat(marker).st_mtime != 100.0


async def test_a_file_system_that_hangs_does_not_hold_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = CheckpointTimes(tmp_path)
    complete(tmp_path, key("job"), 100.0)
    known = times.newest([key("job")])
    answers, looks, look = threading.Event(), [], checkpoint_times.newest_mark

    def hangs(directory: Path) -> tuple[str, float] | None:
        looks.append(directory)
        answers.wait()
        return look(directory)

    monkeypatch.setattr(checkpoint_times, "newest_mark", hangs)
    complete(tmp_path, key("job"), 200.0)
    for _ in range(3):
        assert times.newest([key("job")]) == known
    assert len(looks) == 1, "one waits; no more threads are lost to it"
    answers.set()

    def newest() -> list[float]:
        return [one.written_at for one in times.newest([key("job")])]

    await eventually(lambda: newest() == [200.0], "the look that hung to end")

"""``gpu_platform.job``: what a program saves is whole or not there, and it hears when a checkpoint is wanted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_platform import job
from gpu_platform.domain.jobs.checkpoint import Verified
from gpu_platform.node.checkpoints.store import CheckpointStore

pytestmark = pytest.mark.processes


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of attempt 1 of ``j``, as its rank sees it."""
    directory = tmp_path / "j" / "1"
    directory.mkdir(parents=True)
    monkeypatch.setenv("GPU_PLATFORM_CHECKPOINT_DIR", str(directory))
    monkeypatch.setenv("GPU_PLATFORM_CHECKPOINT_REQUEST", str(tmp_path / "j" / ".request-1"))
    monkeypatch.setattr(job, "_requests", job._Requests())
    monkeypatch.setattr(job, "_POLL_S", 0.0)
    return directory


def request(attempt: Path, name: str, why: str = "interval") -> None:
    (attempt.parent / ".request-1").write_text(json.dumps({"id": name, "why": why, "at": 0}))


def test_what_is_saved_is_verified_by_the_platform(attempt: Path) -> None:
    with job.save(300) as directory:
        (directory / "shards").mkdir()
        (directory / "shards" / "0.bin").write_bytes(b"x" * 5000)
        (directory / "state.json").write_text("{}")
    [found] = CheckpointStore(attempt.parent.parent).list_job("j", hashes=True)
    assert (found.label, found.step, found.size_bytes, found.verified) == ("1/step-300", 300, 5002, Verified.HASHES)
    (Path(found.path) / "shards" / "0.bin").write_bytes(b"y" * 5000)
    [found] = CheckpointStore(attempt.parent.parent).list_job("j", hashes=True)
    assert (found.complete, found.problem) == (False, "shards/0.bin was changed: its SHA-256 differs")
    os.truncate(Path(found.path) / "state.json", 1)
    [found] = CheckpointStore(attempt.parent.parent).list_job("j")
    assert found.problem == "state.json has 1 of 2 bytes"


def test_a_step_that_is_saved_twice_leaves_both(attempt: Path) -> None:
    for text in ("first", "second"):
        with job.save(1) as directory:
            (directory / "text").write_text(text)
    assert sorted(path.name for path in attempt.iterdir()) == ["step-1", "step-1.2"]
    assert (attempt / "step-1" / "text").read_text() == "first"


def test_an_exception_leaves_no_checkpoint(attempt: Path) -> None:
    with pytest.raises(RuntimeError), job.save(1):
        raise RuntimeError
    assert list(attempt.iterdir()) == []


def test_a_program_that_is_killed_while_it_saves_leaves_no_checkpoint(attempt: Path) -> None:
    script = (
        "import os\nfrom gpu_platform import job\nwith job.save(1) as d:\n (d / 'x').touch()\n os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGKILL
    assert CheckpointStore(attempt.parent.parent).list_job("j") == []


def test_a_request_is_open_until_it_is_answered(attempt: Path) -> None:
    assert not job.should_checkpoint()
    assert (attempt / job.LISTENING).exists()
    request(attempt, "a")
    assert job.should_checkpoint()
    assert job.should_checkpoint()
    assert job.why() == "interval"
    with job.save(1):
        request(attempt, "b", "stop")  # too late for this one to answer
    assert job.should_checkpoint()
    assert job.why() == "stop"
    with job.save(2):
        pass
    assert not job.should_checkpoint()


def test_an_interval_of_its_own(attempt: Path) -> None:
    assert not job.should_checkpoint(every_s=1000)
    assert job.should_checkpoint(every_s=0)


def test_the_signal_is_heard_unless_the_program_handles_it_itself(
    attempt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_PLATFORM_CHECKPOINT_SIGNAL", "USR2")
    before = signal.getsignal(signal.SIGUSR2)
    try:
        assert not job.should_checkpoint()
        os.kill(os.getpid(), signal.SIGUSR2)
        assert job.should_checkpoint()
        with job.save(1):
            pass
        assert not job.should_checkpoint()
        own = lambda *_: None  # noqa: E731
        signal.signal(signal.SIGUSR2, own)
        monkeypatch.setattr(job, "_requests", job._Requests())
        job.should_checkpoint()
        assert signal.getsignal(signal.SIGUSR2) is own
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_outside_the_platform_it_works_and_asks_for_nothing(tmp_path: Path) -> None:
    script = """
from gpu_platform import job
assert job.resume_dir() is None and not job.should_checkpoint() and job.why() is None
with job.save(7) as directory:
    (directory / "x").touch()
"""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GPU_PLATFORM_")}
    environ["PYTHONPATH"] = str(Path(job.__file__).parent.parent)
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environ, check=True)
    assert (tmp_path / "checkpoints" / "step-7" / job.COMPLETE).exists()


def test_it_needs_the_standard_library_only() -> None:
    script = "import sys; import gpu_platform.job; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"pydantic", "numpy", "structlog", "temporalio"} & set(done.stdout.split())

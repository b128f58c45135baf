"""The examples of ``gpu_platform.job`` really go on where they were."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gpu_platform
from gpu_platform.node.checkpoints.store import CheckpointStore

pytestmark = pytest.mark.processes

EXAMPLES = Path(gpu_platform.__file__).parent.parent / "examples"


def environ(tmp_path: Path, attempt: int, resume_from: str | None = None) -> dict[str, str]:
    directory = tmp_path / "j" / str(attempt)
    directory.mkdir(parents=True, exist_ok=True)
    told = {
        "GPU_PLATFORM_CHECKPOINT_DIR": str(directory),
        "GPU_PLATFORM_CHECKPOINT_REQUEST": str(tmp_path / "j" / f".request-{attempt}"),
        "PYTHONPATH": str(EXAMPLES.parent),
    }
    return {**os.environ, **told, **({"GPU_PLATFORM_RESUME_FROM": resume_from} if resume_from else {})}


def test_it_saves_when_it_is_asked_and_goes_on_after_sigterm(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "checkpointed_sum.py"), "--steps", "3000", "--step-ms", "1"]
    first = subprocess.Popen(command, env=environ(tmp_path, 1), stdout=subprocess.PIPE, text=True)
    (tmp_path / "j" / ".request-1").write_text(json.dumps({"id": "a", "why": "stop", "at": 0}))
    deadline = time.monotonic() + 30
    store = CheckpointStore(tmp_path)
    while not store.list_job("j"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    first.send_signal(signal.SIGTERM)
    out, _ = first.communicate(timeout=30)
    assert first.returncode == 128 + signal.SIGTERM
    assert "saved after step" in out
    found, _ = store.newest("j", 1)
    assert found is not None
    done = subprocess.run(command, env=environ(tmp_path, 2, found.path), capture_output=True, text=True, check=True)
    assert f"goes on after step {found.step}" in done.stdout
    assert f"the sum of 1 to 3000 is {sum(range(3001))}" in done.stdout


def test_the_example_of_pytorch_runs_where_pytorch_is(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "train_torch.py")]
    done = subprocess.run(command, env=environ(tmp_path, 1), capture_output=True, text=True, check=True)
    if importlib.util.find_spec("torch") is None:
        assert "PyTorch is not installed" in done.stdout
        pytest.skip("PyTorch is not installed")
    assert "after 2000 steps" in done.stdout
    [found] = CheckpointStore(tmp_path).list_job("j", hashes=True)
    assert found.step == 2000

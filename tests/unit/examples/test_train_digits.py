"""The example trains for real, on real data, as real processes on this machine."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from gpu_platform.node.system.ports import free_port
from workers.local import demo

pytestmark = pytest.mark.processes

EXAMPLE = Path(__file__).parents[3] / "examples" / "train_digits.py"
DEADLINE_S = 60.0


class Attempt:
    """A gang of ranks on localhost, started as the platform starts them."""

    def __init__(
        self, ranks: int, checkpoints: Path, *arguments: str, resume_from: Path | None = None, number: int = 1
    ) -> None:
        self.checkpoints = checkpoints
        self._logs = [checkpoints.with_name(f"{checkpoints.name}-rank-{rank}.log") for rank in range(ranks)]
        port = free_port()
        env = {key: value for key, value in os.environ.items() if not key.startswith("GPU_PLATFORM_")}
        env |= {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        env |= {"GPU_PLATFORM_CHECKPOINT_DIR": str(checkpoints), "GPU_PLATFORM_ATTEMPT": str(number)}
        if resume_from:
            env["GPU_PLATFORM_RESUME_FROM"] = str(resume_from)
        self.ranks: list[subprocess.Popen[bytes]] = []
        for rank, log in enumerate(self._logs):
            with log.open("wb") as output:
                self.ranks.append(
                    subprocess.Popen(
                        [sys.executable, str(EXAMPLE), "--timeout-s", "20", *arguments],
                        env=env | {"RANK": str(rank)},
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                )

    def exit_codes(self) -> list[int]:
        return [rank.wait(DEADLINE_S) for rank in self.ranks]

    def log(self, rank: int = 0) -> str:
        return self._logs[rank].read_text()

    def wait_for_epochs(self, epochs: int) -> None:
        wait_until(lambda: f"epoch {epochs:3}/" in self.log() or self.ranks[0].poll() is not None)
        assert self.ranks[0].poll() is None, self.log()

    def saved(self) -> dict[str, np.ndarray]:
        assert (self.checkpoints / "COMPLETE").exists()
        with np.load(self.checkpoints / "state.npz") as state:
            return dict(state)

    def close(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Attempt]]:
    with contextlib.ExitStack() as stack:

        def run(ranks: int, name: str, *arguments: str, **options: object) -> Attempt:
            attempt = Attempt(ranks, tmp_path / name, *arguments, **options)  # type: ignore[arg-type]
            stack.callback(attempt.close)
            return attempt

        yield run


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def test_four_ranks_learn_to_read_digits(start: Callable[..., Attempt]) -> None:
    attempt = start(4, "a", "--epochs", "12")
    assert attempt.exit_codes() == [0, 0, 0, 0], attempt.log()
    found = re.search(r"^accuracy (0\.\d+) after 12 epochs$", attempt.log().splitlines()[-1])
    assert found, attempt.log()
    assert float(found[1]) > 0.93
    assert not list(attempt.checkpoints.glob("*.tmp"))


def test_the_number_of_ranks_does_not_change_the_result(start: Callable[..., Attempt]) -> None:
    alone, together = start(1, "alone", "--epochs", "4"), start(4, "together", "--epochs", "4")
    assert alone.exit_codes() + together.exit_codes() == [0] * 5
    one, four = alone.saved(), together.saved()
    np.testing.assert_allclose(one["losses"], four["losses"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(one["parameters"], four["parameters"], rtol=0, atol=1e-6)


def test_a_gang_that_lost_a_rank_fails_and_the_next_attempt_goes_on(start: Callable[..., Attempt]) -> None:
    uninterrupted = start(2, "whole", "--epochs", "6")
    first = start(2, "first", "--epochs", "6", "--min-step-ms", "10")
    first.wait_for_epochs(2)
    first.ranks[1].kill()
    assert first.exit_codes() == [1, -signal.SIGKILL]
    assert "rank 0 lost its neighbour, rank 1" in first.log()

    second = start(2, "second", "--epochs", "6", resume_from=first.checkpoints, number=2)
    assert second.exit_codes() == [0, 0], second.log()
    resumed = re.search(r"^resumed from \S+: (\d+) epochs and 0 steps are done$", second.log(), re.MULTILINE)
    assert resumed
    done = int(resumed[1])
    assert done >= 2
    assert re.findall(r"^epoch +(\d+)/6", second.log(), re.MULTILINE) == [str(n) for n in range(done + 1, 7)]

    assert uninterrupted.exit_codes() == [0, 0]
    np.testing.assert_array_equal(second.saved()["losses"], uninterrupted.saved()["losses"])


def test_sigterm_to_one_rank_stops_all_after_the_same_step_with_a_checkpoint(start: Callable[..., Attempt]) -> None:
    first = start(3, "first", "--epochs", "50", "--min-step-ms", "10")
    first.wait_for_epochs(1)
    first.ranks[2].send_signal(signal.SIGTERM)
    assert first.exit_codes() == [143, 143, 143], first.log()
    last_lines = {first.log(rank).splitlines()[-1] for rank in range(3)}
    assert len(last_lines) == 1
    state = first.saved()
    assert last_lines == {f"SIGTERM: stopped at epoch {int(state['epoch']) + 1}, step {int(state['step'])}"}


def test_a_rank_that_never_comes_is_named(start: Callable[..., Attempt]) -> None:
    attempt = start(3, "a", "--timeout-s", "3")
    attempt.ranks[1].kill()
    codes = attempt.exit_codes()
    assert codes[0] == 1
    assert codes[2] == 1
    assert "ranks [1] did not come within 3 s" in attempt.log() or "lost its neighbour" in attempt.log()


def test_make_run_finds_the_program() -> None:
    assert demo.EXAMPLES / EXAMPLE.name == EXAMPLE

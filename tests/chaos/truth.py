"""The truth of a chaos run: what ranks and their observer wrote, across attempts and outside the platform.

Times are CLOCK_BOOTTIME, which no fault of these tests changes and which goes on while a process is stopped.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.support.lines import whole_lines

OBSERVER = Path(__file__).with_name("observer.py")


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class Run:
    """One rank of one attempt, from its first line to the end of its last process."""

    job: str
    attempt: int
    rank: int
    host: str
    gpus: tuple[str, ...]
    begin: float
    end: float | None = None
    """None: it lives."""
    exit_code: int | None = None
    """None: it did not end by itself."""
    relaxed: bool = False
    watched: bool = True

    @property
    def name(self) -> str:
        return f"{self.job}#{self.attempt} rank {self.rank}"


@dataclass(frozen=True)
class Truth:
    runs: tuple[Run, ...] = ()
    together: frozenset[tuple[str, int, int]] = frozenset()
    """(job, attempt, attempt): the kernel's locks proved that both lived when the later one began."""
    taken: frozenset[tuple[str, int, str]] = frozenset()
    """(job, attempt, GPU): its lock was taken when this attempt began."""
    repeated: tuple[Run, ...] = ()
    """Runs of ranks that began again in the same attempt. ``runs`` has the last one."""


def read_truth(directory: Path) -> Truth:
    path = directory / "truth"
    return truth_of([json.loads(line) for line in whole_lines(path)])


def truth_of(marks: list[dict[str, Any]]) -> Truth:
    runs: dict[tuple[str, int, int], list[Run]] = {}
    together: set[tuple[str, int, int]] = set()
    taken: set[tuple[str, int, str]] = set()
    # By kind: the observer may write "gone" a moment before the rank's own line of its exit is read.
    for mark in sorted(marks, key=lambda mark: mark["mark"] != "begin"):
        key = (mark["job"], mark["attempt"], mark["rank"])
        match mark["mark"]:
            case "begin":
                run = Run(
                    *key, mark["host"], tuple(mark["gpus"]), mark["t"],
                    relaxed=mark["fencing"] == "relaxed", watched=mark["watched"],
                )  # fmt: skip
                runs.setdefault(key, []).append(run)
            case "exit":
                runs[key][-1] = replace(runs[key][-1], exit_code=mark["code"])
            case "gone" if key in runs:  # else it was killed between its connection and its first line
                begun = sum(run.begin <= mark["t"] for run in runs[key])
                runs[key][begun - 1] = replace(runs[key][begun - 1], end=mark["t"])
            case "together":
                first, second = sorted((mark["attempt"], mark["other"]))
                together.add((mark["job"], first, second))
            case "gpu_taken":
                taken.add((mark["job"], mark["attempt"], mark["gpu"]))
    repeated = tuple(run for of_one_rank in runs.values() for run in of_one_rank[:-1])
    last = tuple(of_one_rank[-1] for of_one_rank in runs.values())
    return Truth(last, frozenset(together), frozenset(taken), repeated)


@contextmanager
def observed(directory: Path) -> Iterator[None]:
    """The observer of the ranks that write to ``directory``. Fails if it did not live to the end."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-E", str(OBSERVER), str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n", "the observer did not start"
        yield
        assert process.poll() is None, f"the observer died ({process.returncode}): the truth is not known"
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait()


@dataclass
class Window:
    begin: float
    end: float


@dataclass
class Spans:
    """Stretches of time, as a sorted union."""

    windows: list[Window] = field(default_factory=list)

    @classmethod
    def of(cls, pairs: list[tuple[float, float]]) -> Spans:
        spans = cls()
        for begin, end in sorted(pairs):
            if end <= begin:
                continue
            if spans.windows and begin <= spans.windows[-1].end:
                spans.windows[-1].end = max(spans.windows[-1].end, end)
            else:
                spans.windows.append(Window(begin, end))
        return spans

    def without(self, begin: float, end: float) -> list[tuple[float, float]]:
        """What is left of one stretch."""
        left: list[tuple[float, float]] = []
        for window in self.windows:
            if window.end <= begin or window.begin >= end:
                continue
            if window.begin > begin:
                left.append((begin, window.begin))
            begin = max(begin, window.end)
        return [*left, (begin, end)] if begin < end else left

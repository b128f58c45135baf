"""Ranks of two attempts of one job that were there together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

from tests.chaos.facts import Facts
from tests.chaos.truth import Run


@dataclass(frozen=True)
class Pair:
    """Two ranks of two attempts of one job that were there together from ``begin`` to ``end``."""

    key: tuple[str, int, int]
    begin: float
    end: float
    seconds: float
    """Of these, those in which neither stood still."""


def seconds_together(facts: Facts) -> list[Pair]:
    """But for jobs that asked for it."""
    found: list[Pair] = []
    for job, runs in _by_job(facts.truth.runs).items():
        for first, second in combinations(sorted(runs, key=lambda run: run.attempt), 2):
            if first.attempt == second.attempt or first.relaxed or second.relaxed:
                continue
            begin = max(first.begin, second.begin)
            end = min(first.end or facts.now, second.end or facts.now)
            if begin < end:
                key = (job, first.attempt, second.attempt)
                found.append(Pair(key, begin, end, both_seconds(facts, first, second)))
    return found


def both_seconds(facts: Facts, first: Run, second: Run) -> float:
    """Seconds in which both lived and neither stood still."""
    begin = max(first.begin, second.begin)
    end = min(first.end or facts.now, second.end or facts.now)
    left = facts.standing([first.host, second.host]).without(begin, end) if begin < end else []
    return sum(stop - start for start, stop in left)


def _by_job(runs: Iterable[Run]) -> Mapping[str, list[Run]]:
    found: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        found[run.job].append(run)
    return found

"""What is known of a run, for the checks: what was submitted, struck and seen; and how a violation looks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.usage import AttemptUsage
from tests.chaos.faults import Fault
from tests.chaos.feed import Promise, Seen
from tests.chaos.plan import JobPlan
from tests.chaos.truth import Spans, Truth

RECOVERY_S = 30.0
"""So long after a fault its effects may show."""


class Kind(StrEnum):
    TWO_ATTEMPTS = "two attempts at once"
    GPU_TWICE = "a GPU in two hands"
    RANK_REPEATED = "a rank begun twice"
    RANK_UNBACKED = "a rank without an allocation"
    ALLOCATION_IDLE = "an allocation without a rank"
    JOB_UNKNOWN = "an acknowledged job that is unknown"
    END_UNCAUSED = "an end that nobody caused"
    RESTART_UNJUSTIFIED = "a restart that nothing justified"
    PROMISE_BROKEN = "a promise broken"
    USAGE_WRONG = "usage that does not add up"
    HISTORY = "store and Temporal disagree"
    LEFTOVER = "something left behind"


@dataclass(frozen=True)
class Violation:
    kind: Kind
    text: str
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" + (f" for {self.seconds:.2f} s" if self.seconds else "")


@dataclass(frozen=True)
class Hold:
    """An attempt's GPUs by the event log; each change came after the first and before the second time."""

    job: str
    attempt: int
    gpus: frozenset[str]
    hosts: frozenset[str]
    reserved: tuple[float, float]
    released: tuple[float, float] = (math.inf, math.inf)


@dataclass
class Facts:
    now: float
    truth: Truth = field(default_factory=Truth)
    events: list[Seen] = field(default_factory=list)
    promises: list[Promise] = field(default_factory=list)
    forgotten: list[Seen] = field(default_factory=list)
    """Events that a restored database does not have any more."""
    faults: list[Fault] = field(default_factory=list)
    jobs: dict[str, Job] = field(default_factory=dict)
    plans: dict[str, JobPlan] = field(default_factory=dict)
    """Every acknowledged submission."""
    stopped: set[str] = field(default_factory=set)
    """Jobs that were ordered, or may have been ordered, to end."""
    usage: dict[tuple[str, int], AttemptUsage] = field(default_factory=dict)

    @property
    def holds(self) -> list[Hold]:
        """Those that only forgotten events tell of, too."""
        known = holds_of(self.events)
        keys = {(hold.job, hold.attempt) for hold in known}
        return known + [hold for hold in holds_of(self.forgotten) if (hold.job, hold.attempt) not in keys]

    def is_forgotten(self, begin: float, end: float) -> bool:
        """Was something written in this time that a restored database does not have?"""
        return any(fault.since < end and begin < fault.end + RECOVERY_S for fault in self.faults)

    def standing(self, hosts: Iterable[str]) -> Spans:
        """When ranks on these hosts were stopped: they did nothing then."""
        touched = set(hosts)
        return Spans.of([(f.begin, f.end) for f in self.faults if f.stopped and f.hosts & touched])


def holds_of(log: Iterable[Seen]) -> list[Hold]:
    found: dict[tuple[str, int], Hold] = {}
    for seen in log:
        event = seen.event
        if event.job_id is None or event.attempt is None:
            continue
        key, times = (event.job_id, event.attempt), (seen.after, seen.before)
        if event.kind == "gang.reserved":
            gpus, hosts = frozenset(event.data["gpus"]), frozenset(event.data["hosts"])
            found[key] = Hold(*key, gpus, hosts, times)
        elif event.kind == "gang.released" and key in found:
            held = found[key]
            found[key] = Hold(*key, held.gpus, held.hosts, held.reserved, times)
    return list(found.values())

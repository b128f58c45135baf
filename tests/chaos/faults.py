"""What was done to a cluster, and what each kind of fault may cause."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.chaos.truth import boottime

NEVER_A_REASON = frozenset(
    {"clock_step", "clock_drift", "machine_clock", "hung_names", "slow_link", "lossy_link", "drain"}
)
"""Faults of a host that must cost no job its attempt."""

ONE_PATH = frozenset({"cut_link"})
"""A host's lease is renewed on any path: one that is cut costs nothing, unless another fault takes the other path."""


@dataclass(frozen=True)
class Fault:
    kind: str
    target: str
    begin: float
    end: float
    """CLOCK_BOOTTIME, both; infinity: it still lasts."""
    hosts: frozenset[str] = frozenset()
    gpus: frozenset[str] = frozenset()
    jobs: frozenset[str] = frozenset()
    stopped: bool = False
    """The ranks themselves stood still meanwhile (SIGSTOP)."""
    since: float = math.inf
    """What was written from then on is gone: a database was restored to that point."""

    @property
    def of_the_cluster(self) -> bool:
        """It struck the control plane, not a host, GPU or job."""
        return not (self.hosts or self.gpus or self.jobs)

    def touches(self, job: str, hosts: Collection[str], gpus: Collection[str]) -> bool:
        return job in self.jobs or not self.hosts.isdisjoint(hosts) or not self.gpus.isdisjoint(gpus)

    def may_restart(self, job: str, hosts: Collection[str], gpus: Collection[str]) -> bool:
        """May it cost an attempt of this job on these hosts and GPUs?"""
        return self.kind not in NEVER_A_REASON and self.touches(job, hosts, gpus)

    def is_alone(self, faults: Collection[Fault], aftermath_s: float) -> bool:
        """No other fault of its hosts or of the cluster is near it."""
        return not any(
            other is not self
            and (other.of_the_cluster or not other.hosts.isdisjoint(self.hosts))
            and other.overlaps(self.begin - aftermath_s, self.end)
            for other in faults
        )

    def overlaps(self, begin: float, end: float, *, aftermath_s: float = 0.0) -> bool:
        return self.begin <= end and begin <= self.end + aftermath_s


@dataclass
class FaultLog:
    faults: list[Fault] = field(default_factory=list)

    @contextmanager
    def lasting(
        self,
        kind: str,
        target: str,
        *,
        hosts: Collection[str] = (),
        gpus: Collection[str] = (),
        jobs: Collection[str] = (),
        stopped: bool = False,
        since: float = math.inf,
    ) -> Iterator[None]:
        """A fault from here to the end of the block. ``since``: of the copy to which a database is restored."""
        scope = {"hosts": frozenset(hosts), "gpus": frozenset(gpus), "jobs": frozenset(jobs)}
        begin, place = boottime(), len(self.faults)
        self.faults.append(Fault(kind, target, begin, math.inf, **scope, stopped=stopped, since=since))
        try:
            yield
        finally:
            self.faults[place] = Fault(kind, target, begin, boottime(), **scope, stopped=stopped, since=since)

    def note(self, kind: str, target: str, **scope: Collection[str]) -> None:
        """A fault of one moment."""
        with self.lasting(kind, target, **scope):  # type: ignore[arg-type]
            pass

    def now(self) -> float:
        return boottime()

    def counts(self) -> Counter[str]:
        return Counter(fault.kind for fault in self.faults)

    def lines(self) -> list[str]:
        first = min((fault.begin for fault in self.faults), default=0.0)
        return [
            f"{fault.begin - first:7.2f} s {fault.kind} {fault.target} ({fault.end - fault.begin:.1f} s)"
            for fault in self.faults
        ]

"""Does a scheduler lead, and does each of its loops come round? Judged from what the leader writes into the database.

The age of a sign is measured by the reader's own steady clock, from when the reader saw it change: clocks of two
machines may differ. No clock is read here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pydantic import BaseModel

from gpu_platform.domain.jobs.placement import Reason


class LeaderLoop(StrEnum):
    """What a leader does again and again, each in a task or thread of its own."""

    LEASES = "leases"
    """Look at the hosts' leases, each second."""
    DECISIONS = "decisions"
    """Read what changed, and decide."""
    UPKEEP = "upkeep"
    """Find and repair what was lost: jobs without workflows, arrays, pipelines, schedules."""


SIGN_EVERY_S = 2.0
"""A loop that comes round writes a sign this often."""
SILENT_AFTER_S: Mapping[LeaderLoop, float] = {
    LeaderLoop.LEASES: 9.0,
    LeaderLoop.DECISIONS: 9.0,
    # One round may ask Temporal about hundreds of jobs.
    LeaderLoop.UPKEEP: 60.0,
}
"""A loop that gave no sign for so long stands still. A leader that dies is replaced sooner."""


@dataclass(frozen=True)
class LeaderSigns:
    """What the leader has written, as one read of the database found it."""

    epoch: int
    """0: no scheduler has ever led."""
    holder: str
    at: Mapping[LeaderLoop, float]
    """Loop -> Unix seconds by the leader's clock. A loop that never came round is missing."""


class LeaderSilence(BaseModel):
    """No scheduler leads, or a loop of the leader stands still."""

    loops: list[LeaderLoop]
    """Those that stand still."""
    silent_s: float
    """For how long, at least."""
    epoch: int
    holder: str = ""

    @property
    def nothing_is_placed(self) -> bool:
        """True if waiting jobs do not start."""
        return LeaderLoop.DECISIONS in self.loops

    @property
    def message(self) -> str:
        """What people read of it, with what happens next."""
        since = f"since {self.silent_s:.0f} s"
        repeated = "Schedulers and control workers look after it and start it again within seconds"
        if not self.epoch:
            return "no scheduler has led yet: nothing is placed. Start a scheduler and a control worker"
        if {LeaderLoop.LEASES, LeaderLoop.DECISIONS} <= set(self.loops):
            return (
                f"no scheduler leads {since}: nothing is placed, and no host becomes LOST. Submissions are accepted, "
                f"and jobs that run go on. {repeated}; if that does not help, see docs/how-to/runbooks.md#noleader"
            )
        leader = f"the leading scheduler {self.holder.split('/')[0]} (epoch {self.epoch})"
        advice = "Restart that process: another one leads within seconds"
        if LeaderLoop.DECISIONS in self.loops:
            return f"{leader} has decided nothing {since}: nothing is placed. Jobs that run go on. {advice}"
        if LeaderLoop.LEASES in self.loops:
            return f"{leader} has not looked at the hosts' leases {since}: no host becomes LOST. {advice}"
        return f"{leader} has repaired nothing {since}: what Temporal or a host lost is not started again. {advice}"

    def said_before(self, reason: Reason) -> Reason:
        """The reason why a job waits, with what is said here first: until that is mended, nothing else matters."""
        if not self.nothing_is_placed:
            return reason
        return reason.model_copy(update={"message": f"{self.message}. Before that: {reason.message}"})


class SignWatch:
    """Sees whether signs change. Give it what the database says, every few seconds."""

    def __init__(self) -> None:
        self._seen: dict[LeaderLoop, tuple[float | None, float]] = {}
        self._last: LeaderSigns | None = None

    def observe(self, signs: LeaderSigns, now_s: float) -> None:
        """``now_s``: seconds of a steady clock."""
        self._last = signs
        for loop in LeaderLoop:
            sign, seen = signs.at.get(loop), self._seen.get(loop)
            if seen is None or seen[0] != sign:
                self._seen[loop] = (sign, now_s)

    def forget(self) -> None:
        """The database could not be read: nobody knows how long a sign is old."""
        self._seen.clear()
        self._last = None

    def ages_s(self, now_s: float) -> dict[LeaderLoop, float]:
        """Loop -> for how long it gave no sign, at least."""
        return {loop: now_s - since for loop, (_, since) in self._seen.items()}

    def silence(self, now_s: float) -> LeaderSilence | None:
        """What stands still. None: nothing, as far as is known."""
        ages = self.ages_s(now_s)
        silent = [loop for loop in LeaderLoop if ages.get(loop, 0.0) >= SILENT_AFTER_S[loop]]
        if self._last is None or not silent:
            return None
        longest = max(ages[loop] for loop in silent)
        return LeaderSilence(loops=silent, silent_s=longest, epoch=self._last.epoch, holder=self._last.holder)

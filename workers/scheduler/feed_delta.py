"""What changed since the last look at the change feed: what the decision loop must read anew."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.events import Event


@dataclass
class FeedDelta:
    """What changed, according to the events since the last look: names of hosts, ids of jobs, attempts."""

    hosts: set[str] = field(default_factory=set)
    gpu_hosts: set[str] = field(default_factory=set)
    queue: set[str] = field(default_factory=set)
    reserved: list[AttemptKey] = field(default_factory=list)
    released: list[AttemptKey] = field(default_factory=list)
    running: list[AttemptKey] = field(default_factory=list)
    updated: list[AttemptKey] = field(default_factory=list)
    """Attempts whose jobs were changed while they ran."""
    ended: set[str] = field(default_factory=set)
    completed: set[str] = field(default_factory=set)
    cancelled: set[str] = field(default_factory=set)
    arrays: set[str] = field(default_factory=set)
    """Arrays that have ended."""
    fewer_hosts: bool = False
    windows: bool = False

    def record(self, event: Event) -> None:
        """Note what one event says."""
        kind, host = event.kind, event.host
        self.windows |= kind.startswith("window.")
        if kind.startswith("queue.") and event.job_id:
            self.queue.add(event.job_id)
        elif kind == "host.removed":
            self.fewer_hosts = True
        elif kind.startswith("host.") and host:
            self.hosts.add(host)
            self.gpu_hosts.add(host)
        elif kind == "gpu.state" and host:
            self.gpu_hosts.add(host)
        elif kind in ("job.completed", "job.failed") and event.job_id:
            self.ended.add(event.job_id)
            if kind == "job.completed":
                self.completed.add(event.job_id)
        elif kind == "job.cancelled" and event.job_id:
            self.cancelled.add(event.job_id)
        elif kind in ("array.completed", "array.failed", "array.cancelled") and event.job_id:
            self.arrays.add(event.job_id)
        elif event.job_id and event.attempt is not None:
            self._record_attempt(event, AttemptKey(job_id=event.job_id, attempt=event.attempt))

    def _record_attempt(self, event: Event, key: AttemptKey) -> None:
        if event.kind.startswith("gang."):
            self.gpu_hosts.update(event.data["hosts"])
            (self.reserved if event.kind == "gang.reserved" else self.released).append(key)
        elif event.kind == "job.running":
            self.running.append(key)
        elif event.kind == "job.updated":
            self.updated.append(key)

    @property
    def matters(self) -> bool:
        """True if the scheduler has something to decide."""
        return bool(self.gpu_hosts or self.queue or self.windows or self.updated)

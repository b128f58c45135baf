"""Reads the hosts' GPU telemetry and the times of saved checkpoints, and hands both to the decision loop.

Hosts report every two seconds, and a report writes no event. A thread beside the decision loop reads and parses the
reports. The loop takes a few hosts at a time, so that a decision never waits for the reports of a thousand hosts.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import structlog

from gpu_platform.domain.errors import Unavailable
from gpu_platform.domain.hosts.lease import GpuTelemetry, SavedCheckpoint
from gpu_platform.store import Store
from gpu_platform.store.jobs.checkpoints import parse_checkpoints
from gpu_platform.store.state import parse_telemetry, read_raw_telemetry

log = structlog.get_logger()

INTERVAL_S = 2.0
AT_ONCE = 200
"""The most hosts in one round of the loop. They take about a millisecond."""


@dataclass(frozen=True)
class HostTelemetryDelta:
    """The report of one host, if it differs from the previous one."""

    host: str
    telemetry: list[GpuTelemetry]
    checkpoints: list[SavedCheckpoint]


class HostTelemetry:
    """Reads the hosts' telemetry. ``run`` needs a thread of its own; the decision loop calls ``take``."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: dict[str, tuple[str, str]] = {}
        self._deltas: OrderedDict[str, HostTelemetryDelta] = OrderedDict()
        self._lock = threading.Lock()

    def run(self, stopped: threading.Event) -> None:
        """Read again and again, in a thread of its own."""
        while not stopped.wait(INTERVAL_S):
            try:
                self.look()
            except Unavailable as error:
                log.info("scheduler.telemetry_delayed", error=error.message)

    def look(self) -> None:
        """Read once. A host whose report has not changed gives no delta."""
        texts = read_raw_telemetry(self._store)
        for name, report in texts.items():
            if self._seen.get(name) != report:
                telemetry, checkpoints = report
                delta = HostTelemetryDelta(name, parse_telemetry(telemetry), parse_checkpoints(checkpoints))
                with self._lock:
                    self._deltas[name] = delta
        self._seen = texts

    def take(self) -> list[HostTelemetryDelta]:
        """At most AT_ONCE deltas, those that waited longest first."""
        with self._lock:
            return [self._deltas.popitem(last=False)[1] for _ in range(min(AT_ONCE, len(self._deltas)))]

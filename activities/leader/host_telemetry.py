"""What the hosts' GPUs do right now, and when jobs saved their work, on its way to the scheduler's core.

Hosts report every two seconds without an event. Reading and parsing is done beside the decision loop; the loop takes a
few hosts at a time, so that a decision never waits for a thousand thermometers.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import structlog

from gpu_platform.domain.errors import Unavailable
from gpu_platform.domain.lease import Checkpoint, GpuTelemetry
from gpu_platform.store import Store
from gpu_platform.store.jobs.checkpoints import parse_checkpoints
from gpu_platform.store.state import parse_telemetry, read_raw_telemetry

log = structlog.get_logger()

INTERVAL_S = 2.0
AT_ONCE = 200
"""Hosts per turn of the loop: about a millisecond."""


@dataclass(frozen=True)
class HostTelemetryDelta:
    host: str
    telemetry: list[GpuTelemetry]
    checkpoints: list[Checkpoint]


class HostTelemetry:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: dict[str, tuple[str, str]] = {}
        self._news: OrderedDict[str, HostTelemetryDelta] = OrderedDict()
        self._lock = threading.Lock()

    def run(self, stopped: threading.Event) -> None:
        """Read again and again, in a thread of its own."""
        while not stopped.wait(INTERVAL_S):
            try:
                self.look()
            except Unavailable as error:
                log.info("scheduler.telemetry_delayed", error=error.message)

    def look(self) -> None:
        """Read once; hosts whose report is the same as before are no news."""
        texts = read_raw_telemetry(self._store)
        for name, told in texts.items():
            if self._seen.get(name) != told:
                telemetry, checkpoints = told
                news = HostTelemetryDelta(name, parse_telemetry(telemetry), parse_checkpoints(checkpoints))
                with self._lock:
                    self._news[name] = news
        self._seen = texts

    def take(self) -> list[HostTelemetryDelta]:
        """At most AT_ONCE hosts with news, those that wait longest first."""
        with self._lock:
            return [self._news.popitem(last=False)[1] for _ in range(min(AT_ONCE, len(self._news)))]

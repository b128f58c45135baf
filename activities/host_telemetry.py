"""What the hosts' GPUs do right now, on its way to the scheduler's core.

Hosts report every two seconds without an event. Reading and parsing is done beside the decision loop; the loop takes a
few hosts at a time, so that a decision never waits for a thousand thermometers.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

import structlog

from gpu_platform.domain.errors import Unavailable
from gpu_platform.domain.lease import GpuTelemetry
from gpu_platform.store import Store
from gpu_platform.store.state import parse_telemetry, read_raw_telemetry

log = structlog.get_logger()

INTERVAL_S = 2.0
AT_ONCE = 200
"""Hosts per turn of the loop: about a millisecond."""


class HostTelemetry:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: dict[str, str] = {}
        self._news: OrderedDict[str, list[GpuTelemetry]] = OrderedDict()
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
        for name, text in texts.items():
            if self._seen.get(name) != text:
                measured = parse_telemetry(text)
                with self._lock:
                    self._news[name] = measured
        self._seen = texts

    def take(self) -> list[tuple[str, list[GpuTelemetry]]]:
        """At most AT_ONCE hosts with news, those that wait longest first."""
        with self._lock:
            return [self._news.popitem(last=False) for _ in range(min(AT_ONCE, len(self._news)))]

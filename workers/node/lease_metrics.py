"""Metrics of a host's lease: how old it is, and what keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gpu_platform.node.system.records import boot_clock_s
from workers.node.lease_keeper import LeaseKeeper

WAYS = ("service", "temporal", "votes", "nothing")


class LeaseMetrics(Collector):
    """Read when they are scraped."""

    def __init__(self, keeper: LeaseKeeper, clock: Callable[[], float] = boot_clock_s) -> None:
        self._keeper = keeper
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        """Read all metrics now."""
        lease, now = self._keeper.state, self._clock()
        for name, value, about in (
            ("answer_age", now - lease.answered_at, "Age of the newest answer of the control plane to this host"),
            ("left", max(0.0, lease.run_until - now), "For how long ranks may still run here without another answer"),
        ):
            yield GaugeMetricFamily(f"gpu_platform_host_lease_{name}_seconds", about, value=value)
        kept_by = GaugeMetricFamily(
            "gpu_platform_host_lease_kept_by",
            "1 for what lets ranks run here: a service, Temporal in its place, votes of other hosts, or nothing",
            labels=["way"],
        )
        for way in WAYS:
            kept_by.add_metric([way], float(way == self._way(now)))
        yield kept_by

    def _way(self, now: float) -> str:
        lease = self._keeper.state
        if not lease.may_run(now):
            return "nothing"
        if lease.run_until > lease.leased_until:
            return "votes"
        return "temporal" if self._keeper.services.are_replaced else "service"

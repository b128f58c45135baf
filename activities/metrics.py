"""What the scheduler measures of itself; served by its own process."""

from __future__ import annotations

from prometheus_client import Counter, Histogram

DECISION_SECONDS = Histogram(
    "topology_scheduler_latency_seconds",
    "Time of one scheduling decision round",
    buckets=(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5),
)
PLACEMENT_DECISIONS = Counter(
    "topology_placement_decisions_total",
    "Proposals that were made, and those that nobody confirmed in time",
    ["outcome"],
)

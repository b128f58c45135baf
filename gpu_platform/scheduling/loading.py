"""From a document to a core that decides as the one would that it was taken from."""

from __future__ import annotations

from gpu_platform.domain.cluster_state import ClusterState
from gpu_platform.scheduling.scheduler import Scheduler


def load_cluster_state(scheduler: Scheduler, state: ClusterState) -> Scheduler:
    """Tell a new scheduler all of ``state`` (its policy is the caller's business). Returns it."""
    for host in state.hosts:
        scheduler.upsert_host(host)
    scheduler.upsert_gpus(state.gpus)
    scheduler.upsert_use(state.host_use)
    for running in sorted(state.running, key=lambda row: row.started_at):  # shares are charged in order of time
        scheduler.started(running)
    for use in state.used:
        scheduler.record_past_use(use, state.at)
    for name, telemetry in state.telemetry.items():
        scheduler.update_telemetry(name, telemetry)
    for waiting in state.queue:
        scheduler.add(waiting)
    return scheduler

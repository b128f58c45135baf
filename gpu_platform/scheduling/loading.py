"""Loads a snapshot document into a scheduler core, so that the core decides as the original would."""

from __future__ import annotations

from gpu_platform.domain.placing.cluster_state import ClusterState
from gpu_platform.scheduling.scheduler import Scheduler


def load_cluster_state(scheduler: Scheduler, state: ClusterState) -> Scheduler:
    """Give a new scheduler everything in ``state`` and return it. The caller sets the policy."""
    for host in state.hosts:
        scheduler.upsert_host(host)
    scheduler.upsert_gpus(state.gpus)
    scheduler.replace_windows(state.windows)
    scheduler.upsert_use(state.host_use)
    for running in sorted(state.running, key=lambda row: row.started_at):  # shares are charged in order of time
        scheduler.started(running)
    for use in state.used:
        scheduler.record_past_use(use, state.at)
    for name, telemetry in state.telemetry.items():
        scheduler.update_telemetry(name, telemetry)
    for waiting in state.queue:
        scheduler.add(waiting)
    scheduler.restore_moves(state.moved)
    scheduler.restore_promises(state.promises)
    return scheduler

"""Record what workflows do, for the replay test: ``python -m tests.workflows.record_histories [NAME ...]``.

Each scenario runs on the real parts of :class:`tests.harness.Platform`; its history goes to
``tests/workflows/histories/<name>.json``. Each shows another way through a workflow. Record anew only
when a change of a workflow is meant to break running ones; otherwise a replay that fails is a bug in the change.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from activities.notifications import NotificationActivities
from gpu_platform.notifications.settings import NotificationSettings
from gpu_platform.store import Store
from tests.harness import Platform
from tests.recipients import webhook
from tests.temporal_server import temporal_server
from tests.workflows import scenarios
from workers.control import notification_worker

HISTORIES = Path(__file__).parent / "histories"
MACHINES = {"a": "dgx-h100", "b": "dgx-h100"}
Scenario = Callable[[Platform], Awaitable[str]]
"""Plays something to its end; returns the id of the workflow to record."""


SCENARIOS: dict[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        scenarios.success,
        scenarios.placed_with_its_admission,
        scenarios.gang_on_two_hosts,
        scenarios.cancel_while_running,
        scenarios.preempt_and_requeue,
        scenarios.user_failure_with_retries,
        scenarios.host_lost,
        scenarios.place_kept_for_a_reset,
        scenarios.begun_again_while_running,
        scenarios.cleanup_after_a_termination,
        scenarios.array_with_a_retry,
        scenarios.array_that_loses_a_host,
        scenarios.array_after_the_elements_of_another,
        scenarios.pipeline_with_a_fan_out,
        scenarios.firing_of_a_schedule,
        scenarios.remediation_heals,
        scenarios.remediation_repairs_the_host,
        scenarios.alert_that_is_told_and_ends,
        scenarios.user_who_is_told_of_jobs,
    )
}


def without_traces_of_this_machine(node: Any) -> Any:
    """The history without what replay does not read: stack traces (paths), identities (host names)."""
    if isinstance(node, dict):
        return {
            key: "recorder" if key == "identity" else without_traces_of_this_machine(value)
            for key, value in node.items()
            if key != "stackTrace"
        }
    return [without_traces_of_this_machine(item) for item in node] if isinstance(node, list) else node


async def record(names: list[str]) -> None:
    HISTORIES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpu-platform-") as directory:
        store = Store(f"sqlite:///{directory}/platform.db")
        store.migrate()
        with webhook() as hook:
            targets = {"targets": [{"name": "hook", "url": hook.url}], "group_wait_s": 0.2, "job_wait_s": 0.2}
            notifications = NotificationActivities(NotificationSettings.model_validate(targets), "lab")
            await _record(names, store, Path(directory), notifications)
        store.close()


async def _record(names: list[str], store: Store, directory: Path, notifications: NotificationActivities) -> None:
    async with (
        temporal_server() as client,
        notification_worker(client, notifications),
        Platform.start(client, store, directory, MACHINES, notifications=notifications) as platform,
    ):
        for name in names:
            workflow_id = await SCENARIOS[name](platform)
            history = await platform.workflow(workflow_id).fetch_history()
            lines = json.dumps(without_traces_of_this_machine(history.to_json_dict()), indent=1)
            (HISTORIES / f"{name}.json").write_text(lines + "\n")
            print(f"{name}: {len(history.events)} events", flush=True)
        await platform.nothing_leaked()


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1:] or list(SCENARIOS)))

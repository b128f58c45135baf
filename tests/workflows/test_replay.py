"""Running jobs survive a new version of the code: what was recorded is replayed, step by step."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import ActivitySerializationContext
from temporalio.worker import Replayer, WorkflowRunner
from temporalio.workflow import NondeterminismError

from gpu_platform.domain.jobs.job import JobInput
from gpu_platform.temporal.payloads.converter import data_converter
from tests.chaos.releases import ROOT, unpack_release
from tests.workflows.record_histories import HISTORIES, SCENARIOS
from workflows.alert import AlertWorkflow
from workflows.array import ArrayWorkflow
from workflows.attempts.attempt import Attempt
from workflows.attempts.compensations import stop_hosts
from workflows.attempts.endings import Ending
from workflows.cleanup import CleanupWorkflow
from workflows.job import JobResult, JobWorkflow
from workflows.notices import NoticesWorkflow
from workflows.pipeline import PipelineWorkflow
from workflows.remediation import RemediationWorkflow
from workflows.sandbox import workflow_runner
from workflows.scheduled_submission import ScheduledSubmissionWorkflow

PATH = re.compile(r"(?<![\w.:=+/-])/[\w.-]+/[\w./-]+")
WORKFLOWS = (
    JobWorkflow,
    ArrayWorkflow,
    PipelineWorkflow,
    ScheduledSubmissionWorkflow,
    RemediationWorkflow,
    CleanupWorkflow,
    AlertWorkflow,
    NoticesWorkflow,
)
RECORDED = sorted(HISTORIES.glob("*.json"))


def history(path: Path) -> WorkflowHistory:
    began = json.loads(path.read_text())["events"][0]["workflowExecutionStartedEventAttributes"]
    return WorkflowHistory.from_json(began["workflowId"], path.read_text())


def replayer(*workflows: type, runner: WorkflowRunner) -> Replayer:
    return Replayer(workflows=workflows, data_converter=pydantic_data_converter, workflow_runner=runner)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
async def test_a_recorded_history_is_replayed(path: Path) -> None:
    ours = replayer(*WORKFLOWS, runner=workflow_runner(checked=True))
    await ours.replay_workflow(history(path))


async def test_the_histories_of_the_last_release_are_replayed(tmp_path: Path) -> None:
    """As they were recorded then: jobs that began in it go over to this release. To record anew hides no break."""
    folder = str(HISTORIES.relative_to(ROOT))
    _, unpacked = unpack_release(tmp_path, folder)
    recorded = sorted((unpacked / folder).glob("*.json"))
    assert recorded
    ours = replayer(*WORKFLOWS, runner=workflow_runner(checked=True))
    for path in recorded:
        await ours.replay_workflow(history(path))


def test_every_scenario_is_recorded() -> None:
    assert [path.stem for path in RECORDED] == sorted(SCENARIOS)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_a_history_tells_nothing_of_the_machine_that_recorded_it(path: Path) -> None:
    texts = strings(json.loads(path.read_text()))
    found = {match for text in texts for match in PATH.findall(text)}
    assert {name for name in found if not name.startswith("/bin/sh")} == set()


@workflow.defn(name="JobWorkflow")
class GivesBackTooEarly(JobWorkflow):
    """The mistake that replay must find: its GPUs are released before its ranks are stopped."""

    @workflow.init
    def __init__(self, input: JobInput) -> None:
        super().__init__(input)

    @workflow.run
    async def run(self, input: JobInput) -> JobResult:
        return await super().run(input)

    async def _close(self, attempt: Attempt, ending: Ending) -> None:
        await self._finish(attempt, ending)
        if attempt.may_run:
            await stop_hosts(attempt, ending)


async def test_a_changed_order_of_steps_is_found() -> None:
    # Outside the sandbox, which would import this module, with pytest, anew.
    changed = replayer(GivesBackTooEarly, runner=workflow_runner())
    with pytest.raises(NondeterminismError):
        await changed.replay_workflow(history(HISTORIES / "cancel_while_running.json"))
    await changed.replay_workflow(history(HISTORIES / "success.json"))  # it stops nothing: the same steps


def strings(node: Any) -> Iterator[str]:
    """Every text of the history, payloads decoded."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "data" and isinstance(value, str):
                yield base64.b64decode(value).decode()
            else:
                yield from strings(value)
    elif isinstance(node, list):
        for item in node:
            yield from strings(item)
    elif isinstance(node, str):
        yield node


@pytest.mark.long
async def test_a_replay_asks_for_no_signature() -> None:
    """Orders in a history were signed when they were given. The database may not confirm them any more."""
    asked: list[str] = []

    class Orders:
        async def encode(self, context: ActivitySerializationContext, payload: Payload) -> Payload:
            asked.append(f"{context.activity_type} of {context.workflow_id}")
            return payload

        def decode(self, context: ActivitySerializationContext, payloads: Sequence[Payload]) -> None:
            pass

    runner = workflow_runner(checked=True)
    ours = Replayer(workflows=WORKFLOWS, data_converter=data_converter(None, orders=Orders()), workflow_runner=runner)
    for path in RECORDED:
        await ours.replay_workflow(history(path))
    assert asked == []

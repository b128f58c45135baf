"""What a pipeline does next: a pure function of its steps and of what became of their jobs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpu_platform.domain.pipelines import expressions
from gpu_platform.domain.pipelines.expressions import ExpressionError
from gpu_platform.domain.pipelines.pipeline import (
    MAX_JOBS_OF_STEP,
    PipelineSpec,
    PipelineState,
    Step,
    StepState,
)
from gpu_platform.domain.states import JobState


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """A job of a step that was submitted, refused, or taken from an earlier run."""

    step: str
    index: int
    job_id: str | None = None
    state: JobState | None = None
    """None: the job has not ended."""
    refusal: str | None = None
    directory: str = ""
    cache_key: str | None = None
    output_read: bool = False
    output: Any = None
    problem: str | None = None
    """Why its output cannot be used."""

    @property
    def is_live(self) -> bool:
        """It was submitted and has not ended."""
        return self.refusal is None and self.state is None

    @property
    def failure(self) -> str | None:
        """Why the step fails with it. None: it does not."""
        if self.refusal is not None:
            return self.refusal
        if self.state is None or self.state is JobState.COMPLETED:
            return self.problem
        return f"job {self.job_id} ended {self.state}"


@dataclass(frozen=True)
class NewJob:
    """A job to submit."""

    step: Step
    index: int
    command: list[str]
    env: dict[str, str]
    inputs: dict[str, tuple[str, ...]]
    """Step -> directories of its jobs."""
    cache_key: str | None
    total: int = 1
    """How many jobs its step has."""


@dataclass
class StepStanding:
    """How far a step is."""

    state: StepState
    message: str = ""
    total: int | None = None
    records: list[JobRecord] = field(default_factory=list[JobRecord])
    """By index."""
    output: Any = None

    @property
    def completed(self) -> int:
        """How many of its jobs COMPLETED."""
        return sum(record.state is JobState.COMPLETED for record in self.records)


@dataclass
class Decision:
    """Where a pipeline stands, and what is to be done now."""

    state: PipelineState
    steps: dict[str, StepStanding]
    submit: list[NewJob]
    read: list[JobRecord]
    """Jobs whose output a later step needs."""
    cancel: list[JobRecord]


def decide(spec: PipelineSpec, records: Sequence[JobRecord], *, cancelled: bool = False) -> Decision:
    """What is to be done. The same records always give the same decision, and doing a part of it does no harm."""
    by_step: dict[str, list[JobRecord]] = {step.name: [] for step in spec.steps}
    for record in sorted(records, key=lambda one: one.index):
        by_step[record.step].append(record)
    decision = Decision(PipelineState.RUNNING, {}, [], [], [])
    for step in spec.steps:
        standing = StepStanding(StepState.WAITING, records=by_step[step.name])
        decision.steps[step.name] = standing
        _look_at(spec, step, standing, decision, cancelled)
    decision.state = _state_of(decision, cancelled)
    return decision


def _state_of(decision: Decision, cancelled: bool) -> PipelineState:
    states = {standing.state for standing in decision.steps.values()}
    if not all(state.has_ended for state in states):
        return PipelineState.RUNNING
    if cancelled and states & {StepState.CANCELLED, StepState.FAILED}:
        return PipelineState.CANCELLED
    return PipelineState.FAILED if StepState.FAILED in states else PipelineState.COMPLETED


def _look_at(spec: PipelineSpec, step: Step, standing: StepStanding, decision: Decision, cancelled: bool) -> None:
    before = {name: decision.steps[name] for name in step.after}
    if not all(one.state.has_ended for one in before.values()):
        return
    scope: dict[str, Any] = {"parameters": spec.parameters} | {
        name: {"state": one.state.value, "output": one.output} for name, one in before.items()
    }
    try:
        if not standing.records and (why_not := _skipped(step, before, scope)) is not None:
            standing.state, standing.message = StepState.SKIPPED, why_not
            return
        items = _items(step, scope)
    except ExpressionError as error:
        standing.state, standing.message = StepState.FAILED, str(error)
        return
    standing.total = len(items)
    _go_on(step, standing, decision, cancelled)
    if standing.state is not StepState.RUNNING or cancelled or any(one.failure for one in standing.records):
        return
    there = {record.index for record in standing.records}
    missing = [index for index in range(len(items)) if index not in there]
    try:
        new = [_new_job(step, index, items[index], scope, before) for index in missing]
        decision.submit += [replace(one, total=len(items)) for one in new]
    except (ExpressionError, ValueError) as error:
        standing.state, standing.message = StepState.FAILED, str(error)
        if any(record.is_live for record in standing.records):
            standing.state = StepState.RUNNING


def _go_on(step: Step, standing: StepStanding, decision: Decision, cancelled: bool) -> None:
    """Set the state of a step whose time has come."""
    live = [record for record in standing.records if record.is_live]
    if cancelled:
        decision.cancel += live
    failure = _failure_of(standing.records)
    standing.message = failure or ""
    standing.state = StepState.RUNNING
    if live:
        return
    if failure is not None:
        standing.state = StepState.FAILED
        return
    if len(standing.records) < (standing.total or 0):
        if cancelled:
            standing.state = StepState.CANCELLED
        return
    if step.output_used:
        unread = [record for record in standing.records if not record.output_read]
        decision.read += unread
        if unread:
            return
        outputs = [record.output for record in standing.records]
        standing.output = outputs if step.for_each is not None else outputs[0]
    standing.state = StepState.COMPLETED


def _failure_of(records: Sequence[JobRecord]) -> str | None:
    """Why the step fails. None: it does not. A job that failed says more than those that were cancelled for it."""
    failed = [record for record in records if record.failure is not None]
    first = next((record for record in failed if record.state is not JobState.CANCELLED), None)
    return (first or failed[0]).failure if failed else None


def _skipped(step: Step, before: Mapping[str, StepStanding], scope: Mapping[str, Any]) -> str | None:
    """Why the step does not run. None: it does. Raises :class:`ExpressionError`."""
    if step.when is not None:
        condition = expressions.read(step.when)
        try:
            return None if condition.evaluate(scope) else f"not {step.when}"
        except ExpressionError:
            # What did not complete has no output, so the condition does not hold.
            named = {path[0] for path in condition.references if path[1:2] == ("output",)}
            for name in sorted(named & before.keys()):
                if before[name].state is not StepState.COMPLETED:
                    return f"not {step.when}: step {name} is {before[name].state} and has no output"
            raise
    for name, one in before.items():
        if one.state is not StepState.COMPLETED:
            return f"step {name} is {one.state}"
    return None


def _items(step: Step, scope: Mapping[str, Any]) -> list[Any]:
    """What its jobs differ in; one None for a step that is one job. Raises :class:`ExpressionError`."""
    if step.for_each is None:
        return [None]
    items = expressions.fill(step.for_each, scope)
    if not isinstance(items, list):
        raise ExpressionError(f"for_each needs a list, and {step.for_each} is {_shown(items)}")
    if len(items) > MAX_JOBS_OF_STEP:
        raise ExpressionError(f"for_each has {len(items)} items; at most {MAX_JOBS_OF_STEP} are allowed")
    return items


def _new_job(step: Step, index: int, item: Any, scope: Mapping[str, Any], before: Mapping[str, StepStanding]) -> NewJob:
    own = dict(scope) if step.for_each is None else {**scope, "item": item, "index": index}
    command = [expressions.as_text(one) for one in expressions.fill(list(step.job.command), own)]
    env = {name: expressions.as_text(one) for name, one in expressions.fill(dict(step.job.env), own).items()}
    # Jobs that were refused or cancelled may have no directory.
    inputs = {
        name: tuple(record.directory for record in one.records if record.state in (JobState.COMPLETED, JobState.FAILED))
        for name, one in before.items()
        if one.records
    }
    key = _cache_key(step, command, env, before) if step.cache else None
    return NewJob(step, index, command, env, inputs, key)


def _cache_key(step: Step, command: list[str], env: dict[str, str], before: Mapping[str, StepStanding]) -> str:
    """The same for two jobs that get the same. A step that is not cached counts as new in each run."""
    inputs = {name: [record.cache_key or record.job_id for record in one.records] for name, one in before.items()}
    spec = step.job.model_dump(mode="json", exclude={"name", "command", "env", "priority", "artifacts"})
    text = json.dumps([step.name, command, env, spec, inputs], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}…"

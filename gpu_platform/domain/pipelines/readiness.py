"""What a pipeline does next: a pure function of its steps and of what became of their jobs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_platform.domain.pipelines import expressions
from gpu_platform.domain.pipelines.expressions import MAX_WORK, ExpressionError, TooMuch, Work
from gpu_platform.domain.pipelines.pipeline import (
    MAX_JOBS_OF_STEP,
    PipelineSpec,
    PipelineState,
    Step,
    StepState,
)
from gpu_platform.domain.pipelines.step_texts import StepTexts
from gpu_platform.domain.states import JobState

MOST_INPUT_BYTES = 512 * 1024
"""The most bytes of names of directories that a job gets: hosts get them in one message of Temporal, which takes 4 MiB
at most, with those of other jobs that start at the same time."""


@dataclass(frozen=True, kw_only=True)
class JobOfStep:
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
    """A job to submit. What it runs is built when it is asked for."""

    step: Step
    index: int
    texts: StepTexts
    """What the jobs of its step run."""
    inputs: dict[str, tuple[str, ...]]
    """Step -> directories of its jobs."""
    seed: str | None
    """What its cache key says besides its command. None: it is not cached."""

    @property
    def command(self) -> list[str]:
        """Its command."""
        return self.texts.command(self.index)

    @property
    def env(self) -> dict[str, str]:
        """Its environment."""
        return self.texts.env(self.index)

    @property
    def total(self) -> int:
        """How many jobs its step has."""
        return len(self.texts.items)

    @property
    def cache_key(self) -> str | None:
        """The same for two jobs that get the same. None: it is not cached."""
        if self.seed is None:
            return None
        text = json.dumps([self.command, self.env]) + self.seed
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass
class StepStanding:
    """How far a step is."""

    state: StepState
    message: str = ""
    total: int | None = None
    records: list[JobOfStep] = field(default_factory=list[JobOfStep])
    """By index."""
    output: Any = None

    @property
    def completed(self) -> int:
        """How many of its jobs COMPLETED."""
        return sum(record.state is JobState.COMPLETED for record in self.records)


@dataclass
class PipelineDecision:
    """Where a pipeline stands, and what is to be done now."""

    state: PipelineState
    steps: dict[str, StepStanding]
    submit: list[NewJob]
    read: list[JobOfStep]
    """Jobs whose output a later step needs."""
    cancel: list[JobOfStep]
    more: bool = False
    """Steps that are ready too were left for the next time."""


def decide(spec: PipelineSpec, records: Sequence[JobOfStep], *, cancelled: bool = False) -> PipelineDecision:
    """What is to be done. The same records always give the same decision, and doing a part of it does no harm."""
    by_step: dict[str, list[JobOfStep]] = {step.name: [] for step in spec.steps}
    for record in sorted(records, key=lambda one: one.index):
        by_step[record.step].append(record)
    decision = PipelineDecision(PipelineState.RUNNING, {}, [], [], [])
    conditions, spent = Work(), 0
    for step in spec.steps:
        standing = StepStanding(StepState.WAITING, records=by_step[step.name])
        decision.steps[step.name] = standing
        if decision.submit and spent >= MAX_WORK:
            decision.more = True
            _look_at(spec, step, standing, decision, cancelled, conditions, None)
            continue
        own = Work()
        _look_at(spec, step, standing, decision, cancelled, conditions, own)
        spent += own.units
    decision.state = _state_of(decision, cancelled)
    return decision


def _state_of(decision: PipelineDecision, cancelled: bool) -> PipelineState:
    states = {standing.state for standing in decision.steps.values()}
    if not all(state.has_ended for state in states):
        return PipelineState.RUNNING
    if cancelled and states & {StepState.CANCELLED, StepState.FAILED}:
        return PipelineState.CANCELLED
    return PipelineState.FAILED if StepState.FAILED in states else PipelineState.COMPLETED


def _look_at(
    spec: PipelineSpec,
    step: Step,
    standing: StepStanding,
    decision: PipelineDecision,
    cancelled: bool,
    conditions: Work,
    own: Work | None,
) -> None:
    """``conditions``: what all conditions may still read. ``own``: what may be done for the jobs of this step. None:
    they are left for the next time."""
    before = {name: decision.steps[name] for name in step.after}
    if not all(one.state.has_ended for one in before.values()):
        return
    scope: dict[str, Any] = {"parameters": spec.parameters} | {
        name: {"state": one.state.value, "output": one.output} for name, one in before.items()
    }
    try:
        if not standing.records and (why_not := _skipped(step, before, scope, conditions)) is not None:
            standing.state, standing.message = StepState.SKIPPED, why_not
            return
        items = _items(step, scope, Work())
    except ExpressionError as error:
        standing.state, standing.message = StepState.FAILED, str(error)
        return
    standing.total = len(items)
    _go_on(step, standing, decision, cancelled)
    if standing.state is not StepState.RUNNING or cancelled or any(one.failure for one in standing.records):
        return
    there = {record.index for record in standing.records}
    missing = [index for index in range(len(items)) if index not in there]
    if not missing or own is None:
        return
    try:
        decision.submit += _new_jobs(step, missing, items, scope, before, own)
    except (ExpressionError, ValueError) as error:
        standing.state, standing.message = StepState.FAILED, str(error)
        if any(record.is_live for record in standing.records):
            standing.state = StepState.RUNNING


def _go_on(step: Step, standing: StepStanding, decision: PipelineDecision, cancelled: bool) -> None:
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


def _failure_of(records: Sequence[JobOfStep]) -> str | None:
    """Why the step fails. None: it does not. A job that failed says more than those that were cancelled for it."""
    failed = [record for record in records if record.failure is not None]
    first = next((record for record in failed if record.state is not JobState.CANCELLED), None)
    return (first or failed[0]).failure if failed else None


def _skipped(step: Step, before: Mapping[str, StepStanding], scope: Mapping[str, Any], work: Work) -> str | None:
    """Why the step does not run. None: it does. Raises :class:`ExpressionError`."""
    if step.when is not None:
        condition = expressions.read(step.when)
        try:
            return None if condition.evaluate(scope, work) else f"not {step.when}"
        except TooMuch:
            raise
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


def _items(step: Step, scope: Mapping[str, Any], work: Work) -> list[Any]:
    """What its jobs differ in; one None for a step that is one job. Raises :class:`ExpressionError`."""
    if step.for_each is None:
        return [None]
    items = expressions.fill(step.for_each, scope, work=work)
    if not isinstance(items, list):
        raise ExpressionError(f"for_each needs a list, and {step.for_each} is {_shown(items)}")
    if len(items) > MAX_JOBS_OF_STEP:
        raise ExpressionError(f"for_each has {len(items)} items; at most {MAX_JOBS_OF_STEP} are allowed")
    return items


def _new_jobs(
    step: Step,
    indices: Sequence[int],
    items: list[Any],
    scope: Mapping[str, Any],
    before: Mapping[str, StepStanding],
    work: Work,
) -> list[NewJob]:
    """Raises :class:`ExpressionError` if they would be too large, before they are built."""
    texts = StepTexts.of(step, items, scope)
    texts.check(indices, work)
    # Jobs that were refused or cancelled may have no directory.
    inputs = {
        name: tuple(record.directory for record in one.records if record.state in (JobState.COMPLETED, JobState.FAILED))
        for name, one in before.items()
        if one.records
    }
    size = sum(len(directory) for directories in inputs.values() for directory in directories)
    if size > MOST_INPUT_BYTES:
        raise ExpressionError(
            f"the names of the directories that it gets from the steps before it have {size} bytes; at most "
            f"{MOST_INPUT_BYTES} are allowed: wait for fewer jobs (after), or collect their results in a step between"
        )
    seed = _seed(step, before) if step.cache else None
    return [NewJob(step, index, texts, inputs, seed) for index in indices]


def _seed(step: Step, before: Mapping[str, StepStanding]) -> str:
    """What a cache key says besides the command. A step that is not cached counts as new in each run."""
    inputs = {name: [record.cache_key or record.job_id for record in one.records] for name, one in before.items()}
    spec = step.job.model_dump(mode="json", exclude={"name", "command", "env", "priority", "artifacts"})
    return hashlib.sha256(json.dumps([step.name, spec, inputs], sort_keys=True).encode()).hexdigest()


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}…"

"""Any pipeline, whatever its jobs do: it comes to an end, and its rules hold at each step."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.pipelines.pipeline import PipelineSpec, PipelineState, Step, StepState
from gpu_platform.domain.pipelines.readiness import JobOfStep, PipelineDecision, decide
from gpu_platform.domain.states import JobState

CONDITIONS = (None, None, "true", "{0}.state == 'COMPLETED'", "{0}.state != 'COMPLETED'", "{0}.output", "{0}.nothing")
ENDS = (JobState.COMPLETED, JobState.COMPLETED, JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)
OUTPUTS = ([], [1, 2, 3], {"a": 1}, None, True)


@st.composite
def specs(draw: st.DrawFn) -> PipelineSpec:
    steps: list[Step] = []
    for number in range(draw(st.integers(1, 6))):
        earlier = [step.name for step in steps]
        after = tuple(draw(st.lists(st.sampled_from(earlier), unique=True, max_size=3))) if earlier else ()
        when, each = None, draw(st.sampled_from([None, None, [], ["x", "y", "z"], "output"]))
        if after:
            template = draw(st.sampled_from(CONDITIONS))
            when = None if template is None else template.format(after[0])
        if each == "output":
            each = f"${{{{ {after[0]}.output }}}}" if after else None
        steps.append(
            Step(
                name=f"s{number}",
                after=after,
                when=when,
                for_each=each,
                at_once=draw(st.integers(1, 3)),
                cache=draw(st.booleans()),
                job=JobSpec(command=["echo"]),
                output_used=True,
            )
        )
    return PipelineSpec(name="p", namespace="n", user="u", steps=tuple(steps))


def check(spec: PipelineSpec, decision: PipelineDecision, records: list[JobOfStep], cancelled: bool) -> None:
    there = {(record.step, record.index) for record in records}
    for new in decision.submit:
        assert (new.step.name, new.index) not in there
        assert not cancelled, "nothing is submitted after a cancel"
        before = [decision.steps[name] for name in new.step.after]
        assert all(one.state.has_ended for one in before)
        assert new.step.when is not None or all(one.state is StepState.COMPLETED for one in before)
        assert new.inputs.keys() == {name for name in new.step.after if decision.steps[name].records}
    for step in spec.steps:
        standing = decision.steps[step.name]
        if standing.state.has_ended:
            assert not any(record.is_live for record in standing.records)
        if standing.state is StepState.COMPLETED:
            assert standing.completed == standing.total
    if decision.state is not PipelineState.RUNNING:
        assert [*decision.submit, *decision.read, *decision.cancel] == []


# Under load an example may take longer than Hypothesis allows by default (200 ms), which says nothing of pipelines.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(specs(), st.data())
def test_every_pipeline_ends_and_keeps_its_rules(spec: PipelineSpec, data: st.DataObject) -> None:
    records: list[JobOfStep] = []
    cancelled, ended = False, dict[str, StepState]()
    for _ in range(200):
        decision = decide(spec, records, cancelled=cancelled)
        assert decide(spec, records[::-1], cancelled=cancelled) == decision, "the order of records counts not"
        check(spec, decision, records, cancelled)
        if not cancelled:
            for name, state in ended.items():
                assert decision.steps[name].state is state, "what has ended stays as it is"
            ended = {name: one.state for name, one in decision.steps.items() if one.state.has_ended}
        if decision.state is not PipelineState.RUNNING:
            break
        for new in decision.submit[: data.draw(st.integers(1, 4))]:
            refused = "no" if data.draw(st.integers(0, 9)) == 0 else None
            job_id = None if refused else f"j-{len(records)}"
            directory = f"d{len(records)}"
            record = JobOfStep(step=new.step.name, index=new.index, job_id=job_id, refusal=refused, directory=directory)
            records.append(replace(record, cache_key=new.cache_key))
        for number, record in enumerate(records):
            if record.is_live and (cancelled or data.draw(st.booleans())):
                records[number] = replace(record, state=data.draw(st.sampled_from(ENDS)))
            elif record in decision.read:
                records[number] = replace(record, output_read=True, output=data.draw(st.sampled_from(OUTPUTS)))
        cancelled = cancelled or data.draw(st.integers(0, 19)) == 0
    else:
        raise AssertionError("it does not end")
    states = {one.state for one in decision.steps.values()}
    if decision.state is PipelineState.COMPLETED:
        assert states <= {StepState.COMPLETED, StepState.SKIPPED}
    if StepState.FAILED in states:
        assert decision.state in (PipelineState.FAILED, PipelineState.CANCELLED)


@given(st.sampled_from(["a", "b"]), st.sampled_from(["a", "b"]), st.booleans())
def test_the_cache_key_says_whether_two_jobs_get_the_same(one: str, other: str, cached_before: bool) -> None:
    def key(argument: str, run: str) -> str | None:
        first = Step(name="first", cache=cached_before, job=JobSpec(command=["make"]))
        second = Step(name="second", after=("first",), cache=True, job=JobSpec(command=["use", argument]))
        spec = PipelineSpec(name="p", namespace="n", user="u", steps=(first, second))
        [new] = decide(spec, []).submit
        done = JobOfStep(step="first", index=0, job_id=run, state=JobState.COMPLETED, cache_key=new.cache_key)
        [new] = decide(spec, [done]).submit
        return new.cache_key

    same = one == other and cached_before
    assert (key(one, "j-1") == key(other, "j-2")) == same

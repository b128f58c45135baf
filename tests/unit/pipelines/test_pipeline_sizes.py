"""What multiplies in a pipeline is measured before it is built: parameters, outputs, items, and the file itself."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.jobs.array import MAX_PARAMETER_BYTES
from gpu_platform.domain.jobs.artifacts import Artifacts
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.pipelines import expressions
from gpu_platform.domain.pipelines.expressions import MAX_FILLED_BYTES, ExpressionError, Work
from gpu_platform.domain.pipelines.file import read_pipeline
from gpu_platform.domain.pipelines.pipeline import PipelineSpec, Step, StepState
from gpu_platform.domain.pipelines.readiness import JobOfStep, PipelineDecision, decide
from gpu_platform.domain.pipelines.step_texts import StepTexts
from gpu_platform.domain.states import JobState
from gpu_platform.store.jobs.pipeline_steps import as_array

MOST_S, MOST_BYTES = 5.0, 100 << 20


@contextmanager
def small() -> Iterator[None]:
    """What is done inside takes little time and memory."""
    tracemalloc.start()
    began = time.monotonic()
    try:
        yield
        took_s, peak = time.monotonic() - began, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MOST_BYTES, f"{peak >> 20} MiB"
    assert took_s < 4 * MOST_S, f"{took_s:.1f} s, while memory was measured"


def decided(
    command: list[str], output: Any, for_each: Any = None, env: dict[str, str] | None = None, parameter: Any = None
) -> PipelineDecision:
    """What is to be done when step ``a`` has written ``output``, and ``b`` names it."""
    spec = PipelineSpec(
        name="p",
        namespace="n",
        user="u",
        parameters={"p": parameter},
        steps=(
            Step(name="a", job=JobSpec(command=["a"]), output_used=True),
            Step(name="b", after=("a",), for_each=for_each, job=JobSpec(command=command, env=env or {})),
        ),
    )
    first = JobOfStep(step="a", index=0, job_id="j-1", state=JobState.COMPLETED, output_read=True, output=output)
    return decide(spec, [first])


def test_an_output_that_is_named_often_is_refused_before_it_is_built() -> None:
    with small():
        decision = decided(["echo", "${{ a.output }}" * 7000], "x" * 60_000, for_each=[*range(30)])
    assert decision.steps["b"].state is StepState.FAILED
    assert "420000006 bytes; at most 131072 are allowed" in decision.steps["b"].message
    assert decision.submit == []


@pytest.mark.parametrize(
    ("command", "output", "for_each"),
    [
        (["echo", "${{ item }}" * 2000], None, ["y" * 60] * 1000),
        (["echo", *["${{ item }}"] * 4000], None, [*range(1000)]),
        (["echo", *["{"] * 4000], None, [*range(1000)]),
        (["echo", "${{ a.output }}"], "{" * 60_000, [*range(1000)]),
        (["echo", "${{ item }}" + "${{ a.output == a.output }}" * 4000], [0] * 20_000, [*range(1000)]),
        (["echo", "${{ a.output }}"], {str(key): "x" for key in range(6000)}, [*range(1000)]),
        (["echo", "${{ item }} ${{ a.output }}"], "\N{GRINNING FACE}" * 15_000, [*range(1000)]),
    ],
)
def test_what_differs_from_job_to_job_is_bounded_for_all_of_them_together(
    command: list[str], output: Any, for_each: list[Any]
) -> None:
    with small():
        decision = decided(command, output, for_each)
    assert decision.steps["b"].state is StepState.FAILED
    assert "at most" in decision.steps["b"].message or "more than" in decision.steps["b"].message


def test_conditions_that_compare_large_values_again_and_again_are_refused() -> None:
    when = " and ".join(["a.output == a.output"] * 10_000)
    spec = PipelineSpec(
        name="p",
        namespace="n",
        user="u",
        steps=(
            Step(name="a", job=JobSpec(command=["a"]), output_used=True),
            Step(name="b", after=("a",), when=when, job=JobSpec(command=["b"])),
        ),
    )
    first = JobOfStep(
        step="a", index=0, job_id="j-1", state=JobState.COMPLETED, output_read=True, output=[*range(10_000)]
    )
    with small():
        decision = decide(spec, [first])
    assert decision.steps["b"].state is StepState.FAILED
    assert "read too much" in decision.steps["b"].message


def test_many_steps_that_are_ready_at_once_go_on_later() -> None:
    """Each is allowed by itself; together they would take minutes."""
    steps = tuple(
        Step(name=f"s{number}", for_each=[*["x" * 100] * 1000], job=JobSpec(command=["echo", *["${{ item }}"] * 40]))
        for number in range(30)
    )
    decision = decide(PipelineSpec(name="p", namespace="n", user="u", steps=steps), [])
    submitted = {new.step.name for new in decision.submit}
    assert decision.more
    assert 0 < len(submitted) < 30
    assert all(one.state is StepState.RUNNING for one in decision.steps.values())


def lots(count: int, of: Callable[[int], str]) -> str:
    return "".join(of(number) for number in range(count))


@pytest.mark.parametrize(
    ("file", "parameters"),
    [
        (
            "parameters: {big: }\nsteps: {a: {command: [echo, " + '"x${{ parameters.big }}", ' * 4000 + "x]}}",
            {"big": "x" * 200_000},
        ),
        (
            "parameters: {big: }\nsteps: {a: {command: [a], for_each: [" + '"${{ parameters.big }}", ' * 900 + "x]}}",
            {"big": [0] * 200_000},
        ),
        ("steps: {a: {command: [" + "[],".rjust(3) * 80_000 + "x]}}", {}),
        ("[" * 200_000, {}),
        ("- " * 100_000, {}),
        ("a: " + "1" * 200_000, {}),
        ("a: 1" + ":59" * 80_000, {}),
        ("a: 0x" + "f" * 200_000, {}),
        ("steps: {a: {command: ['" + "${{" * 80_000 + "']}}", {}),
        ("steps:\n" + lots(9000, lambda number: f" s{number}: {{}}\n"), {}),
        ("steps: {a: {command: [a]}}", {f"p{number}": number for number in range(200)}),
        (
            "parameters:\n" + lots(9000, lambda number: f" p{number}: x\n") + "steps: {a: {command: [a]}}",
            {f"q{number}": number for number in range(200)},
        ),
        ("steps: {a: {command: [a], after: [" + "b," * 15_000 + "b]}}", {}),
        ("? " * 100_000, {}),
        ("a: &x [1]\nb: [" + "*x," * 50_000 + "]", {}),
        ("&a " * 80_000, {}),
        ("!!a " * 60_000, {}),
        ("{a: " * 60_000, {}),
        ("'" * 250_000, {}),
        ("#" * 250_000, {}),
        ("%TAG ! tag:x\n" * 15_000, {}),
    ],
)
def test_a_file_of_the_largest_size_is_read_or_refused_soon(file: str, parameters: dict[str, Any]) -> None:
    assert len(file) < 260_000
    with small(), pytest.raises(InvalidRequest):
        read_pipeline(file, parameters)


def test_a_file_may_become_as_large_as_is_said_and_no_larger() -> None:
    file = "parameters: {big: }\nsteps:\n" + lots(
        40, lambda number: f' s{number}: {{command: [echo, "${{{{ parameters.big }}}}"]}}\n'
    )
    fits = MAX_FILLED_BYTES // 40
    with small():
        made = read_pipeline(file, {"big": "x" * fits})
    assert sum(len(step.job.command[1]) for step in made.steps) == fits * 40
    with small(), pytest.raises(InvalidRequest, match=f"more than {MAX_FILLED_BYTES} bytes"):
        read_pipeline(file, {"big": "x" * (fits + 1)})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
PIECES = st.lists(
    st.sampled_from(
        ["x", "{", "}", "é", "${{ a.output }}", "${{ item }}", "${{ index }}", "${{ parameters.p }}", " ", "${{ 1 }}"]
    ),
    max_size=5,
).map("".join)


@settings(deadline=None)
@given(
    command=st.lists(PIECES, min_size=1, max_size=4),
    env=st.dictionaries(st.sampled_from(["A", "B", "C"]), PIECES, max_size=3),
    items=st.lists(VALUES, min_size=1, max_size=6),
    output=VALUES,
    parameter=VALUES,
    missing=st.data(),
)
def test_what_is_predicted_is_never_less_than_what_is_built(
    command: list[str], env: dict[str, str], items: list[Any], output: Any, parameter: Any, missing: st.DataObject
) -> None:
    scope = {"parameters": {"p": parameter}, "a": {"state": "COMPLETED", "output": output}}
    step = Step(name="b", for_each=items, job=JobSpec(command=["run", *command], env=env))
    indices = sorted(missing.draw(st.sets(st.integers(0, len(items) - 1), min_size=1)))
    texts = StepTexts.of(step, items, scope)
    predicted = texts.check(indices, Work())
    decision = decided(["run", *command], output, items, env, parameter)
    for index in indices:
        assert predicted.command_bytes >= sum(len(one.encode()) + 1 for one in texts.command(index))
        assert predicted.env_bytes >= sum(len(k.encode()) + len(v.encode()) + 2 for k, v in texts.env(index).items())
    jobs = [new for new in decision.submit if new.index in indices]
    _, array = as_array(step, jobs, _artifacts())
    rows = () if array.parameters is None else array.parameters.rows
    assert predicted.parameter_bytes >= sum(len(text.encode()) + 1 for row in rows for text in row)


@given(text=PIECES, values=st.fixed_dictionaries({"a": st.fixed_dictionaries({"output": VALUES}), "item": VALUES}))
def test_the_size_of_a_text_is_known_before_it_is_built(text: str, values: dict[str, Any]) -> None:
    scope = {**values, "index": 3, "parameters": {"p": [1, {"q": "é"}]}}
    read = expressions.template(text)
    assert read.size(scope, Work()) == len(expressions.as_text(read.value(scope, Work())).encode())


@given(st.integers(0, 3000))
def test_nothing_is_built_that_was_refused(most: int) -> None:
    work = Work(built_bytes=most)
    parts = ["${{ p }}-"] * 10
    scope = {"p": "x" * 300}
    built: list[Any] = []
    try:
        built = expressions.fill(parts, scope, work=work)
    except ExpressionError:
        assert work.built_bytes > most
    assert sum(len(one) for one in built) <= most


def test_the_bytes_of_an_array_of_a_step_are_those_that_arrays_may_have() -> None:
    item = "x" * 4_000
    fits = decided(["echo", "${{ item }}"], None, for_each=[item] * 1000)
    assert len(fits.submit) == 1000
    _, array = as_array(fits.submit[0].step, fits.submit, _artifacts())
    size = sum(len(text) + 1 for row in array.parameters.rows for text in row) if array.parameters else 0
    assert size <= MAX_PARAMETER_BYTES or array.parameters is None
    assert json.loads(array.model_dump_json())["indices"] == "0-999"


def _artifacts() -> Artifacts:
    return Artifacts(output="p/b/x", inputs={})

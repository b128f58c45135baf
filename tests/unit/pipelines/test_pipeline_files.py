"""What a pipeline file may say, and with which lines it is refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.pipelines.file import read_pipeline

GOOD = """\
parameters:
  rate: 0.1
  hosts: 1
steps:
  one:
    command: [train, --rate, "${{ parameters.rate }}"]
    gpus: {hosts: "${{ parameters.hosts }}", gpus_per_host: 2}
  two:
    after: one
    for_each: [a, b]
    when: one.state == 'COMPLETED'
    command: [echo, "${{ item }} of ${{ one.output.best }}"]
"""


def test_parameters_are_filled_in_and_what_is_known_later_stays() -> None:
    one, two = read_pipeline(GOOD, {"hosts": 3}, workdir="/here").steps
    assert one.job.command == ["train", "--rate", "0.1"]
    assert one.job.gpus.hosts == 3, "a parameter keeps its type"
    assert one.job.workdir == "/here"
    assert one.output_used
    assert not two.output_used
    assert two.job.command == ["echo", "${{ item }} of ${{ one.output.best }}"]
    assert two.after == ("one",)


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("rate: 0.1", "rate:", 2, "parameter rate has no default"),
        ("hosts: 1", "hosts: 1\n  more: 2", 4, "parameter more is not used"),
        ("parameters.rate", "parameters.rat", 6, "parameters.rat: there is no such parameter"),
        ("gpus_per_host: 2", "gpus_per_host: -2", 7, "step one: gpus.gpus_per_host:"),
        ("gpus:", "gpuz:", 7, "step one: gpuz: there is no such field"),
        ("after: one", "after: [one, none]", 9, "is to run after 'none', which does not exist"),
        ("after: one", "after: two", 9, "steps wait for each other: two after two"),
        ("for_each: [a, b]", "for_each: {a: b}", 10, "for_each is a list"),
        ("for_each: [a, b]", "for_each: [a, b]\n    at_once: 0", 11, "at_once is a number from 1"),
        ("== 'COMPLETED'", "== = 1", 11, "'= 1' is not understood"),
        ("when: one.state", "when: two.state", 11, "there is no step two in its after"),
        ("one.output.best", "one.result", 12, "a step has one.state and one.output"),
        ("[train,", "[train, '${{ item }}',", 6, "only command and env of a step with for_each"),
        ("hosts: \"${{ parameters.hosts }}\"", "hosts: \"${{ parameters.hosts }}\", model: \"${{ one.output }}\"", 7,
         "only command, env, for_each and when"),
        ("  two:", "  one:", 8, "one is there twice"),
        ("  two:", "  parameters:", 8, "is no name of a step"),
        ("[a, b]", "&x [a, *x]", 10, "an alias (*) is not supported"),
        ("command: [echo", "command: [[echo", 12, "this is not YAML"),
        ("after: one", "after: one\n    user: root", 10, "cannot have user"),
        ("steps:", "stepz:", 1, "steps are missing"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_line(old: str, new: str, line: int, message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_pipeline(GOOD.replace(old, new, 1), {})
    lines = [one for one in refused.value.message.splitlines() if message in one]
    assert lines, refused.value.message
    assert lines[0].startswith(f"line {line}: ") or "this is not YAML" in lines[0], refused.value.message


def test_a_parameter_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="parameter x was given, and there is no such one; there are rate, hosts"):
        read_pipeline(GOOD, {"x": 1})


def test_too_much_is_refused() -> None:
    for text in (
        "steps:\n" + "".join(f"  s{n}: {{command: [echo]}}\n" for n in range(201)),
        f"steps: {{a: {{command: [echo], for_each: {list(range(1001))}}}}}",
        "steps: " + "[" * 500 + "]" * 500,
        "steps: {a: {command: [echo], when: '" + "(" * 100 + "1" + ")" * 100 + "'}}",
    ):
        with pytest.raises(InvalidRequest):
            read_pipeline(text, {})


@given(st.text(alphabet="steps:{}[] \n-ab&*!%'\"$,?|>\t0", max_size=60))
def test_no_text_breaks_the_reader(text: str) -> None:
    with contextlib.suppress(InvalidRequest):
        read_pipeline(text, {})

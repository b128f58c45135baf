"""The expressions of pipelines."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_platform.domain.pipelines.expressions import ExpressionError, fill, read

SCOPE: dict[str, Any] = {
    "parameters": {"rate": 0.5, "name": "x"},
    "split": {"state": "COMPLETED", "output": {"count": 4, "parts": [{"id": "p0"}, {"id": "p1"}]}},
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("split.state == 'COMPLETED'", True),
        ("split.output.count > 3 and not split.state == 'FAILED'", True),
        ("split.output.count > 4 or parameters.rate <= 0.5", True),
        ("not not false", False),
        ("'p1' in split.output.parts", False),
        ("split.output.parts[1].id", "p1"),
        ("(1 == 2 or 2 == 2) and null == null", True),
        ("-1.5e1", -15.0),
        ("split.output.count != 4", False),
    ],
)
def test_what_expressions_mean(text: str, value: Any) -> None:
    assert read(text).evaluate(SCOPE) == value


@pytest.mark.parametrize(
    "text",
    ["", "1 +", "split..state", "f(1)", "a b", "1 < 2 < 3", "and", "split.output[", "__import__('os')", "a.b = 1", "("],
)
def test_what_is_no_expression(text: str) -> None:
    with pytest.raises(ExpressionError):
        read(text)


@pytest.mark.parametrize("text", ["split.nothing", "split.output.parts[7]", "split.state.x", "'a' < 1", "missing"])
def test_what_has_no_value_says_so(text: str) -> None:
    with pytest.raises(ExpressionError):
        read(text).evaluate(SCOPE)


def test_a_text_that_is_one_expression_keeps_its_type() -> None:
    assert fill("${{ split.output.count }}", SCOPE) == 4
    assert fill("n=${{ split.output.count }} ${{ parameters.name }}", SCOPE) == "n=4 x"
    assert fill(["${{ split.output.parts }}", "${x} {y}"], SCOPE) == [[{"id": "p0"}, {"id": "p1"}], "${x} {y}"]
    assert fill({"a": "${{ split.output.parts[0] }}!"}, SCOPE) == {"a": '{"id": "p0"}!'}


@given(st.text(alphabet="()[]. <>=!'\"andortif0123xsplit_-", max_size=40))
def test_every_text_is_read_or_refused(text: str) -> None:
    try:
        found = read(text)
    except ExpressionError:
        return
    try:
        found.evaluate(SCOPE)
    except ExpressionError:
        return


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(alphabet="ab{} "), st.lists, max_leaves=8))
def test_what_has_no_place_to_fill_stays(value: Any) -> None:
    assert fill(value, SCOPE) == value

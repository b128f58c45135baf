"""An error is the same on both sides of the wire."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gpu_platform.client.wire import Problem, invalid_request, problem_of_response
from gpu_platform.domain import errors
from gpu_platform.domain.errors import IllegalTransition, InvalidRequest, PlatformError, PreflightFailed, Unavailable
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.node.processes.step_process import FileSystemSilent


def kinds(kind: type[PlatformError] = PlatformError) -> list[type[PlatformError]]:
    """The errors that clients know. One that has no code of its own, outside the tree, arrives as the one above it."""
    known = [child for child in kind.__subclasses__() if child.__module__.startswith("gpu_platform.")]
    found = [below for child in known for below in (child, *kinds(child))]
    return [one for one in found if "code" in vars(one) or one.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind is not IllegalTransition], ids=lambda k: k.__name__)
def test_every_error_comes_back_as_itself(kind: type[PlatformError]) -> None:
    problem = Problem.of(kind("what, and what to do", job_id="j-1"), "/v1/jobs/j-1")
    found = Problem.model_validate_json(problem.model_dump_json()).error()
    assert type(found) is kind
    assert (found.message, found.details) == ("what, and what to do", {"job_id": "j-1"})
    assert (found.http_status, found.retryable) == (problem.status, problem.retryable)


def test_an_error_without_a_code_of_its_own_arrives_as_the_one_above_it() -> None:
    silent = FileSystemSilent("/mnt/a has not answered for 10 s")
    found = Problem.of(silent).error()
    assert (type(found), found.message) == (PreflightFailed, silent.message)
    assert found.details.keys() == silent.details.keys()


def test_an_illegal_transition_keeps_what_it_knows() -> None:
    error = IllegalTransition(subject="job j-1", current="FAILED", wanted="CANCELLED", allowed=[])
    found = Problem.of(error).error()
    assert isinstance(found, IllegalTransition)
    assert (str(found), found.details["current"]) == (error.message, "FAILED")


def test_codes_are_unique() -> None:
    assert len({kind.code for kind in kinds()}) == len(kinds())


def test_codes_that_only_http_knows_become_the_nearest_error() -> None:
    assert type(Problem.make(413, "body_too_large", "x").error()) is InvalidRequest
    assert type(Problem.make(500, "internal", "x").error()) is PlatformError


@pytest.mark.parametrize(
    ("status", "kind"), [(502, Unavailable), (408, Unavailable), (404, InvalidRequest), (500, PlatformError)]
)
def test_answers_of_something_in_between(status: int, kind: type[PlatformError]) -> None:
    problem = problem_of_response(status, {"content-type": "text/html"}, b"<h1>Bad Gateway</h1>\xff")
    assert type(problem.error()) is kind
    assert "Bad Gateway" in problem.detail
    broken = problem_of_response(status, {"content-type": "application/problem+json"}, b"{")
    assert type(broken.error()) is kind


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.just("\ud800"),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_what_was_given_is_always_told_and_never_long(value: object) -> None:
    with pytest.raises(ValidationError) as found:
        JobSpec.model_validate({"command": ["x"], "priority": {"not": value}, "unknown": value})
    problem = Problem.of(invalid_request(found.value.errors()))
    assert {error.field for error in problem.errors} == {"priority", "unknown"}
    json.dumps(problem.model_dump(), allow_nan=False).encode()
    assert len(problem.detail) < 2000


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    assert all(kind.__name__ in (errors.__doc__ or "") for kind in kinds())

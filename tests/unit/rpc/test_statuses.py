"""Problems travel as statuses of gRPC and come back whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from gpu_platform.client.wire import FieldError, Problem
from gpu_platform.domain.errors import InvalidRequest, NotFound, PlatformError, TooManyRequests
from gpu_platform.rpc import statuses


class Failed:
    """A call that failed, as gRPC shows it."""

    def __init__(self, status: Any) -> None:
        self._status = status

    def code(self) -> grpc.StatusCode:
        return self._status.code

    def details(self) -> str:
        return self._status.details

    def trailing_metadata(self) -> Any:
        return self._status.trailing_metadata


def _details(status: Any) -> Iterator[Any]:
    [(_, data)] = status.trailing_metadata
    for one in status_pb2.Status.FromString(data).details:
        for kind in ("ErrorInfo", "BadRequest", "RetryInfo", "RequestInfo"):
            found = getattr(error_details_pb2, kind)()
            if one.Unpack(found):
                yield found


def _classes(kind: type[PlatformError]) -> Iterator[type[PlatformError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _classes(below)


def test_every_error_has_a_status() -> None:
    for kind in _classes(PlatformError):
        assert kind.grpc_status in grpc.StatusCode.__members__, kind
        assert (kind.http_status == 500) == (kind.grpc_status == "INTERNAL") or kind.http_status == 500, kind


def test_a_problem_comes_back_whole() -> None:
    wrong = [FieldError(field="gpus.hosts", message="should be at least 1", given=0).model_dump()]
    problem = Problem.of(InvalidRequest("it is wrong", errors=wrong, hosts=["a"], left=3), "/v1/jobs")
    status = statuses.status_of(problem, request_id="r-1")
    assert (status.code, status.details) == (grpc.StatusCode.INVALID_ARGUMENT, "it is wrong")
    assert statuses.problem_of(Failed(status)) == problem
    found = {type(one).__name__: one for one in _details(status)}
    assert (found["ErrorInfo"].reason, found["ErrorInfo"].domain) == ("INVALID_REQUEST", "gpu-platform")
    assert found["BadRequest"].field_violations[0].field == "gpus.hosts"
    assert found["RequestInfo"].request_id == "r-1"


def test_when_to_try_again_is_said() -> None:
    status = statuses.status_of(Problem.of(TooManyRequests("slower", retry_after_s=2.5)), retry_after_s=3.0)
    assert status.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert statuses.retry_after_s(Failed(status)) == 3.0


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (404, "not_found", "NOT_FOUND"),
        (413, "body_too_large", "RESOURCE_EXHAUSTED"),
        (405, "method_not_allowed", "UNIMPLEMENTED"),
        (418, "http_error", "UNKNOWN"),
        (500, "internal", "INTERNAL"),
        (502, "http_error", "INTERNAL"),
    ],
)
def test_a_problem_of_no_class_of_ours_goes_by_its_http_status(status: int, code: str, expected: str) -> None:
    assert statuses.code_of(Problem.make(status, code, "x")).name == expected


@pytest.mark.parametrize("size", [10, 1_000, 100_000])
def test_a_status_always_fits_into_the_headers(size: int) -> None:
    errors = [FieldError(field=f"f{n}", message="é" * (size // 10), given="x" * (size // 10)) for n in range(50)]
    problem = Problem.make(422, "invalid_request", "ä" * size, errors=errors, details={"a": ["z" * size]})
    status = statuses.status_of(problem, retry_after_s=1.0, request_id="r-1")
    [(_, data)] = status.trailing_metadata
    assert len(data) <= 4096
    assert len(status.details.encode()) <= 1000
    back = statuses.problem_of(Failed(status))
    assert (back.code, back.status) == ("invalid_request", 422)
    assert statuses.retry_after_s(Failed(status)) == 1.0


def test_a_text_that_is_no_unicode_is_no_error() -> None:
    problem = Problem.make(
        422, "invalid_request", "name \ud800", errors=[FieldError(field="a", message="b", given="\udfff")]
    )
    back = statuses.problem_of(Failed(statuses.status_of(problem)))
    assert (back.detail, back.errors[0].given) == ("name ?", "?")


class Foreign:
    """A call that ended before the service had it."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "connection refused"

    def trailing_metadata(self) -> Any:
        return ()


@pytest.mark.parametrize(
    ("code", "retryable"),
    [("UNAVAILABLE", True), ("INTERNAL", False), ("UNIMPLEMENTED", False), ("RESOURCE_EXHAUSTED", False)],
)
def test_a_status_of_somebody_else_is_a_problem_too(code: str, retryable: bool) -> None:
    found = statuses.problem_of(Foreign(grpc.StatusCode[code]))
    assert found.retryable is retryable
    assert "connection refused" in found.detail


def test_the_client_raises_the_same_error() -> None:
    status = statuses.status_of(Problem.of(NotFound("there is no job 'j-1'", job_id="j-1")))
    error = statuses.problem_of(Failed(status)).error()
    assert isinstance(error, NotFound)
    assert error.details == {"job_id": "j-1"}

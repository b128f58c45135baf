"""Problems as gRPC statuses with details, and back.

The details follow Google's model of errors (AIP-193): ``ErrorInfo`` with our code, ``BadRequest`` for fields that are
wrong, ``RetryInfo`` where trying again helps, ``RequestInfo``; and the whole :class:`Problem` as a message, for clients
of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as Detail
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from gpu_platform.client.wire import Problem, error_class
from gpu_platform.domain.errors import AnswerTooLarge
from gpu_platform.rpc.json_messages import to_json, to_message
from gpu_platform.rpc.limits import MAX_REQUEST_BYTES
from gpu_platform.v1 import types_pb2

DOMAIN = "gpu-platform"
"""``ErrorInfo.domain`` of all our errors."""
_OF_HTTP = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    409: "ABORTED",
    413: "RESOURCE_EXHAUSTED",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""For problems that are none of the platform's errors: of the web server, and of proxies."""
_TO_HTTP = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "UNIMPLEMENTED": 405,
    "RESOURCE_EXHAUSTED": 413,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
"""For statuses of gRPC itself, e.g. that a message is too large, and of proxies."""
_TOO_LARGE = "message larger than max"
"""What gRPC says of a message beyond a limit of either side."""
_LONGEST_MESSAGE = 1000
_LARGEST_DETAILS = 3072
"""In bytes. They travel as a header, a third larger, beside the message, whose bytes may be three each there. Clients
take 8 KiB of headers if they do not ask for more."""


def code_of(problem: Problem) -> grpc.StatusCode:
    """The status of a problem."""
    kind = error_class(problem.code)
    if kind is not None:
        return grpc.StatusCode[kind.grpc_status]
    default = "UNKNOWN" if problem.status < 500 else "INTERNAL"
    return grpc.StatusCode[_OF_HTTP.get(problem.status, default)]


def status_of(problem: Problem, *, retry_after_s: float | None = None, request_id: str | None = None) -> Any:
    """The problem as a status for ``context.abort_with_status``. What is too large for a header is left out: first the
    values that were refused, then fields and details, then the end of the text."""
    message = _cut(problem.detail, _LONGEST_MESSAGE)
    more: list[Message] = [] if retry_after_s is None else [_retry_info(retry_after_s)]
    if request_id is not None:
        more.append(error_details_pb2.RequestInfo(request_id=request_id))
    status = status_pb2.Status()
    for smaller in _smaller(problem):
        details = [_error_info(problem), *more, *_bad_request(smaller), _message(smaller)]
        status = status_pb2.Status(code=code_of(problem).value[0], message=message, details=_packed(details))
        if status.ByteSize() <= _LARGEST_DETAILS:
            break
    return rpc_status.to_status(status)


def is_ours(error: Any) -> bool:
    """True if the service ended the call, and not gRPC itself or something between."""
    return _detail(error, types_pb2.Problem) is not None


def problem_of(error: Any) -> Problem:
    """The problem in the status of a call that failed, even if something between client and service ended it."""
    found = _detail(error, types_pb2.Problem)
    if found is None:
        return _foreign(error.code(), error.details() or "")
    return Problem.model_validate(to_json(found, complete=True))


def retry_after_s(error: Any) -> float | None:
    """What ``RetryInfo`` says. None: the status has none."""
    found = _detail(error, error_details_pb2.RetryInfo)
    return None if found is None else found.retry_delay.ToTimedelta().total_seconds()


def _detail(error: Any, kind: Any) -> Any:
    """The detail of this kind in the status of a call that failed. None: it has none."""
    try:
        status = rpc_status.from_call(error)
    except (ValueError, DecodeError):
        return None
    found = kind()
    return found if status is not None and any(one.Unpack(found) for one in status.details) else None


def _foreign(code: grpc.StatusCode, text: str) -> Problem:
    """The problem for a status that the service did not make: of gRPC itself, or of a proxy."""
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE in text:
        return _too_large(text)
    is_away = code is grpc.StatusCode.UNAVAILABLE
    name = "unavailable" if is_away else "unexpected_answer"
    detail = f"the service answered {code.name}: {text[:200] or 'nothing'}"
    return Problem.make(_TO_HTTP.get(code.name, 500), name, detail, retryable=is_away)


def _too_large(text: str) -> Problem:
    """The problem for a message that gRPC itself refused. ``text``: it names the side that did."""
    if "CLIENT:" not in text:
        most = f"{MAX_REQUEST_BYTES:,} bytes"
        detail = f"the request is too large for gRPC, which takes {most} ({text[:200]}): send less at once"
        return Problem.make(413, "body_too_large", detail)
    return Problem.of(
        AnswerTooLarge(
            f"the answer is too large for a message of gRPC ({text[:200]}): ask for less at once, with a smaller limit "
            "or a narrower filter, or over REST"
        )
    )


def _smaller(problem: Problem) -> Sequence[Problem]:
    without_values = [one.model_copy(update={"given": None}) for one in problem.errors]
    return (
        problem,
        problem.model_copy(update={"errors": without_values}),
        problem.model_copy(update={"errors": without_values[:10], "details": {}}),
        problem.model_copy(
            update={"errors": [], "details": {}, "detail": _cut(problem.detail, _LONGEST_MESSAGE), "instance": None}
        ),
    )


def _error_info(problem: Problem) -> Message:
    facts = {"http_status": str(problem.status), "retryable": str(problem.retryable).lower()}
    return error_details_pb2.ErrorInfo(reason=problem.code.upper(), domain=DOMAIN, metadata=facts)


def _bad_request(problem: Problem) -> list[Message]:
    violation = error_details_pb2.BadRequest.FieldViolation
    wrong = [violation(field=_text(one.field), description=_text(one.message)) for one in problem.errors]
    return [error_details_pb2.BadRequest(field_violations=wrong)] if wrong else []


def _retry_info(after_s: float) -> Message:
    delay = Duration()
    delay.FromMilliseconds(round(after_s * 1000))
    return error_details_pb2.RetryInfo(retry_delay=delay)


def _message(problem: Problem) -> Message:
    return to_message(_clean(problem.model_dump(mode="json", exclude_none=True)), types_pb2.Problem, exact=False)


def _clean(value: Any) -> Any:
    """JSON whose texts are valid Unicode: a refused value need not be."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        return {_text(name): _clean(one) for name, one in value.items()}
    return [_clean(one) for one in value] if isinstance(value, list) else value


def _packed(details: Sequence[Message]) -> list[Detail]:
    found = []
    for one in details:
        detail = Detail()
        detail.Pack(one)
        found.append(detail)
    return found


def _text(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _cut(text: str, most: int) -> str:
    """At most so many bytes of UTF-8."""
    data = _text(text).encode()
    return data.decode() if len(data) <= most else data[: most - 3].decode("utf-8", "ignore") + "…"

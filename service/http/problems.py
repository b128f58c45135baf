"""Every error of the API is ``application/problem+json`` (RFC 9457) with a stable ``code``."""

from __future__ import annotations

import errno
import json
import math
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from gpu_platform.client.wire import PROBLEM_JSON, Problem, invalid_request
from gpu_platform.domain.access.rules import AccessVerdict
from gpu_platform.domain.errors import Forbidden, NotSignedIn, PlatformError, Unavailable
from gpu_platform.observability import get_logger

RETRY_AFTER_S = 1
_TRY_AGAIN = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.INSUFFICIENT_STORAGE)

log = get_logger(__name__)

RESPONSES: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "Every error, as problem+json; `code` is stable, `errors` names the fields that are wrong",
        "content": {
            PROBLEM_JSON: {
                "schema": {"$ref": "#/components/schemas/Problem"},
                "example": Problem.make(
                    422,
                    "invalid_request",
                    "the request is wrong: gpus.hosts: should be greater than or equal to 1 (given 0)",
                    errors=[{"field": "gpus.hosts", "message": "should be greater than or equal to 1", "given": 0}],
                    instance="/v1/jobs",
                ).model_dump(exclude_none=True),
            }
        },
    }
}
"""The answers for errors in the OpenAPI description of every route."""


def install(app: FastAPI) -> None:
    """Make the application answer every error with a problem (RFC 9457).

    The handlers are coroutines: Starlette calls others in a thread, and a process that has no memory left starts none.
    Only the list of what is wrong with a large body is made in a thread.
    """
    app.add_exception_handler(PlatformError, _platform_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)


def answer(problem: Problem, headers: dict[str, str] | None = None) -> Response:
    """The HTTP answer for a problem. A 429, a 503 and a 507 say when to try again."""
    headers = dict(headers or {})
    if problem.status in _TRY_AGAIN:
        headers.setdefault("Retry-After", str(math.ceil(problem.details.get("retry_after_s", RETRY_AFTER_S))))
    # ASCII, because the refused value may not be valid Unicode.
    content = json.dumps(problem.model_dump(exclude_none=True), ensure_ascii=True)
    return Response(content, problem.status, headers, media_type=PROBLEM_JSON)


def nothing_there(request: Request, methods: Sequence[str]) -> Response:
    """The answer for a path that does not exist, or has only these methods."""
    if methods:
        return http_error(request, HTTPException(405, headers={"Allow": ", ".join(methods)}))
    return http_error(request, HTTPException(404))


async def _platform_error(request: Request, error: Exception) -> Response:
    """The answer for an error of the platform. What a handler forbids is recorded, as what the gate forbids is."""
    assert isinstance(error, PlatformError)
    if error.http_status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log.warning("request.failed", code=error.code, error=error.message, path=request.url.path)
    if isinstance(error, Forbidden | NotSignedIn) and (access := request.scope.get("access")) is not None:
        access.refused(error, AccessVerdict.FORBIDDEN if isinstance(error, Forbidden) else AccessVerdict.NOT_SIGNED_IN)
    return answer(Problem.of(error, request.url.path))


def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    is_secret = request.url.path.startswith("/v1/secrets/")
    if first["type"] == "json_invalid":
        where = f" at character {first['loc'][-1]}" if isinstance(first["loc"][-1], int) else ""
        return _malformed(request, f"the body is not JSON: {first['ctx']['error']}{where}")
    if tuple(first["loc"]) == ("body",) and isinstance(first.get("input"), bytes):
        given = request.headers.get("content-type", "nothing")
        detail = f"send the body as JSON with Content-Type: application/json (given {given[:100]})"
        return answer(Problem.make(415, "unsupported_media_type", detail, instance=request.url.path))
    # Whoever misspells a field has the value of the secret in it.
    errors = [{**one, "input": None} if is_secret else one for one in error.errors()]
    return answer(Problem.of(invalid_request(errors), request.url.path))


def http_error(request: Request, error: Exception) -> Response:
    """The answer for an error of HTTP itself."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == HTTPStatus.NOT_FOUND:
        problem = Problem.make(404, "not_found", f"there is nothing at {path[:200]}; see /docs for what there is")
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = (error.headers or {}).get("Allow", "another method")
        problem = Problem.make(405, "method_not_allowed", f"{request.method} is not possible here; use {allowed}")
    elif error.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        problem = Problem.make(413, "body_too_large", str(error.detail))
    elif error.status_code == HTTPStatus.BAD_REQUEST:
        return _malformed(request, _why_unreadable(error.__cause__) or str(error.detail))
    else:
        problem = Problem.make(error.status_code, "http_error", str(error.detail))
    problem.instance = path
    return answer(problem, dict(error.headers or {}))


async def _http_error(request: Request, error: Exception) -> Response:
    return http_error(request, error)


def _malformed(request: Request, detail: str) -> Response:
    return answer(Problem.make(400, "malformed_body", detail, instance=request.url.path))


def _why_unreadable(cause: BaseException | None) -> str | None:
    if isinstance(cause, UnicodeDecodeError):
        byte = cause.object[cause.start]
        return f"the body is not UTF-8: byte 0x{byte:02x} at position {cause.start}"
    if isinstance(cause, RecursionError):
        return "the body is nested too deeply"
    if isinstance(cause, ValueError):
        return f"the body cannot be read: {cause}"
    return None


async def _unexpected(request: Request, error: Exception) -> Response:
    if (missing := _what_ran_out(error)) is not None:
        with suppress(MemoryError, RuntimeError, OSError):
            log.warning("request.process_exhausted", path=request.url.path, missing=missing)
        text = f"this process of the service has no {missing} left; the same request can succeed later"
        return answer(Problem.make(503, Unavailable.code, text, instance=request.url.path))
    log.error("request.unexpected_error", path=request.url.path, method=request.method, exc_info=error)
    request_id = request.scope.get("request_id", "")
    detail = f"an error of ours, not yours; the service's log has it under request {request_id}"
    return answer(Problem.make(500, "internal", detail, instance=request.url.path))


def _what_ran_out(error: BaseException) -> str | None:
    """What the kernel gives this process no more of. None: the error is another one."""
    if isinstance(error, BaseExceptionGroup):
        return next((what for one in error.exceptions if (what := _what_ran_out(one)) is not None), None)
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return "memory"
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return "file descriptors"
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return "threads"
    return None

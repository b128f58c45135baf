"""What travels between service and client besides the domain's own models: pages, log chunks and problems.

Problems are RFC 9457 (``application/problem+json``). Both directions of the translation are here. So the client
raises the same error as the service, with the same class, code and message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from gpu_platform.domain.errors import InvalidRequest, PlatformError, Unavailable
from gpu_platform.domain.jobs.array import ArraySpec
from gpu_platform.domain.jobs.changes import JobChanges
from gpu_platform.domain.jobs.placement import Placement, Reason
from gpu_platform.domain.jobs.spec import JobSpec

PROBLEM_JSON = "application/problem+json"

MAX_REASON = 2000
"""Characters. It is kept in the event log, and travels to hosts."""

T = TypeVar("T")


class Page(BaseModel, Generic[T]):
    """One page of a list. ``next_cursor`` None: this is the last page."""

    items: list[T]
    next_cursor: str | None = None


class Health(BaseModel):
    """The answer of ``/readyz``."""

    status: str = "ok"
    """``degraded``: no scheduler leads, or the leader stands still. Jobs are accepted, and wait."""
    version: str | None = None
    """The release of the service. Only for who may read the cluster."""
    warnings: list[str] = []
    """What works, but not as it should. Only for who may read the cluster."""
    now: float | None = None
    """The service's clock, Unix seconds. Only ``/healthz`` says it."""


class Clock(BaseModel):
    """The clock of another machine, compared with the service's."""

    kind: Literal["database", "host"]
    name: str = ""
    """Of the host."""
    ahead_s: float | None = None
    """How far it is ahead of the service's; negative: behind. None: it did not say."""
    uncertain_s: float = 0.0
    """By how much that may be wrong: half the time that the question took."""
    problem: str | None = None
    """Why it did not say."""

    @property
    def at_least_s(self) -> float:
        """By how much the clocks differ for certain."""
        return max(0.0, abs(self.ahead_s or 0.0) - self.uncertain_s)


class ReasonBody(BaseModel):
    """The optional body of requests that change jobs or hosts. The reason goes to the event log."""

    model_config = {"extra": "forbid"}

    reason: Annotated[str, Field(max_length=MAX_REASON)] = ""


class ElementsBody(ReasonBody):
    """As :class:`ReasonBody`, for some elements of an array."""

    elements: Annotated[
        str | None,
        Field(max_length=512 * 1024, description="Only these elements; None: the whole array", examples=["5-9,17"]),
    ] = None


class RetryBody(BaseModel):
    """Which elements of an array run again."""

    model_config = {"extra": "forbid"}

    elements: Annotated[
        str | None,
        Field(max_length=512 * 1024, description="These elements; None: those that FAILED", examples=["5-9,17"]),
    ] = None


class ArrayChanges(JobChanges):
    """Changes of an array, or of some of its elements. A field that is left out stays as it is."""

    elements: Annotated[
        str | None,
        Field(max_length=512 * 1024, description="Only these elements; None: the whole array", examples=["5-9,17"]),
    ] = None


class ArraySubmission(BaseModel):
    """An array: what its elements share, and which elements it has."""

    model_config = {"extra": "forbid"}

    job: JobSpec
    array: ArraySpec


class CheckpointAsked(BaseModel):
    """A program was asked for a checkpoint by its request file."""

    signalled: int
    """How many processes also got the signal."""


class CheckpointRoot(BaseModel):
    """Hosts that say that they share one checkpoint root, and whether they do."""

    root: str | None
    """None: the host did not say."""
    hosts: list[str]
    silent: list[str] = []
    """Hosts of the list that did not answer."""
    problem: str | None = None


class DryRun(BaseModel):
    """Where and when a job would start if it were submitted now."""

    accepted: bool
    """False: it would be refused; see ``message``."""
    message: str
    placement: Placement | None = None
    """Where it would start at once. None: it would not."""
    reason: Reason | None = None
    """Why it would wait: its position in the queue, and until when."""
    preempts: list[str] = []
    """Jobs that would be preempted for it. It starts as soon as they have ended."""
    preempts_at: float | None = None
    """When they would be preempted, Unix seconds, because they have a guaranteed run time. None: at once."""
    waits_for: str | None = None
    """For which jobs it would wait first. Then the rest is what would happen if they had ended now."""
    warnings: list[str] = []
    """What the user should know before submitting it."""


class LogChunk(BaseModel):
    """A piece of one rank's output. ``text`` ends at ``next_offset`` bytes of that attempt's log."""

    attempt: int
    rank: int
    next_offset: int
    text: str
    note: str | None = None
    """A note for the reader: earlier output is gone, the disk is full, or the log was removed."""


class FieldError(BaseModel):
    """What is wrong with one field of a request."""

    field: str
    """The path of the field, e.g. ``gpus.hosts`` or ``command[0]``."""
    message: str
    given: Any = None
    """The value that was refused, shortened."""


class Problem(BaseModel):
    """An error as RFC 9457 defines it (section 3). ``code``, ``retryable``, ``errors`` and ``details`` are
    extensions."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    retryable: bool = False
    instance: str | None = None
    errors: list[FieldError] = []
    details: dict[str, Any] = {}

    @classmethod
    def of(cls, error: PlatformError, instance: str | None = None) -> Problem:
        """The problem for an error of the platform. ``instance``: the id of the request."""
        details = dict(error.details)
        fields = details.pop("errors", [])
        return cls.make(
            error.http_status,
            error.code,
            error.message,
            retryable=error.retryable,
            errors=fields,
            details={name: _plain(value) for name, value in details.items()},
            instance=instance,
        )

    @classmethod
    def make(cls, status: int, code: str, detail: str, **more: Any) -> Problem:
        """A problem with the type and the title that belong to ``code``."""
        return cls(
            type=f"urn:gpu-platform:problem:{code}",
            title=code.replace("_", " ").capitalize(),
            status=status,
            detail=detail,
            code=code,
            **more,
        )

    def error(self) -> PlatformError:
        """The platform's error that this problem describes."""
        kind = error_class(self.code)
        if kind is None or kind is PlatformError:
            kind = Unavailable if self.retryable else InvalidRequest if self.status < 500 else PlatformError
        # Some classes make their message from their arguments. Here the message exists already.
        error = kind.__new__(kind)
        details = dict(self.details)
        if self.errors:
            details["errors"] = [field.model_dump() for field in self.errors]
        PlatformError.__init__(error, self.detail, **details)
        return error


def error_class(code: str) -> type[PlatformError] | None:
    """The class of the errors with this code. None: there is none."""
    return _tree(PlatformError).get(code)  # now: a module that came later may have its own errors


def problem_of_response(status: int, headers: Mapping[str, str], body: bytes) -> Problem:
    """The problem in an answer, even if a proxy between client and service wrote the answer."""
    if headers.get("content-type", "").startswith(PROBLEM_JSON):
        try:
            return Problem.model_validate_json(body)
        except ValidationError:
            pass
    text = body[:200].decode("utf-8", "replace").strip()
    # 408: the request did not arrive completely in time, so nothing was done (RFC 9110, section 15.5.9).
    retryable = status in (408, 429, 502, 503, 504)
    code = "unavailable" if retryable else "unexpected_answer"
    return Problem.make(status, code, f"the service answered {status}: {text or 'nothing'}", retryable=retryable)


def invalid_request(errors: list[Any], subject: str = "the request") -> InvalidRequest:
    """One error that names every wrong field, made from ``ValidationError.errors()``."""
    fields = [_field_error(error) for error in errors]
    problems = "; ".join(f"{field.field}: {field.message}{_given(field)}" for field in fields[:10])
    more = f"; and {len(fields) - 10} more" if len(fields) > 10 else ""
    return InvalidRequest(f"{subject} is wrong: {problems}{more}", errors=[field.model_dump() for field in fields])


def _field_error(error: Mapping[str, Any]) -> FieldError:
    location = [part for part in error["loc"] if part not in ("body", "query", "path", "header")]
    field = ""
    for part in location:
        field += f"[{part}]" if isinstance(part, int) else f".{part}" if field else str(part)
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        message = "there is no such field"
    elif error["type"] == "missing":
        message = "is required"
        return FieldError(field=field or "body", message=message)
    elif field == "cursor":
        message = "is not a cursor of this list; leave it out to start with the first page"
    return FieldError(field=field or "body", message=_sentence(message), given=_plain(error.get("input")))


def _given(field: FieldError) -> str:
    # The message may contain the value already, and long values help nobody.
    if field.given is None or isinstance(field.given, dict | list) or repr(field.given) in field.message:
        return ""
    return f" (given {field.given!r})"


def _sentence(message: str) -> str:
    return re.sub(r"^(Input )?(?=should)", "", message).strip()


def _plain(value: Any, depth: int = 0) -> Any:
    """``value`` in a form that is always valid JSON and never long."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**53 else _short(str(value) if value.bit_length() < 10_000 else "a huge number")
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, str):
        return _short(value.encode("utf-8", "backslashreplace").decode())
    if isinstance(value, bytes):
        return _short(value.decode("utf-8", "backslashreplace"))
    if depth < 3 and isinstance(value, Mapping):
        return {str(_plain(str(name))): _plain(item, depth + 1) for name, item in list(value.items())[:20]}
    if depth < 3 and isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth + 1) for item in list(value)[:20]]
    return _short(repr(value)) if depth < 3 else "…"


def _short(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def _tree(kind: type[PlatformError]) -> dict[str, type[PlatformError]]:
    found = {kind.code: kind}
    for child in kind.__subclasses__():
        for code, below in _tree(child).items():
            found.setdefault(code, below)
    return found

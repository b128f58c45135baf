"""Every error the platform raises, in one tree.

::

    PlatformError
    ├── InvalidRequest            what was asked is wrong; asking again will not help
    │   ├── ImpossibleRequest     more than the cluster could ever hold
    │   ├── OverQuota             more than its namespace may ask for, or have waiting
    │   └── IdempotencyConflict   the same key with another body
    ├── NotSignedIn               who asks is not known: no token, or none that is valid
    ├── Forbidden                 who asks is known, and may not do this
    ├── NotFound                  no such job, host or GPU
    ├── EventsGone                events that a reader has not read yet were removed, because they are old
    ├── AnswerTooLarge            an answer of gRPC is larger than a message may be; ask for less
    ├── IllegalTransition         the current state does not allow it
    ├── InUse                     jobs run there, and the operator did not say that they may be stopped
    ├── PortClosed                no program of the job listens at the port
    ├── ReservationConflict       a GPU of the placement was taken or left service meanwhile
    │   ├── AsksOtherwise         the job does not wait for its place in this way any more
    │   └── StaleEpoch            a leader that was replaced tried to act
    ├── StaleReport               a host's report arrived after a newer one
    ├── FullReportNeeded          a heartbeat names facts of its host that are not known here
    ├── WorkflowIsOlder           a workflow knows less of its job than the database
    ├── HostUnavailable           a host does not answer
    ├── PreflightFailed           a host refused to start a rank (workdir, command, GPU)
    ├── NotSent                   a notification did not reach its target
    ├── NoResult                  the job of a function ended without a result (``executor``)
    ├── PluginFailed              a filter or score of another package raised, or gave no valid answer
    ├── Unavailable               Temporal or the database is away; try again
    │   ├── TooManyRequests       the caller asks more often than it may; try again later
    │   └── StorageFull           the database's disk is full; nothing was stored
    ├── CannotOpen                sealed data has no key here, or was changed or moved (``identity/key_ring.py``)
    ├── OrderRefused              a host got an order that control did not sign (``identity/signing.py``)
    └── CannotStart               the platform cannot run here: a wrong setting, a port in use, no Temporal server

``code`` is stable and appears in API answers, metric labels and workflow failures. A class elsewhere that has no code
of its own is for the code around it: others get it as the class above it. ``retryable`` says whether the same
request can succeed later. ``http_status`` is the status of the REST answer, ``grpc_status`` that of the RPC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from gpu_platform.domain.plugin import PluginFault


class PlatformError(Exception):
    """The base of all errors. ``message`` says what was asked, what there was, and what to do."""

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False
    http_status: ClassVar[int] = 500
    grpc_status: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details


class InvalidRequest(PlatformError):
    """The request itself is wrong, so asking again does not help."""

    code = "invalid_request"
    http_status = 422
    grpc_status = "INVALID_ARGUMENT"


class ImpossibleRequest(InvalidRequest):
    """The job asks for more than the registered hosts could ever give."""

    code = "impossible_request"
    grpc_status = "FAILED_PRECONDITION"


class OverQuota(InvalidRequest):
    """The job exceeds a limit of its namespace, or too many jobs of the namespace wait."""

    code = "over_quota"
    grpc_status = "RESOURCE_EXHAUSTED"


class IdempotencyConflict(InvalidRequest):
    """The idempotency key was used before, with another body."""

    code = "idempotency_conflict"
    http_status = 409
    grpc_status = "ALREADY_EXISTS"


class NotSignedIn(PlatformError):
    """The request has no token, or one that is not valid, expired or revoked."""

    code = "not_signed_in"
    http_status = 401
    grpc_status = "UNAUTHENTICATED"


class Forbidden(PlatformError):
    """The roles or the token of the one who asks do not allow this. ``details`` says what it takes."""

    code = "forbidden"
    http_status = 403
    grpc_status = "PERMISSION_DENIED"


class NotFound(PlatformError):
    """There is no job, host, GPU or checkpoint of this name."""

    code = "not_found"
    http_status = 404
    grpc_status = "NOT_FOUND"


class EventsGone(PlatformError):
    """Events after the number that a reader names were removed, because they are old. ``details["kept_after"]``: the
    reader can begin after this number."""

    code = "events_gone"
    http_status = 410
    grpc_status = "OUT_OF_RANGE"


class AnswerTooLarge(PlatformError):
    """The answer is larger than one message of gRPC may be. Ask for less at once, or over REST."""

    code = "answer_too_large"
    http_status = 413
    grpc_status = "RESOURCE_EXHAUSTED"


class IllegalTransition(PlatformError):
    """The current state does not allow this change. ``details`` names the states that it allows."""

    code = "illegal_transition"
    http_status = 409
    grpc_status = "FAILED_PRECONDITION"

    def __init__(
        self, *, subject: str, current: str, wanted: str, allowed: Sequence[str], message: str | None = None
    ) -> None:
        then = f"from there it can become {', '.join(allowed)}" if allowed else "that is final"
        super().__init__(
            message or f"{subject} is {current} and cannot become {wanted}; {then}",
            subject=subject,
            current=current,
            wanted=wanted,
            allowed=list(allowed),
        )


class InUse(PlatformError):
    """Jobs run there, and the operator did not say that they may be stopped."""

    code = "in_use"
    http_status = 409
    grpc_status = "FAILED_PRECONDITION"


class PortClosed(PlatformError):
    """No program of the job listens at this port."""

    code = "port_closed"
    http_status = 409
    grpc_status = "FAILED_PRECONDITION"


class ReservationConflict(PlatformError):
    """A GPU of the placement was taken or went out of service in the meantime: place the job again."""

    code = "reservation_conflict"
    retryable = True
    http_status = 409
    grpc_status = "ABORTED"


class AsksOtherwise(ReservationConflict):
    """The job does not wait for its place in this way any more. It asks in another way soon, or has gone."""

    code = "asks_otherwise"


class StaleEpoch(ReservationConflict):
    """A leader that was replaced tried to act. Nothing was written."""

    code = "stale_epoch"


class StaleReport(PlatformError):
    """The report is older than one that this host sent since. Nothing was written."""

    code = "stale_report"
    http_status = 409
    grpc_status = "ABORTED"


class FullReportNeeded(PlatformError):
    """The service does not know the facts that a heartbeat names. The host sends a full report."""

    code = "full_report_needed"
    http_status = 409
    grpc_status = "FAILED_PRECONDITION"


class WorkflowIsOlder(PlatformError):
    """The workflow knows less of its job than the database, because Temporal's database was restored to an older point.

    Nothing was written. A new workflow takes over the job from what the database knows.
    """

    code = "workflow_is_older"
    http_status = 409
    grpc_status = "ABORTED"


class HostUnavailable(PlatformError):
    """A host does not answer."""

    code = "host_unavailable"
    retryable = True
    http_status = 503
    grpc_status = "UNAVAILABLE"


class PreflightFailed(PlatformError):
    """A host refused to start a rank. ``details["kind"]`` is ``"user"`` (workdir, command) or ``"hardware"`` (a
    GPU)."""

    code = "preflight_failed"
    grpc_status = "FAILED_PRECONDITION"


class NoResult(PlatformError):
    """The job that ran a function of an ``Executor`` ended, and there is no result: it was killed, or its result cannot
    be read."""

    code = "no_result"
    grpc_status = "DATA_LOSS"


class NotSent(PlatformError):
    """A notification did not reach its target. The message shows no part of the target's address."""

    code = "not_sent"
    retryable = True
    http_status = 503
    grpc_status = "UNAVAILABLE"


class PluginFailed(PlatformError):
    """A filter or score of another package raised, or gave no valid answer.

    ``details`` are the fields of a :class:`PluginFault`. The scheduler goes on without the plugin: see
    ``Policy.without``.
    """

    code = "plugin_failed"

    @property
    def fault(self) -> PluginFault:
        """The failure as data: which plugin, and what it raised."""
        # Imported only now: the command line imports the errors, and does without pydantic where it can.
        from gpu_platform.domain.plugin import PluginFault

        return PluginFault.model_validate(self.details)


class CannotOpen(PlatformError):
    """Sealed data cannot be read: the key ring lacks its key, or somebody changed it or put it in another place."""

    code = "cannot_open"


class Unavailable(PlatformError):
    """Temporal or the database does not answer. The same request can succeed later."""

    code = "unavailable"
    retryable = True
    http_status = 503
    grpc_status = "UNAVAILABLE"

    @property
    def retry_after_s(self) -> float:
        """How long to wait at least before the next try, in seconds."""
        return float(self.details.get("retry_after_s", 0.0))


class TooManyRequests(Unavailable):
    """The caller asks more often than it may. Nothing was done. ``details["retry_after_s"]``: when it may again."""

    code = "too_many_requests"
    http_status = 429
    grpc_status = "RESOURCE_EXHAUSTED"


class StorageFull(Unavailable):
    """The disk of the database is full. Nothing was stored. The same request succeeds when there is room."""

    code = "storage_full"
    http_status = 507
    grpc_status = "RESOURCE_EXHAUSTED"


class CannotStart(PlatformError):
    """A process of the platform cannot run here, e.g. because its port is in use."""

    code = "cannot_start"

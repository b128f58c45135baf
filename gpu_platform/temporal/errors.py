"""Errors of the platform as failures that Temporal understands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import NotFound, PlatformError

NOT_OURS = "NotOurs"
WORKFLOW_IS_OLDER = "WorkflowIsOlder"
HOST_REMOVED = "HostRemoved"


def final(message: str, type: str, *details: Any) -> ApplicationError:
    """An error that is an answer: its workflow knows what to do, and trying again cannot help. Nobody logs a traceback
    of it."""
    benign = ApplicationErrorCategory.BENIGN
    return ApplicationError(message, *details, type=type, non_retryable=True, category=benign)


def not_yet(message: str, type: str, after: timedelta | None = None) -> ApplicationError:
    """An error that was said already where it arose, or is no error: the step is tried again, ``after`` so long or as
    its workflow wants it."""
    benign = ApplicationErrorCategory.BENIGN
    return ApplicationError(message, type=type, next_retry_delay=after, category=benign)


def job_not_ours(error: PlatformError) -> ApplicationError:
    """The error for a job whose row is gone or that ended without this workflow."""
    return final(error.message, NOT_OURS)


def workflow_is_older(key: AttemptKey) -> ApplicationError:
    """The error for a workflow that Temporal's database restored at an older point. It takes over again from its
    job's row."""
    return final(f"attempt {key} has gone on", WORKFLOW_IS_OLDER)


def repair_failed(message: str) -> ApplicationError:
    """The error for a step of a repair that did not help: the next kind of repair is tried."""
    return final(message, "RepairFailed")


@contextmanager
def host_may_be_removed() -> Iterator[None]:
    """Wraps a step of a repair. If an operator removed the host with its GPUs, the step fails with ``HOST_REMOVED``."""
    try:
        yield
    except NotFound as error:
        raise final(error.message, HOST_REMOVED) from error

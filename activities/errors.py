"""Errors of the platform as failures that Temporal understands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from temporalio.exceptions import ApplicationError

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import NotFound, PlatformError

NOT_OURS = "NotOurs"
WORKFLOW_IS_OLDER = "WorkflowIsOlder"
HOST_REMOVED = "HostRemoved"


def job_not_ours(error: PlatformError) -> ApplicationError:
    """The error for a job whose row is gone or that ended without this workflow: trying again cannot help."""
    return ApplicationError(error.message, type=NOT_OURS, non_retryable=True)


def workflow_is_older(key: AttemptKey) -> ApplicationError:
    """The error for a workflow that Temporal's database restored at an older point. It takes over again from its
    job's row."""
    return ApplicationError(f"attempt {key} has gone on", type=WORKFLOW_IS_OLDER, non_retryable=True)


def repair_failed(message: str) -> ApplicationError:
    """The error for a step of a repair that did not help: the next kind of repair is tried."""
    return ApplicationError(message, type="RepairFailed", non_retryable=True)


@contextmanager
def host_may_be_removed() -> Iterator[None]:
    """Wraps a step of a repair. If an operator removed the host with its GPUs, the step fails with ``HOST_REMOVED``."""
    try:
        yield
    except NotFound as error:
        raise ApplicationError(error.message, type=HOST_REMOVED, non_retryable=True) from error

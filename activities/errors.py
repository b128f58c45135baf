"""Errors of the platform as failures that Temporal understands."""

from __future__ import annotations

from temporalio.exceptions import ApplicationError

from gpu_platform.domain.attempt import AttemptKey
from gpu_platform.domain.errors import PlatformError

NOT_OURS = "NotOurs"
WORKFLOW_IS_OLDER = "WorkflowIsOlder"


def not_ours(error: PlatformError) -> ApplicationError:
    """The job's row is gone, or ended without this workflow: trying again cannot help."""
    return ApplicationError(error.message, type=NOT_OURS, non_retryable=True)


def workflow_is_older(key: AttemptKey) -> ApplicationError:
    """Temporal's database was restored to an older point. The workflow begins again from its job's row."""
    return ApplicationError(f"attempt {key} has gone on", type=WORKFLOW_IS_OLDER, non_retryable=True)

"""Errors of the platform as failures that Temporal understands."""

from __future__ import annotations

from temporalio.exceptions import ApplicationError

from gpu_platform.domain.errors import PlatformError, WorkflowIsOlder

NOT_OURS = "NotOurs"
WORKFLOW_IS_OLDER = "WorkflowIsOlder"


def not_ours(error: PlatformError) -> ApplicationError:
    """The job's row is gone, or ended without this workflow: trying again cannot help."""
    return ApplicationError(error.message, type=NOT_OURS, non_retryable=True)


def workflow_is_older(error: WorkflowIsOlder) -> ApplicationError:
    """The workflow begins again from the row."""
    return ApplicationError(error.message, type=WORKFLOW_IS_OLDER, non_retryable=True)

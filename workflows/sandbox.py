"""Runs workflow code in Temporal's sandbox in tests, and without it in production.

The sandbox imports the workflow modules again for every workflow, to keep them from clocks, randomness and I/O. That
costs more than the rest of a short job's workflow. So it is used where it can find something: in every test that runs a
workflow, and in the replay of recorded histories.
"""

from __future__ import annotations

from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

PASSED_THROUGH = ("activities", "annotated_types", "gpu_platform", "pydantic", "pydantic_core", "typing_extensions")
"""Modules that workflows use and that keep no state of their own."""


def workflow_runner(*, checked: bool = False) -> WorkflowRunner:
    """The runner for workflows. ``checked``: inside Temporal's sandbox."""
    if not checked:
        return UnsandboxedWorkflowRunner()
    return SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH))

"""The sandbox that workflow code runs in.

It keeps workflows from clocks, randomness and I/O. Modules without state of their own that they use
are passed through, so that they are not imported again for every workflow.
"""

from __future__ import annotations

from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions


def workflow_runner() -> SandboxedWorkflowRunner:
    return SandboxedWorkflowRunner(
        restrictions=SandboxRestrictions.default.with_passthrough_modules(
            "activities", "annotated_types", "gpu_platform", "pydantic", "pydantic_core", "typing_extensions"
        )
    )

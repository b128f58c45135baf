"""Checks before a rank may start. They find the user's mistakes before any rank of the gang runs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from gpu_platform.domain.errors import PreflightFailed
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.domain.jobs.blame import FailureCause, blame


def check_command(plan: HostPlan, command: Sequence[str], environ: dict[str, str]) -> None:
    """Raise :class:`PreflightFailed` (``kind="user"``) if ``execve`` would fail for sure."""
    if plan.workdir is not None and not os.path.isdir(plan.workdir):
        what = "is not a directory" if os.path.exists(plan.workdir) else "does not exist"
        raise PreflightFailed(
            f"the working directory {plan.workdir!r} {what} on {plan.host}: name one that every host has",
            kind=blame(FailureCause.REQUEST),
        )
    program = command[0]
    if "/" in program:
        path = os.path.join(plan.workdir or "/", program)
        if not os.path.exists(path):
            raise PreflightFailed(
                f"the program {program!r} does not exist on {plan.host}", kind=blame(FailureCause.REQUEST)
            )
        if os.path.isdir(path) or not os.access(path, os.X_OK):
            raise PreflightFailed(
                f"the program {program!r} is not executable on {plan.host}", kind=blame(FailureCause.REQUEST)
            )
    elif shutil.which(program, path=environ.get("PATH", os.defpath)) is None:
        raise PreflightFailed(
            f"the program {program!r} was not found on {plan.host} (PATH is {environ.get('PATH', os.defpath)!r})",
            kind=blame(FailureCause.REQUEST),
        )

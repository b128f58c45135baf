"""Checks before a rank may start. They find the user's mistakes before any rank of the gang runs."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Sequence

from gpu_platform.domain.errors import PreflightFailed
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.domain.jobs.blame import FailureCause, blame


def check_command(
    plan: HostPlan, command: Sequence[str], environ: dict[str, str], *, jailed: bool = False, hint: str = ""
) -> None:
    """Raise :class:`PreflightFailed` (``kind="user"``) if ``execve`` would fail for sure.

    ``jailed``: the rank runs as another account. Then this says nothing about places that only some accounts see:
    the job must not learn what is there. The rank itself says why it cannot start. ``hint``: what to do if the program
    is not found.
    """
    if plan.workdir is not None and not (jailed and is_closed(plan.workdir)) and not os.path.isdir(plan.workdir):
        what = "is not a directory" if os.path.exists(plan.workdir) else "does not exist"
        raise PreflightFailed(
            f"the working directory {plan.workdir!r} {what} on {plan.host}: name one that every host has",
            kind=blame(FailureCause.REQUEST),
        )
    program = command[0]
    if "/" in program:
        if plan.environment is not None and plan.environment.upload is not None and not os.path.isabs(program):
            return  # it is in the uploaded code, which is not here yet
        path = os.path.join(plan.workdir or "/", program)
        if not (jailed and is_closed(path)):
            _check_program(plan, program, path)
        return
    searched = environ.get("PATH", os.defpath)
    places = searched.split(os.pathsep)
    closed = [place for place in places if jailed and is_closed(os.path.join(place, program))]
    seen = os.pathsep.join(place for place in places if place not in closed)
    # A closed place of the job's own may be its user's home. Those of the node worker are for the node worker.
    may_be_there = not set(closed) <= set(os.environ.get("PATH", "").split(os.pathsep))
    if shutil.which(program, path=seen) is None and not may_be_there:
        raise PreflightFailed(
            f"the program {program!r} was not found on {plan.host} (PATH is {searched!r}){hint and f': {hint}'}",
            kind=blame(FailureCause.REQUEST),
        )


def _check_program(plan: HostPlan, program: str, path: str) -> None:
    if not os.path.exists(path):
        raise PreflightFailed(
            f"the program {program!r} does not exist on {plan.host}", kind=blame(FailureCause.REQUEST)
        )
    if os.path.isdir(path) or not os.access(path, os.X_OK):
        raise PreflightFailed(
            f"the program {program!r} is not executable on {plan.host}", kind=blame(FailureCause.REQUEST)
        )


def is_closed(path: str) -> bool:
    """True if a directory above it is closed to other accounts, also above what a link leads to."""
    try:
        found = os.path.realpath(path)
    except OSError:  # a part of it changes just now; who opens it for the account will say what is wrong
        return True
    return any(_is_below_closed(one) for one in {os.path.normpath(path), found})


def _is_below_closed(path: str) -> bool:
    while path not in ("/", ""):
        path = os.path.dirname(path)
        try:
            mode = os.stat(path).st_mode
        except OSError:  # what is missing, or is no directory, has closed ones above it or has not
            continue
        if not mode & stat.S_IXOTH:
            return True
    return False

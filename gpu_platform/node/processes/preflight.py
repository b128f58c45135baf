"""Checks before a rank may start. They find the user's mistakes before any rank of the gang runs.

A helper that can be killed runs them (``step_process.look``), because the file system of a path may never answer.
Standard library only.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Sequence
from typing import Any, NamedTuple

from gpu_platform.domain.errors import PreflightFailed
from gpu_platform.domain.jobs.blame import FailureCause, blame

HOME_OF_ROOT = "/root"


class Command(NamedTuple):
    """A command that a rank will execute. It can be sent as JSON."""

    command: list[str]
    path: str
    """``PATH`` as it will be."""
    hint: str = ""
    """What to do if the program is not found."""


def check_paths(
    host: str,
    workdir: str | None,
    commands: Sequence[Sequence[Any]],
    *,
    jailed: bool,
    has_upload: bool,
    venv: str | None,
    own_path: str,
) -> None:
    """Raise :class:`PreflightFailed` (``kind="user"``) if ``execve`` would fail for sure.

    ``jailed``: the rank runs as another account. Then this says nothing about places that only some accounts see:
    the job must not learn what is there. The rank itself says why it cannot start. ``own_path``: ``PATH`` of the node
    worker.
    """
    if venv is not None:
        _check_venv(host, venv, jailed=jailed)
    if workdir is not None and not (jailed and is_closed(workdir)) and not os.path.isdir(workdir):
        what = "is not a directory" if os.path.exists(workdir) else "does not exist"
        raise _refused(f"the working directory {workdir!r} {what} on {host}: name one that every host has")
    for one in commands:
        _check_command(host, workdir, Command(*one), jailed=jailed, has_upload=has_upload, own_path=own_path)


def real_paths(paths: Sequence[str]) -> list[str]:
    """The paths without links. Raises ``OSError`` for one that changes just now."""
    return [os.path.realpath(path) for path in paths]


def first_file(paths: Sequence[str]) -> str | None:
    """The first of the paths that is a regular file. None: none is."""
    return next((path for path in paths if os.path.isfile(path)), None)


def which(program: str, path: str) -> str | None:
    """As ``shutil.which``."""
    return shutil.which(program, path=path)


def _check_command(
    host: str, workdir: str | None, wanted: Command, *, jailed: bool, has_upload: bool, own_path: str
) -> None:
    program, searched, hint = wanted.command[0], wanted.path, wanted.hint
    if "/" in program:
        if has_upload and not os.path.isabs(program):
            return  # it is in the uploaded code, which is not here yet
        path = os.path.join(workdir or "/", program)
        if not (jailed and is_closed(path)):
            _check_program(host, program, path)
        return
    places = searched.split(os.pathsep)
    closed = [place for place in places if jailed and is_closed(os.path.join(place, program))]
    seen = os.pathsep.join(place for place in places if place not in closed)
    # A closed place of the job's own may be its user's home. Those of the node worker are for the node worker.
    may_be_there = not set(closed) <= set(own_path.split(os.pathsep))
    if shutil.which(program, path=seen) is None and not may_be_there:
        raise _refused(f"the program {program!r} was not found on {host} (PATH is {searched!r}){hint and f': {hint}'}")


def _check_program(host: str, program: str, path: str) -> None:
    if not os.path.exists(path):
        raise _refused(f"the program {program!r} does not exist on {host}")
    if not os.path.isfile(path) or not os.access(path, os.X_OK):
        raise _refused(f"the program {program!r} is not executable on {host}")


def _check_venv(host: str, venv: str, *, jailed: bool) -> None:
    if jailed and is_closed(venv):
        return
    why = ""
    interpreter = os.path.realpath(os.path.join(venv, "bin", "python"))
    if jailed and f"{interpreter}/".startswith(f"{HOME_OF_ROOT}/"):
        why = f"its interpreter {interpreter} is in root's home, which no job sees"
    elif not os.path.isdir(venv):
        why = "there is no such directory"
    elif not os.path.isfile(os.path.join(venv, "pyvenv.cfg")):
        why = "it has no pyvenv.cfg, so it is no virtual environment"
    elif not os.path.isfile(interpreter) or not os.access(interpreter, os.X_OK):
        why = "its bin/python cannot be executed: the interpreter that it was made with may be missing there"
    if why:
        raise _refused(
            f"the virtual environment {venv} cannot be used on {host}: {why}. Make it on a file system that all "
            "hosts share, or on each of them"
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


def _refused(message: str) -> PreflightFailed:
    return PreflightFailed(message, kind=blame(FailureCause.REQUEST))

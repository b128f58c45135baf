"""What commands on this machine need and a client does not have: the distribution ``gpu-platform-cluster``."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import NoReturn

from gpu_platform.domain.errors import CannotStart


def become_program(module: str, *arguments: str) -> NoReturn:
    """Run a program of the platform in place of this command. Raises as :func:`program` does."""
    command = program(module, *arguments)
    os.execv(command[0], command)


def program(module: str, *arguments: str) -> list[str]:
    """The command that runs a program of the platform. Raises :class:`CannotStart` if it is not installed here.

    The command line never imports such a program, because programs import the command line.
    """
    try:
        found = find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise needs_cluster(module)
    return [sys.executable, "-P", "-m", module, *arguments]


def needs_cluster(module: str) -> CannotStart:
    """The error for a module that is missing, with what installs it."""
    return CannotStart(
        f"this command needs the module {module}, which is not installed here: pip install gpu-platform-cluster"
    )

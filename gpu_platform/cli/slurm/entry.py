"""Slurm's commands: what the files run that ``gpu-platform compat slurm`` installs, and ``sbatch`` inside scripts.

Errors are one line on stderr that begins with the command's name, and the exit code 1, as Slurm's.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

COMMANDS = ("sbatch", "srun", "squeue", "scancel", "sinfo", "scontrol", "sacct")
VERSION = "slurm 24.05.0 (gpu-platform)"
"""What ``--version`` prints: programs read the number, to know which options there are."""


def main(name: str) -> None:
    """Run the command of this name with the words of the command line, and end with its exit code."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `squeue | head` ends quietly
    sys.exit(run(name, sys.argv[1:]))


def run(name: str, words: Sequence[str]) -> int:
    """Run a command. Returns its exit code."""
    try:
        if name == "srun" and "GPU_PLATFORM_STEP_PORT" in os.environ:
            from gpu_platform.steps import srun

            return srun.main(words, os.environ)
        return int(import_module(f"gpu_platform.cli.slurm.{name}").run(list(words)))
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if (message := _expected(error)) is None:
            raise
        from gpu_platform.cli import session  # imported here, because a step in a script must not wait for it

        for line in message.splitlines():
            session.say(f"{name}: error: {line}")
        return 1


def _expected(error: Exception) -> str | None:
    """The message of an error that a user can cause. None: it is a fault of the program."""
    from gpu_platform.domain.errors import PlatformError
    from gpu_platform.domain.texts import printable

    if isinstance(error, PlatformError):
        return printable(error.message)
    if isinstance(error, ValueError | OSError):
        return printable(str(error))
    # An error of typer; it was not imported, if none came.
    shown = getattr(error, "format_message", None)
    return None if shown is None else printable(shown())

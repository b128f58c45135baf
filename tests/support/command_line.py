"""The command line as a user runs it: a process, arguments, stdout, stderr, an exit code.

The process is forked from one that has imported the command line already.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

from tests.support.forking import SERVER
from workers.local.forked.client import COMMAND, Process

NOBODY = "http://127.0.0.1:1"
"""An address where no service is."""


class Ran:
    """What a command did."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr


async def run(*arguments: str, url: str = NOBODY, cwd: Path | None = None) -> Ran:
    """Run a command to its end."""
    return await asyncio.to_thread(run_to_end, *arguments, url=url, cwd=cwd)


def run_to_end(*arguments: str, url: str = NOBODY, cwd: Path | None = None) -> Ran:
    """As :func:`run`, for tests without asyncio."""
    return Ran(SERVER.run([COMMAND, *arguments], _environment(url), cwd=cwd, timeout_s=60))


async def start(*arguments: str, url: str) -> Process:
    """Start a command whose outputs can be read while it runs."""
    return await SERVER.piped([COMMAND, *arguments], _environment(url))


def _environment(url: str) -> dict[str, str]:
    return {**os.environ, "GPU_PLATFORM_API_URL": url, "GPU_PLATFORM_USER": "ada", "COLUMNS": "200", "TERM": "dumb"}

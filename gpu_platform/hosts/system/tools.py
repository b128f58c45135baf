"""NVIDIA's command-line programs, where NVML has no function for it."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence

from gpu_platform.domain.errors import HostUnavailable

_TIMEOUT_S = 20.0


def run_tool(command: Sequence[str], *, environ: Mapping[str, str] | None = None, say: str = "") -> str:
    """Run a command and return its output.

    Raises :class:`HostUnavailable`, with the command's own message, if it fails, hangs or is not installed.
    """
    try:
        with (
            tempfile.TemporaryFile() as output
        ):  # not a pipe: a daemon that the command leaves behind may keep a pipe open
            done = subprocess.run(
                list(command),
                env=environ,
                input=say.encode(),
                stdout=output,
                stderr=output,
                timeout=_TIMEOUT_S,
                check=False,
            )
            output.seek(0)
            words = output.read().decode(errors="replace").strip()
    except FileNotFoundError:
        raise HostUnavailable(f"{command[0]} is not installed on this host") from None
    except subprocess.TimeoutExpired:
        raise HostUnavailable(f"{' '.join(command)} did not end within {_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        raise HostUnavailable(f"{' '.join(command)} ended with {done.returncode}: {words[-300:]}")
    return words

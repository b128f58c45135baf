"""NVIDIA's command-line programs, where NVML has no function for it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from gpu_platform.domain.errors import HostUnavailable

_TIMEOUT_S = 20.0


def run_tool(
    command: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    say: str = "",
    uid: int | None = None,
    gid: int | None = None,
) -> str:
    """Its output. Raises :class:`HostUnavailable` with its own words when it fails, hangs or is not installed."""
    try:
        done = subprocess.run(
            list(command),
            env=environ,
            input=say,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            user=uid,
            group=gid,
            extra_groups=None if gid is None else [],
        )
    except FileNotFoundError:
        raise HostUnavailable(f"{command[0]} is not installed on this host") from None
    except subprocess.TimeoutExpired:
        raise HostUnavailable(f"{' '.join(command)} did not end within {_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        words = (done.stdout + done.stderr).strip()[-300:]
        raise HostUnavailable(f"{' '.join(command)} ended with {done.returncode}: {words}")
    return done.stdout

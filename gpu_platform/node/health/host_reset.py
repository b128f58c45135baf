"""Resets all GPUs of a host together, or reboots the host: tried if a GPU alone could not be healed."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import structlog

from gpu_platform.domain.errors import HostUnavailable, PreflightFailed
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.node.health import boot
from gpu_platform.node.nvml.library import NvmlLibrary
from gpu_platform.node.system.tools import run

log = structlog.get_logger(__name__)

_REBOOT_TIMEOUT_S = 60.0


def reset_all_gpus(nvml: NvmlLibrary, *, timeout_s: float) -> None:
    """Reset every GPU, with the NVLinks and NVSwitches between them; see :meth:`NvmlLibrary.reset_all_gpus`.

    No process may run on any of them. Raises :class:`PreflightFailed`.
    """
    problem = nvml.reset_all_gpus(timeout_s)
    if problem is not None:
        raise PreflightFailed(f"the reset of all GPUs together failed: {problem}", kind=blame(FailureCause.GPU_UNFIT))


def reboot(command: str | None) -> None:
    """Run the host's own reboot command. Raises :class:`HostUnavailable` if there is none or it fails."""
    if not command:
        raise HostUnavailable("this host has no node.reboot_command", no_command=True)
    try:
        done = run(shlex.split(command), timeout_s=_REBOOT_TIMEOUT_S)
    except OSError as error:
        raise HostUnavailable(f"{command!r} failed: {error}") from error
    if done.code != 0:
        raise HostUnavailable(f"{command!r} ended with {done.code}: {(done.output + done.said).strip()[-300:]}")


def reboot_simulated(home: Path, pids: Iterable[int]) -> None:
    """Kill everything that runs on the simulated host, and give it a new boot id."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    boot.reboot_simulated(home)
    log.warning("host.rebooted", simulated=True)

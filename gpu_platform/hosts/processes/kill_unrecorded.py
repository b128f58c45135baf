"""Kills the processes of an attempt while the disk with its records does not answer.

Which processes these are is in the records (``stopping.py``). Without them, the kernel knows: those in the cgroup of
the attempt, whose name follows from the attempt's, and those whose environment names it, with their descendants.
"""

from __future__ import annotations

import signal
from pathlib import Path

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.hosts.isolation.cgroups.cgroup import Cgroup, find_hierarchies
from gpu_platform.hosts.isolation.jail import cgroup_name
from gpu_platform.hosts.processes.environment import marker
from gpu_platform.hosts.system.process_tree import all_processes, descendants, has_environ, send_signal


def kill_unrecorded(home: Path, host: str, key: AttemptKey) -> int:
    """Send SIGKILL to what the kernel knows of the attempt. Returns to how many processes. It reads no disk."""
    cgroup = Cgroup(find_hierarchies(), cgroup_name(str(home), host, key.job_id, key.attempt))
    killed = cgroup.processes()
    if killed:
        cgroup.kill()
    entries = [f"{name}={value}".encode() for name, value in marker(home, key).items()]
    table = all_processes()
    found = descendants((), table, also=lambda pid: has_environ(pid, entries))
    for process in sorted(found, key=lambda process: process.pid):
        send_signal(process, signal.SIGKILL)
    return len(killed | {process.pid for process in found})

"""What attacks on the jail are made of: character devices that play GPUs, ranks in Python, probes inside a cgroup."""

from __future__ import annotations

import os
import signal
import stat
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.node.isolation.cgroups.cgroup import Cgroup
from tests.support.hosts_rig import HostRig

STAND_INS = [(10, 229), (10, 237), (10, 234), (10, 183), (10, 235)]
"""/dev/fuse, loop-control, btrfs-control, hwrng, autofs: what this kernel lets root open plays a GPU."""

PYTHON = "/usr/bin/python3"
"""An interpreter that every account of the machine may run. The tests' own may be in root's home."""

PRELUDE = """
import ctypes, errno, os, signal, socket, stat, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)

def attempt(what, function, *args):
    try:
        answer = function(*args)
    except OSError as error:
        print(what, errno.errorcode[error.errno], flush=True)
    else:
        print(what, "WORKS", flush=True)
        return answer

def call(name, *args):
    if getattr(libc, name)(*args) < 0:
        raise OSError(ctypes.get_errno(), name)

def node(path, device):
    os.mknod(path, stat.S_IFCHR | 0o666, device)

def open_it(path):
    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
"""
"""What the script of an attack may use."""


def attack(host: HostRig, script: str, gpu: int | None = 0, python: str = PYTHON) -> HostPlan:
    """A plan for a Python rank that was given one GPU, or none."""
    plan = host.plan(python, "-c", PRELUDE + textwrap.dedent(script))
    uuids = [] if gpu is None else [host.inventory.gpus[gpu].uuid]
    return plan.model_copy(
        update={
            "gpu_uuids": uuids,
            "ranks": [rank.model_copy(update={"gpu_uuids": uuids}) for rank in plan.ranks],
        }
    )


async def run(host: HostRig, script: str, gpu: int | None = 0, python: str = PYTHON) -> list[str]:
    plan = attack(host, script, gpu, python)
    host.launch(plan)
    exits = await host.watch(plan)
    lines = host.log(plan).splitlines()
    assert exits.first_failure is None, lines
    return lines


def inside(cgroup: Cgroup, check: Callable[[], object]) -> bool:
    """Try ``check`` in a process of ``cgroup``. False: it raised ``PermissionError``.

    The process is not made by ``fork(3)``. Another thread of the tests may hold a lock at that moment, and the process
    would wait for it for ever: then it is tried again.
    """
    for _ in range(5):
        pid = cgroup.fork()
        if pid == 0:
            try:
                cgroup.enter()
                check()
                os._exit(0)
            except PermissionError:
                os._exit(1)
            finally:
                os._exit(2)
        deadline = time.monotonic() + 10
        while (done := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
            time.sleep(0.002)
        if done[0] != 0:
            code = os.waitstatus_to_exitcode(done[1])
            assert code in (0, 1), code
            return code == 0
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    raise AssertionError("the process in the cgroup does not end")


def can_open(cgroup: Cgroup, path: Path) -> bool:
    return inside(cgroup, lambda: os.open(path, os.O_RDONLY | os.O_NONBLOCK))


def can_make_node(cgroup: Cgroup, path: Path, device: int) -> bool:
    return inside(cgroup, lambda: os.mknod(path, stat.S_IFCHR | 0o666, device))

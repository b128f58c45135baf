"""The variables that scripts for Slurm read: ``SLURM_JOB_ID``, ``SLURM_PROCID`` and their like.

Ids are numbers, made from the platform's own. Source: sbatch(1) and srun(1) of Slurm 24.05, "output environment
variables".
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from gpu_platform.slurm.hostlists import compress
from gpu_platform.slurm.ids import number_of

FILE, STDOUT, STDERR, STDIN = "GPU_PLATFORM_SCRIPT_FILE", "SLURM_JOB_STDOUT", "SLURM_JOB_STDERR", "SLURM_JOB_STDIN"
"""For ``scontrol show job`` and ``squeue -o %o`` in the script: the service does not know these paths."""
STEP_KEY = "GPU_PLATFORM_STEP_KEY"
SCRIPT = "GPU_PLATFORM_SCRIPT"
OPTIONS = "GPU_PLATFORM_SCRIPT_OPTIONS"
PYTHON = "GPU_PLATFORM_PYTHON"
LIBRARY = "GPU_PLATFORM_LIBRARY"
NOT_OF_SCRIPTS = (SCRIPT, OPTIONS)
"""They may be large, and no program reads them."""
LAUNCH = (
    "/bin/sh",
    "-c",
    'if [ -z "$GPU_PLATFORM_LIBRARY" ]; then echo "gpu-platform: the release of this host runs no scripts: update it"'
    ' >&2; exit 126; fi; if [ ! -x "$GPU_PLATFORM_PYTHON" ]; then GPU_PLATFORM_PYTHON=python3; fi;'
    ' exec "$GPU_PLATFORM_PYTHON" -I "$GPU_PLATFORM_LIBRARY/gpu_platform/steps/runner.py" "$@"',
    "slurm_script",
)
"""Starts the runner with the node worker's interpreter, or with the host's where the job's account may not run it. The
arguments of the script follow."""
_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK")


def script_arguments(command: Sequence[str]) -> list[str] | None:
    """The arguments of the script that this command runs. None: it runs none, whatever it looks like."""
    return list(command[len(LAUNCH) :]) if tuple(command[: len(LAUNCH)]) == LAUNCH else None


@dataclass(frozen=True)
class Options:
    """What the script's options say that only its runner needs. The command line writes it as JSON."""

    slurm: bool = False
    """It has #SBATCH lines, so it runs once, and finds Slurm's variables."""
    name: str = "job"
    file: str | None = None
    """The path of the script where it was submitted."""
    output: str | None = None
    error: str | None = None
    input: str | None = None
    open_mode: str | None = None
    ntasks: int | None = None
    ntasks_per_node: int | None = None
    cpus_per_task: int | None = None
    gpus_per_task: int | None = None
    array: dict[str, int] | None = None
    """count, min, max and step of its indices."""
    time_limit_s: int | None = None
    passes_on: str | None = None
    """The signal of the warning, if the script alone gets it: the platform sends it to the runner."""
    environ: dict[str, str] = field(default_factory=dict)
    """More variables, e.g. SLURM_SUBMIT_DIR."""

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Options:
        """The options from JSON. What a newer release says besides is left out."""
        return cls(**{name: value for name, value in values.items() if name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class Layout:
    """Which tasks run on which hosts."""

    hosts: tuple[str, ...]
    tasks: tuple[int, ...]
    """How many tasks each host has."""

    @property
    def ntasks(self) -> int:
        """All tasks."""
        return sum(self.tasks)

    def first(self, node: int) -> int:
        """The number of the first task of a host."""
        return sum(self.tasks[:node])


def spread(hosts: Sequence[str], ntasks: int | None, per_node: int | None) -> Layout:
    """Give the hosts their tasks in blocks, the first hosts one more where it does not come out even.

    Without ``ntasks``, each host has ``per_node`` tasks, or one.
    """
    if ntasks is None:
        return Layout(tuple(hosts), (per_node or 1,) * len(hosts))
    used = hosts[: max(1, min(len(hosts), ntasks if per_node is None else -(-ntasks // per_node)))]
    if per_node is not None:
        full = [min(per_node, max(0, ntasks - node * per_node)) for node in range(len(used))]
        full[-1] += ntasks - sum(full)
        return Layout(tuple(used), tuple(full))
    each, more = divmod(ntasks, len(used))
    return Layout(tuple(used), tuple(each + (node < more) for node in range(len(used))))


def repeated(counts: Sequence[int]) -> str:
    """Numbers as Slurm writes them: ``4(x2),1``."""
    groups = [(value, len(list(group))) for value, group in groupby(counts)]
    return ",".join(f"{value}(x{times})" if times > 1 else str(value) for value, times in groups)


def script_environ(base: Mapping[str, str], options: Options, layout: Layout, node: int) -> dict[str, str]:
    """The environment of the script on one host, and what the tasks there start from. ``base``: what the platform
    gives the rank."""
    environ = {name: value for name, value in base.items() if name not in NOT_OF_SCRIPTS}
    if not options.slurm:
        return environ
    job, gpus = number_of(base.get("GPU_PLATFORM_JOB_ID", "")), gpus_of(base)
    hosts, attempt = layout.hosts, int(base.get("GPU_PLATFORM_ATTEMPT", "1") or 1)
    nodelist, cpus = compress(hosts), _cpus(base, options, layout.tasks[node] if node < len(layout.tasks) else 1)
    environ |= {
        "SLURM_JOB_ID": job,
        "SLURM_JOBID": job,
        "SLURM_JOB_NAME": options.name,
        # What squeue shows of jobs that name none.
        "SLURM_JOB_PARTITION": "gpu",
        "SLURM_JOB_QOS": "normal",
        "SLURM_JOB_NODELIST": nodelist,
        "SLURM_NODELIST": nodelist,
        "SLURM_JOB_NUM_NODES": str(len(hosts)),
        "SLURM_NNODES": str(len(hosts)),
        "SLURM_NTASKS": str(layout.ntasks),
        "SLURM_NPROCS": str(layout.ntasks),
        "SLURM_TASKS_PER_NODE": repeated(layout.tasks),
        "SLURM_CPUS_ON_NODE": str(cpus),
        "SLURM_JOB_CPUS_PER_NODE": repeated([cpus] * len(hosts)),
        "SLURM_NODEID": str(node),
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURMD_NODENAME": hosts[node] if node < len(hosts) else base.get("GPU_PLATFORM_HOST", ""),
        "SLURM_JOB_UID": str(os.getuid()),
        "SLURM_JOB_GID": str(os.getgid()),
        "SLURM_CLUSTER_NAME": base.get("GPU_PLATFORM_CLUSTER_NAME", ""),
        "SLURM_JOB_START_TIME": str(int(time.time())),
        "SLURM_TASK_PID": str(os.getpid()),
    }
    for name in ("USER", "LOGNAME"):  # hosts set them for accounts of their own only
        environ.setdefault(name, options.environ.get("SLURM_JOB_USER", ""))
    if gpus:
        environ |= {"SLURM_GPUS_ON_NODE": str(gpus), "SLURM_JOB_GPUS": ",".join(str(one) for one in range(gpus))}
    for name, value in (
        ("SLURM_NTASKS_PER_NODE", options.ntasks_per_node),
        ("SLURM_CPUS_PER_TASK", options.cpus_per_task),
        ("SLURM_GPUS_PER_TASK", options.gpus_per_task),
        (FILE, options.file),
    ):
        if value is not None:
            environ[name] = str(value)
    if options.time_limit_s is not None:
        environ["SLURM_JOB_END_TIME"] = str(int(time.time()) + options.time_limit_s)
    if attempt > 1:
        environ["SLURM_RESTART_COUNT"] = str(attempt - 1)
    if (array := base.get("GPU_PLATFORM_ARRAY_ID")) is not None:
        environ |= {
            "SLURM_ARRAY_JOB_ID": number_of(array),
            "SLURM_ARRAY_TASK_ID": base.get("GPU_PLATFORM_ARRAY_INDEX", "0"),
            "SLURM_ARRAY_TASK_COUNT": base.get("GPU_PLATFORM_ARRAY_COUNT", "1"),
        }
        for name, value in (options.array or {}).items():
            environ[f"SLURM_ARRAY_TASK_{name.upper()}"] = str(value)
    return environ | options.environ


def task_environ(
    base: Mapping[str, str], platform: Mapping[str, str], layout: Layout, node: int, local: int, step: dict[str, Any]
) -> dict[str, str]:
    """The environment of one task. ``base``: of the script on its host, with what the script exported; ``platform``:
    what the platform gave the rank. ``step``: its id, and GPUs and CPUs for each task."""
    number = layout.first(node) + local
    environ = dict(base)
    ranks = (number, local, layout.ntasks, layout.tasks[node], node)
    for name, value in zip(_RANKS, ranks, strict=True):
        # What the script itself has set stays.
        if environ.get(name) == platform.get(name):
            environ[name] = str(value)
    nodelist = compress(layout.hosts)
    environ |= {
        "SLURM_PROCID": str(number),
        "SLURM_LOCALID": str(local),
        "SLURM_NODEID": str(node),
        "SLURM_NTASKS": str(layout.ntasks),
        "SLURM_NPROCS": str(layout.ntasks),
        "SLURM_NNODES": str(len(layout.hosts)),
        "SLURM_TASKS_PER_NODE": repeated(layout.tasks),
        "SLURM_STEP_ID": str(step["id"]),
        "SLURM_STEPID": str(step["id"]),
        "SLURM_STEP_NUM_TASKS": str(layout.ntasks),
        "SLURM_STEP_NUM_NODES": str(len(layout.hosts)),
        "SLURM_STEP_TASKS_PER_NODE": repeated(layout.tasks),
        "SLURM_STEP_NODELIST": nodelist,
        "SLURMD_NODENAME": layout.hosts[node],
        "SLURM_GTIDS": ",".join(str(layout.first(node) + one) for one in range(layout.tasks[node])),
        "SLURM_LAUNCH_NODE_IPADDR": platform.get("MASTER_ADDR", ""),
    }
    if step.get("cpus_per_task") is not None:
        environ["SLURM_CPUS_PER_TASK"] = str(step["cpus_per_task"])
    gpus = platform.get("CUDA_VISIBLE_DEVICES", "")
    if gpus and environ.get("CUDA_VISIBLE_DEVICES") == gpus:  # else the script has chosen itself
        environ |= _devices(gpus.split(","), local, step)
    return environ


def _devices(gpus: list[str], local: int, step: Mapping[str, Any]) -> dict[str, str]:
    """What a task sees: the GPUs of its step, or those of them that are its own."""
    own: list[str] = gpus if step.get("gpus") is None else [gpus[number] for number in step["gpus"]]
    environ = {"SLURM_GPUS_ON_NODE": str(len(own))} if step.get("gpus") is not None else {}
    if each := step.get("gpus_per_task"):
        own = own[local * each : (local + 1) * each]
        environ["SLURM_GPUS_PER_TASK"] = str(each)
    text = ",".join(own)
    return environ | {"CUDA_VISIBLE_DEVICES": text, "NVIDIA_VISIBLE_DEVICES": text or "void"}


def gpus_of(environ: Mapping[str, str]) -> int:
    """How many GPUs, or shares of one, the rank has."""
    text = environ.get("GPU_PLATFORM_GPUS", "")
    return len(text.split(",")) if text else 0


def _cpus(base: Mapping[str, str], options: Options, tasks: int) -> int:
    if options.cpus_per_task is not None:
        return options.cpus_per_task * max(1, tasks)
    return len(os.sched_getaffinity(0))

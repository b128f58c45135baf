"""The environment of a rank: a few variables of the node worker, those of the job, and the platform's own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.attempt import HostPlan, Prepared, Program, RankSpec
from gpu_platform.node.processes.launchers import launcher_environ
from gpu_platform.node.system.ports import PORTS_OF_AN_ATTEMPT
from gpu_platform.steps.environ import LIBRARY, PYTHON, SCRIPT, STEP_KEY
from gpu_platform.tracing import trace_headers

_INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
"""A job gets only these of the node worker's environment, which may hold credentials."""

PACKAGE = Path(__file__).resolve().parents[2]
"""This package. Jails show it to scripts, wherever it is installed."""

ATTEMPT_ID = "GPU_PLATFORM_ATTEMPT_ID"
NODE_DIR = "GPU_PLATFORM_NODE_DIR"


def base_environ(program: Program) -> dict[str, str]:
    """The variables that a program gets from the node worker's environment, and those that the job sets."""
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {"PATH": os.defpath, **inherited, **program.env}


def rank_environ(
    plan: HostPlan, rank: RankSpec, prepared: Prepared, *, cluster: str, home: Path, checkpoint_dir: Path
) -> dict[str, str]:
    """The variables that torchrun, MPI launchers and NCCL read, and the platform's own.

    ``prepared`` is the answer of rank 0's host, ``cluster`` the cluster's name. GPUs are named by uuid, because their
    indices can change.
    """
    gpus = ",".join(rank.gpu_uuids)
    environ = base_environ(plan.program(rank)) | {
        "RANK": str(rank.rank),
        "LOCAL_RANK": str(rank.local_rank),
        "WORLD_SIZE": str(plan.world_size),
        "LOCAL_WORLD_SIZE": str(rank.local_size or len(plan.ranks)),
        "NODE_RANK": str(plan.node_rank),
        "MASTER_ADDR": prepared.address,
        "MASTER_PORT": str(prepared.rendezvous_port),
        "GPU_PLATFORM_PORTS": f"{prepared.rendezvous_port}-{prepared.rendezvous_port + PORTS_OF_AN_ATTEMPT - 1}",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": gpus,
        "NVIDIA_VISIBLE_DEVICES": gpus or "void",
        # Not GPU_PLATFORM_CLUSTER: settings would read it as their section `cluster`.
        "GPU_PLATFORM_CLUSTER_NAME": cluster,
        "GPU_PLATFORM_JOB_ID": plan.key.job_id,
        "GPU_PLATFORM_ATTEMPT": str(plan.key.attempt),
        "GPU_PLATFORM_HOST": plan.host,
        "GPU_PLATFORM_GPUS": gpus,
        "GPU_PLATFORM_CHECKPOINT_DIR": str(checkpoint_dir),
        # The names that OpenTelemetry's libraries read: a program that traces goes on with the trace of its job.
        **{name.upper(): value for name, value in trace_headers().items()},
    }
    if SCRIPT in environ:
        environ |= {PYTHON: sys.executable, LIBRARY: str(PACKAGE.parent), STEP_KEY: prepared.step_key or ""}
    environ |= launcher_environ(plan, rank, prepared)
    environ |= marker(home, plan.key)
    environ.pop("GPU_PLATFORM_GROUP", None)
    if rank.group is not None:
        environ["GPU_PLATFORM_GROUP"] = rank.group
    environ.pop("GPU_PLATFORM_RESUME_FROM", None)
    if prepared.resume_from is not None:
        environ["GPU_PLATFORM_RESUME_FROM"] = prepared.resume_from
    return environ


def marker(home: Path, key: AttemptKey) -> dict[str, str]:
    """Variables that mark the processes of an attempt, so that they can be found after their supervisor has died."""
    return {ATTEMPT_ID: f"{key.job_id}/{key.attempt}", NODE_DIR: str(home)}

"""What ranks get for the launcher that their job names: variables of ``torchrun``, or a program that ``mpirun`` uses.

Both are what the launchers read by themselves, so that a program and its arguments stay as the user wrote them.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

from gpu_platform.domain.errors import PreflightFailed
from gpu_platform.domain.jobs.attempt import HostPlan, Prepared, Program, RankSpec
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.domain.jobs.launcher import MPI_PROGRAMS, Launcher, runs_torchrun
from gpu_platform.node.processes import mpi_gang
from gpu_platform.node.processes.step_process import which
from gpu_platform.node.system.ports import PORTS_OF_AN_ATTEMPT

MPI_VARIABLES = {
    # Each daemon looks for the first word on its own host, where it would use it for daemons of its own.
    "OMPI_MCA_plm_rsh_agent": "/bin/sh {rsh}",
    "OMPI_MCA_orte_default_hostfile": "{hosts}",
    # Daemons are started by mpirun, not by each other, and stay children of the rank.
    "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
    "OMPI_MCA_orte_leave_session_attached": "1",
    # Only this interface leads to the other ranks.
    "OMPI_MCA_btl_tcp_if_include": "{interface}",
    "OMPI_MCA_oob_tcp_if_include": "{interface}",
    "PRTE_MCA_plm": "ssh",
    "PRTE_MCA_plm_ssh_agent": "/bin/sh {rsh}",
    "PRTE_MCA_prte_default_hostfile": "{hosts}",
    "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
    "PRTE_MCA_prte_leave_session_attached": "1",
    "PRTE_MCA_prte_if_include": "{interface}",
    "HYDRA_LAUNCHER": "ssh",
    "HYDRA_LAUNCHER_EXEC": "{rsh}",
    "HYDRA_HOST_FILE": "{machines}",
    # Otherwise all processes get rank 0's variables, and with them the GPUs of its host.
    "HYDRA_ENV": "none",
    "HYDRA_IFACE": "{interface}",
    "FI_TCP_IFACE": "{interface}",
    "I_MPI_HYDRA_BOOTSTRAP": "ssh",
    "I_MPI_HYDRA_BOOTSTRAP_EXEC": "{rsh}",
    "I_MPI_HYDRA_HOST_FILE": "{machines}",
    "GPU_PLATFORM_HOSTFILE": "{hosts}",
}
"""What Open MPI 4 (``OMPI_MCA_``), Open MPI 5 (``PRTE_MCA_``), MPICH and Intel MPI (Hydra) read. Rank 0 fills in the
places of its files."""
_PYTHON = "/usr/bin/python3"
"""Every account may run it. The node worker's own interpreter may be in a home directory."""


def launcher_argv(plan: HostPlan, rank: RankSpec) -> list[str]:
    """The command that a rank executes: the job's, or what stands around it for ``mpirun``."""
    command = plan.program(rank).command
    if plan.launcher is not Launcher.MPI:
        return command
    # The text and not the file: a jail shows neither the files of the platform nor those of its Python.
    start = "import sys; source = sys.argv.pop(1); exec(compile(source, 'mpi_gang.py', 'exec'))"
    return [
        _python(plan.program(rank).env) or _PYTHON,
        "-c",
        start,
        Path(mpi_gang.__file__).read_text("utf-8"),
        "rank",
        *command,
    ]


def launcher_environ(plan: HostPlan, rank: RankSpec, rendezvous: Prepared) -> dict[str, str]:
    """The variables that the launcher adds to those of :func:`.environment.rank_environ`."""
    if plan.launcher is Launcher.TORCHRUN:
        return _torchrun_environ(plan, rank, rendezvous)
    if plan.launcher is Launcher.MPI:
        return {
            mpi_gang.KEY: rendezvous.gang_key,
            mpi_gang.PORT: str(rendezvous.rendezvous_port + PORTS_OF_AN_ATTEMPT - 1),
            mpi_gang.SLOTS: str(max(1, len(rank.gpu_uuids))),
            mpi_gang.TEMPLATES: json.dumps(MPI_VARIABLES),
        }
    return {}


def new_gang_key(plan: HostPlan) -> str:
    """A new secret of the attempt, with which its ranks know each other. Empty: they need none."""
    is_gang = plan.launcher is Launcher.MPI and plan.world_size > len(plan.ranks)
    return secrets.token_hex(32) if is_gang else ""


def check_launcher(plan: HostPlan, environ: dict[str, str]) -> None:
    """Raise :class:`PreflightFailed` if this host lacks what the launcher itself needs. ``environ``: the program's."""
    if plan.launcher is Launcher.MPI and _python(environ) is None:
        raise PreflightFailed(
            f"the job's launcher is mpi, which needs python3 on every host, but {plan.host} has none (PATH is "
            f"{environ.get('PATH', os.defpath)!r}): install it there",
            kind=blame(FailureCause.REQUEST),
        )


def missing_program_hint(plan: HostPlan, program: Program) -> str:
    """What to do if the program is not found on this host. Empty: nothing that the launcher knows."""
    name = program.command[0]
    if plan.launcher is Launcher.MPI and name in MPI_PROGRAMS:
        return (
            "the job's launcher is mpi, so install the same MPI (Open MPI, MPICH or Intel MPI) on every host of the "
            "job, set PATH (--env PATH=…), or choose hosts that have it"
        )
    if plan.launcher is Launcher.TORCHRUN and runs_torchrun(program.command):
        return (
            "set PATH to the environment that has PyTorch, give its full path, or run the script itself (python "
            "train.py): launcher torchrun then needs no torchrun"
        )
    return ""


def _torchrun_environ(plan: HostPlan, rank: RankSpec, rendezvous: Prepared) -> dict[str, str]:
    """What torchrun tells its workers (torch/distributed/run.py, "Environment Variables"), for a rank that is one; and
    torchrun's own options (``PET_``, torch/distributed/argparse_util.py), for a rank whose program starts torchrun."""
    local_size = rank.local_size or len(plan.ranks)
    run_id = f"{plan.key.job_id}.{plan.key.attempt}"
    processes = max(1, len(rank.gpu_uuids) // local_size)
    found = {
        "PET_NNODES": str(plan.world_size),
        "PET_NODE_RANK": str(rank.rank),
        "PET_NPROC_PER_NODE": str(processes),
        "PET_MASTER_ADDR": rendezvous.address,
        "PET_MASTER_PORT": str(rendezvous.rendezvous_port),
        "PET_RDZV_ID": run_id,
    }
    if runs_torchrun(plan.program(rank).command) or processes > 1:
        return found  # its program starts the workers, and tells them itself
    found |= {
        "GROUP_RANK": str(plan.node_rank),
        "GROUP_WORLD_SIZE": str(plan.host_count or 1),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank.rank),
        "ROLE_WORLD_SIZE": str(plan.world_size),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": str(plan.key.attempt - 1),
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }
    if local_size > 1 and "OMP_NUM_THREADS" not in plan.program(rank).env:
        found["OMP_NUM_THREADS"] = "1"
    return found


def _python(environ: dict[str, str]) -> str | None:
    if os.access(_PYTHON, os.X_OK):
        return _PYTHON
    return which("python3", environ.get("PATH", os.defpath))

"""Who starts the processes of a gang's program: the platform itself, as ``torchrun`` would, or ``mpirun``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import PurePath
from typing import Any

TORCHRUN_PROGRAMS = frozenset({"torchrun", "torch.distributed.run", "torch.distributed.launch"})
"""Programs that start one process for each GPU of their host themselves."""
MPI_PROGRAMS = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"})


class Launcher(StrEnum):
    """What the ranks of a gang get, beside the variables that every rank gets."""

    PLAIN = "plain"
    """Nothing more. The program is started once for each rank."""
    TORCHRUN = "torchrun"
    """The variables of ``torchrun``. One rank per GPU, unless the program is ``torchrun`` itself: then one per host."""
    MPI = "mpi"
    """The program runs on rank 0 alone. ``mpirun`` finds the hosts of the gang and starts its processes there."""


def with_rank_per(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of a job, as they were sent, with ``rank_per`` where the launcher decides it and the job does not."""
    if fields.get("launcher") != Launcher.TORCHRUN:
        return fields
    groups = fields.get("groups")
    if groups:
        filled = [_filled(group, group.get("command") or fields.get("command")) for group in groups if _is_map(group)]
        return {**fields, "groups": filled} if len(filled) == len(groups) else fields
    return _filled(fields, fields.get("command"))


def runs_torchrun(command: Sequence[str]) -> bool:
    """True if the program is ``torchrun``, or Python with its module."""
    words = [PurePath(command[0]).name, *(command[2:3] if list(command[1:2]) == ["-m"] else [])]
    return not TORCHRUN_PROGRAMS.isdisjoint(words)


def _filled(fields: Mapping[str, Any], command: object) -> Mapping[str, Any]:
    if "rank_per" in fields or not _asks_for_gpus(fields.get("gpus")) or not _are_words(command):
        return fields
    return {**fields, "rank_per": "host" if runs_torchrun(command) else "gpu"}  # type: ignore[arg-type]


def _asks_for_gpus(request: object) -> bool:
    if not _is_map(request):
        return bool(getattr(request, "gpus", 0))
    return bool(request.get("total") or request.get("gpus_per_host"))  # type: ignore[union-attr]


def _are_words(command: object) -> bool:
    return isinstance(command, list | tuple) and bool(command) and all(isinstance(word, str) for word in command)


def _is_map(value: object) -> bool:
    return isinstance(value, Mapping)

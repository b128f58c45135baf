"""What a host does around an attempt: before its ranks start, and after its last process there is gone.

Sharing, scrubbing, accounting and the power limit are each a :class:`Stage`. The node worker runs them in order, and in
the opposite order at the end. The records of ``stopping`` guarantee: once a stage may have prepared an attempt, its
``finish`` runs to its end at least once, even if the node worker dies in between. The host reports the attempt as
ended only after that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from gpu_platform.domain.jobs.attempt import HostPlan

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Provision:
    """What ranks get in addition to their plan, from stages that do not know each other: it can be added up. A rank's
    own environment wins over the common one."""

    environ: dict[str, str] = field(default_factory=dict[str, str])
    rank_environ: dict[int, dict[str, str]] = field(default_factory=dict[int, dict[str, str]])
    devices: list[str] = field(default_factory=list[str])
    """Device nodes of the host that the jail lets ranks open and shows below ``/dev``."""
    writable: list[str] = field(default_factory=list[str])
    """Directories that jailed ranks may write."""
    readable: list[str] = field(default_factory=list[str])
    owned: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Directories that are given to the attempt's account, each with the root below which it must be."""
    rank_cpus: dict[int, tuple[str, str | None]] = field(default_factory=dict[int, tuple[str, str | None]])
    """Rank -> its CPUs and NUMA nodes, as the kernel writes lists. For other ranks the host decides."""
    shm: str | None = None
    """A directory that jailed ranks see as ``/dev/shm``. None: a private one."""
    root: tuple[str, str] | None = None
    """The root file system of a container, and the directory below which it must be. None: the host's."""
    files: list[list[str]] = field(default_factory=list[list[str]])
    """Files of the host that appear read-only in another place: [file, place]."""
    workdir: str | None = None
    """The working directory, instead of the plan's. None: the plan's."""

    def __add__(self, other: Provision) -> Provision:
        ranks = self.rank_environ.keys() | other.rank_environ.keys()
        return Provision(
            environ=self.environ | other.environ,
            rank_environ={rank: self.of_rank(rank) | other.of_rank(rank) for rank in ranks},
            devices=[*self.devices, *other.devices],
            writable=[*self.writable, *other.writable],
            readable=[*self.readable, *other.readable],
            owned=[*self.owned, *other.owned],
            rank_cpus=self.rank_cpus | other.rank_cpus,
            shm=self.shm or other.shm,
            root=self.root or other.root,
            files=[*self.files, *other.files],
            workdir=self.workdir or other.workdir,
        )

    def of_rank(self, rank: int) -> dict[str, str]:
        """The environment that this rank alone gets."""
        return self.rank_environ.get(rank, {})


class Stage:
    """Something that a host sets up before the ranks of an attempt and takes down after them. The methods here do
    nothing.

    Methods run in threads: for one attempt one after another, for different attempts at the same time. Each may be
    repeated by this node worker or its successor, so what must survive is on disk. Most attempts need nothing from a
    stage: then a method must take far less than a millisecond.
    """

    def recover(self, attempts: Sequence[HostPlan]) -> None:
        """Called once, when a node worker starts. ``attempts`` are open here. Clear what belongs to none of them."""

    def prepare(self, plan: HostPlan) -> None:
        """Called before ranks start. Raises :class:`~gpu_platform.domain.errors.PreflightFailed` (the job's or the
        hardware's fault) or :class:`~gpu_platform.domain.errors.HostUnavailable` (try again)."""

    def provides(self, plan: HostPlan) -> Provision:
        """What the attempt's ranks get. Called after :meth:`prepare`, before each start of ranks."""
        return Provision()

    def finish(self, plan: HostPlan) -> None:
        """Called after the last process of the attempt is gone, before others may get its GPUs.

        Also called if :meth:`prepare` failed or never ran. If it raises, the job keeps the GPUs and it is tried again.
        So raise only what another try can heal, and report a broken GPU as a fault.
        """


class Stages:
    """All stages of a host, in the order in which they prepare. They finish in the opposite order."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = tuple(stages)

    def recover(self, attempts: Sequence[HostPlan]) -> None:
        """See :meth:`Stage.recover`."""
        for stage in self._stages:
            stage.recover(attempts)

    def prepare(self, plan: HostPlan) -> None:
        """Run :meth:`Stage.prepare` of each. The first failure is raised, and later stages do not run."""
        for stage in self._stages:
            stage.prepare(plan)

    def provides(self, plan: HostPlan) -> Provision:
        """What all stages provide, added up."""
        return sum((stage.provides(plan) for stage in self._stages), Provision())

    def finish(self, plan: HostPlan) -> None:
        """Run :meth:`Stage.finish` of each, even if one fails. Raises the first failure."""
        failures: list[Exception] = []
        for stage in reversed(self._stages):
            try:
                stage.finish(plan)
            except Exception as error:
                log.exception(
                    "stage.finish_failed", stage=type(stage).__name__, job=plan.key.job_id, attempt=plan.key.attempt
                )
                failures.append(error)
        if failures:
            raise failures[0]

"""All that a host does about checkpoints: their times, asking for them, resuming, and removing surplus ones."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

import structlog

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.hosts.lease import SavedCheckpoint
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.domain.jobs.checkpoint import CheckpointInfo
from gpu_platform.hosts.checkpoints.checkpoint_times import CheckpointTimes
from gpu_platform.hosts.checkpoints.clock import CheckpointClock
from gpu_platform.hosts.checkpoints.directories import make_shown_directory
from gpu_platform.hosts.checkpoints.requests import USER, CheckpointRequester
from gpu_platform.hosts.checkpoints.resume_choice import ResumeChoice, choose_resume, release_resume
from gpu_platform.hosts.checkpoints.retention import CheckpointRetention
from gpu_platform.hosts.checkpoints.store import CheckpointStore
from gpu_platform.hosts.isolation.workdirs import is_below
from gpu_platform.hosts.processes.ranks import RankProcess
from gpu_platform.settings import NodeSettings

log = structlog.get_logger(__name__)

_PROBE = ".gpu-platform-probe-"


class Checkpointing:
    """The checkpoints of the attempts on this host. ``root``: where they are; ``home``: this host's own directory."""

    def __init__(self, node: NodeSettings, root: Path, home: Path) -> None:
        self.store = CheckpointStore(root, node.checkpoint_hash_mib << 20)
        self.requests = CheckpointRequester(node, root, home)
        self.clock = CheckpointClock(self.requests, root)
        self.retention = CheckpointRetention(self.store, node.checkpoint_keep, node.checkpoint_surplus_s)
        self._times = CheckpointTimes(root)

    @property
    def root_id(self) -> str | None:
        """Identity of the root as of the last :meth:`newest`."""
        return self._times.root_id

    def newest(self, keys: Sequence[AttemptKey]) -> list[SavedCheckpoint]:
        """See :meth:`CheckpointTimes.newest`."""
        return self._times.newest(keys)

    def environ(self, plan: HostPlan) -> dict[str, str]:
        """Environment variables that tell a program how it is asked for a checkpoint."""
        return self.requests.environ(plan)

    def resume(self, plan: HostPlan) -> ResumeChoice:
        """See :func:`choose_resume`. The other hosts of a gang take what rank 0's host chose."""
        return choose_resume(self.store, plan) if plan.node_rank == 0 else ResumeChoice()

    def finish(self, plan: HostPlan) -> None:
        """Unpin the checkpoint that the attempt started from. Call it when no process of the attempt lives."""
        release_resume(self.store, plan)

    def shown(self, plan: HostPlan, resume_from: str | None) -> list[str]:
        """Directories that the jail must show besides the job's own: the other job's checkpoint to resume from.

        ``resume_from`` may come from another host, which is not believed: it must be of the job that the plan names.
        """
        point = plan.checkpoint.resume_point
        if point is None or resume_from is None or os.path.normpath(resume_from) != resume_from:
            return []
        is_of_job = is_below(resume_from, str(self.store.root / point.job_id))
        return [resume_from] if is_of_job and os.path.isdir(resume_from) else []

    async def before_stop(self, plan: HostPlan, ranks: Sequence[RankProcess], grace_s: float) -> float:
        """See :meth:`CheckpointRequester.before_stop`. Returns the seconds that are left of the grace."""
        return max(0.0, grace_s - await self.requests.before_stop(plan, ranks, grace_s))

    def ask(self, plan: HostPlan, ranks: Sequence[RankProcess]) -> int:
        """Ask for a checkpoint because a user wants one now. Returns how many processes got the signal."""
        return self.requests.ask(plan, ranks, USER).signalled

    def list_job(self, job_id: str, *, hashes: bool = False) -> list[CheckpointInfo]:
        """The job's complete checkpoints. ``hashes``: verify them with a hash of each file."""
        return self.store.list_job(job_id, hashes=hashes)

    def write_probe(self) -> str:
        """Write a file with a new name on the root, and return the name; see :meth:`sees_probe`. Raises ``OSError``."""
        name = secrets.token_hex(16)
        make_shown_directory(self.store.root)
        (self.store.root / f"{_PROBE}{name}").touch(exist_ok=False)
        return name

    def sees_probe(self, name: str) -> bool:
        """True when this host sees the file of another host, so both share the root. ``name`` comes from outside."""
        return name.isalnum() and (self.store.root / f"{_PROBE}{name}").exists()

    def remove_probe(self, name: str) -> None:
        """Remove the file that :meth:`write_probe` made."""
        if name.isalnum():
            (self.store.root / f"{_PROBE}{name}").unlink(missing_ok=True)

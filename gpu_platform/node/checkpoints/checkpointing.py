"""All that a host does about checkpoints: their times, asking for them, resuming, and removing surplus ones."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.hosts.lease import SavedCheckpoint
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.domain.jobs.checkpoint import CheckpointInfo
from gpu_platform.node.checkpoints.checkpoint_steps import CheckpointSteps
from gpu_platform.node.checkpoints.checkpoint_times import CheckpointTimes
from gpu_platform.node.checkpoints.clock import CheckpointClock
from gpu_platform.node.checkpoints.requests import USER, CheckpointRequester
from gpu_platform.node.checkpoints.resume_choice import ResumeChoice
from gpu_platform.node.isolation.cgroups.cgroup import Cgroup
from gpu_platform.node.isolation.workdirs import is_below
from gpu_platform.node.processes.ranks import RankProcess
from gpu_platform.node.processes.step_process import GivenUp, look
from gpu_platform.settings import NodeSettings

_PROBE = ".gpu-platform-probe-"


class Checkpointing:
    """The checkpoints of the attempts on this host. ``root``: where they are; ``home``: this host's own directory."""

    def __init__(self, node: NodeSettings, root: Path, home: Path) -> None:
        self.root = root
        self.retention = self._steps = CheckpointSteps(node, root)
        self.requests = CheckpointRequester(node, root, home)
        self.clock = CheckpointClock(self.requests, root)
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

    def resume(self, plan: HostPlan, given_up: GivenUp, cgroup: Cgroup | None = None) -> ResumeChoice:
        """See :meth:`CheckpointSteps.choose`. The other hosts of a gang take what rank 0's host chose."""
        return self._steps.choose(plan, given_up, cgroup) if plan.node_rank == 0 else ResumeChoice()

    def finish(self, plan: HostPlan) -> None:
        """Unpin the checkpoint that the attempt started from. Call it when no process of the attempt lives."""
        if plan.node_rank == 0:
            self._steps.release(plan)

    def shown(self, plan: HostPlan, resume_from: str | None) -> list[str]:
        """Directories that the jail must show besides the job's own: the other job's checkpoint to resume from.

        ``resume_from`` may come from another host, which is not believed: it must be of the job that the plan names.
        """
        point = plan.checkpoint.resume_point
        if point is None or resume_from is None or os.path.normpath(resume_from) != resume_from:
            return []
        is_of_job = is_below(resume_from, str(self.root / point.job_id))
        missing = is_of_job and look("missing_directory", {"paths": [resume_from]}, [resume_from])
        return [resume_from] if is_of_job and missing is None else []

    async def before_stop(self, plan: HostPlan, ranks: Sequence[RankProcess], grace_s: float) -> float:
        """See :meth:`CheckpointRequester.before_stop`. Returns the seconds that are left of the grace."""
        return max(0.0, grace_s - await self.requests.before_stop(plan, ranks, grace_s))

    def ask(self, plan: HostPlan, ranks: Sequence[RankProcess]) -> int:
        """Ask for a checkpoint because a user wants one now. Returns how many processes got the signal."""
        return self.requests.ask(plan, ranks, USER).signalled

    def list_job(self, job_id: str, *, hashes: bool = False) -> list[CheckpointInfo]:
        """The job's complete checkpoints. ``hashes``: verify them with a hash of each file."""
        return self._steps.list_job(job_id, hashes=hashes)

    def write_probe(self) -> str:
        """Write a file with a new name on the root, and return the name; see :meth:`sees_probe`. Raises ``OSError``."""
        name = secrets.token_hex(16)
        self._at_probe("touch_new", name)
        return name

    def sees_probe(self, name: str) -> bool:
        """True when this host sees the file of another host, so both share the root. ``name`` comes from outside."""
        return name.isalnum() and self._at_probe("exists", name)

    def remove_probe(self, name: str) -> None:
        """Remove the file that :meth:`write_probe` made."""
        if name.isalnum():
            self._at_probe("remove", name)

    def _at_probe(self, step: str, name: str) -> Any:
        path = str(self.root / f"{_PROBE}{name}")
        return look(step, {"path": path}, [path])

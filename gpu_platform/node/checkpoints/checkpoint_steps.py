"""What a host asks about the checkpoints of jobs, each as a step that can be killed: their number, their manifests and
their bytes are the jobs', and the root may be on a file system that hangs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import HostUnavailable, PlatformError
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.domain.jobs.checkpoint import CheckpointInfo
from gpu_platform.node.checkpoints.resume_choice import ResumeChoice
from gpu_platform.node.checkpoints.store import StoredCheckpoint
from gpu_platform.node.isolation.cgroups.cgroup import Cgroup
from gpu_platform.node.processes.step_process import Bounds, GivenUp, NoStepAnswer, look, run_python
from gpu_platform.settings import NodeSettings

log = structlog.get_logger(__name__)

_MEMORY_BYTES = 1 << 30
_FOLLOW_UP_S = 120.0
_MOST_HASHED = 10_000
"""Checkpoints whose hashes are known to be right."""
_SWEEP_S = 600.0


class CheckpointSteps:
    """Thread-safe. ``root``: where checkpoints are."""

    def __init__(self, node: NodeSettings, root: Path) -> None:
        self._root, self._host = root, node.name
        self._hash_limit_bytes = node.checkpoint_hash_mib << 20
        self._check_s = node.checkpoint_check_s
        self._keep, self._surplus_s = node.checkpoint_keep, node.checkpoint_surplus_s
        self._hashed: dict[tuple[str, int], None] = {}
        self._follow_up: dict[str, tuple[HostPlan, float]] = {}
        """Job -> its last plan here, and until when its checkpoints are swept (monotonic seconds)."""

    def list_job(self, job_id: str, *, hashes: bool = False) -> list[CheckpointInfo]:
        """The job's checkpoints, oldest first. Raises :class:`HostUnavailable` if that takes too long."""
        answer = self._run("list_checkpoints", f"the checkpoints of job {job_id}", job_id=job_id, hashes=hashes)
        return [CheckpointInfo.model_validate(one) for one in answer["found"]]

    def choose(self, plan: HostPlan, given_up: GivenUp, cgroup: Cgroup | None) -> ResumeChoice:
        """See :func:`.resume_choice.choose_resume`. Raises :class:`HostUnavailable` if that takes too long."""
        if plan.resume_from_attempt is None and plan.checkpoint.resume_point is None:
            return ResumeChoice()
        subject = f"the checkpoints from which job {plan.key.job_id} may resume"
        answer = self._run("choose_checkpoint", subject, given_up, cgroup, plan=_values(plan))
        if answer["not_pinned"] is not None:
            log.warning(
                "checkpoint.not_pinned", job=plan.key.job_id, attempt=plan.key.attempt, error=answer["not_pinned"]
            )
        found = answer["checkpoint"]
        return ResumeChoice(None if found is None else StoredCheckpoint(**found), answer["note"])

    def release(self, plan: HostPlan) -> None:
        """See :func:`.resume_choice.release_resume`. Whatever goes wrong, nobody waits for it."""
        if plan.resume_from_attempt is None and plan.checkpoint.resume_point is None:
            return
        try:
            problems = look("release_checkpoint", {"root": str(self._root), "plan": _values(plan)}, [str(self._root)])
        except (PlatformError, OSError) as error:
            problems = [str(error)]
        for problem in problems:
            log.warning("checkpoint.not_unpinned", job=plan.key.job_id, attempt=plan.key.attempt, error=problem)

    def sweep(self, plans: Sequence[HostPlan]) -> list[str]:
        """Remove surplus checkpoints of jobs whose rank 0 runs here or ended a short time ago; see ``retention``.
        Returns the paths that were removed. For one caller at a time."""
        now_s = time.monotonic()
        for plan in plans:
            if plan.node_rank == 0:
                self._follow_up[plan.key.job_id] = (plan, now_s + self._surplus_s + _FOLLOW_UP_S)
        removed: list[str] = []
        for job_id, (plan, until_s) in list(self._follow_up.items()):
            if now_s > until_s:
                del self._follow_up[job_id]
            try:
                removed += self.sweep_job(plan.key, plan.checkpoint.keep)
            except (PlatformError, OSError) as error:  # what a job left there must not end the node worker
                log.warning("checkpoints.not_swept", job=job_id, attempt=plan.key.attempt, error=repr(error)[:500])
        return removed

    def sweep_job(self, key: AttemptKey, keep: int | None) -> list[str]:
        """Sweep one job. ``keep``: what the job asks for. Raises ``OSError`` if the root cannot be read or written."""
        where = {"root": str(self._root), "job_id": key.job_id}
        if look("is_swept", {**where, "keep": keep or self._keep}, [str(self._root)]):
            return []
        arguments = {**where, "attempt": key.attempt, "own_keep": keep}
        arguments |= {"keep": self._keep, "surplus_s": self._surplus_s}
        bounds = Bounds(wall_s=_SWEEP_S, memory_bytes=_MEMORY_BYTES)
        removed: list[str] = run_python("sweep_checkpoints", arguments, bounds)
        for path in removed:
            log.info("checkpoint.removed", job=key.job_id, attempt=key.attempt, checkpoint=path)
        return removed

    def _run(
        self, step: str, subject: str, given_up: GivenUp = lambda: False, cgroup: Cgroup | None = None, **more: Any
    ) -> Any:
        """Run a step that verifies. ``subject``: what, for people."""
        hashed = list(self._hashed)
        arguments = {"root": str(self._root), "hash_limit_bytes": self._hash_limit_bytes, "hashed": hashed, **more}
        bounds = Bounds(wall_s=self._check_s, cpu_s=self._check_s, memory_bytes=_MEMORY_BYTES, output_bytes=64 << 20)
        try:
            answer = run_python(step, arguments, bounds, given_up, cgroup)
        except NoStepAnswer as error:
            raise HostUnavailable(
                f"{self._host} did not verify {subject} within {self._check_s:g} s (node.checkpoint_check_s) and "
                f"{_MEMORY_BYTES >> 20} MiB of memory ({error.details['why']}): name one checkpoint "
                "(JOB:ATTEMPT/NAME), keep fewer of them, or mend the file system of node.checkpoint_root"
            ) from error
        for path, changed_ns in answer.pop("hashed"):
            self._hashed[path, changed_ns] = None
        while len(self._hashed) > _MOST_HASHED:
            self._hashed.pop(next(iter(self._hashed)), None)
        return answer


def _values(plan: HostPlan) -> list[Any]:
    point = plan.checkpoint.resume_point
    asked = None if point is None else [point.job_id, point.attempt, point.name, str(point)]
    return [plan.key.job_id, plan.key.attempt, plan.host, plan.resume_from_attempt, asked]

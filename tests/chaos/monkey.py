"""Carries out a plan against a cluster: submits jobs, and does to processes, GPUs and jobs what life does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from gpu_platform.client import AsyncClient
from gpu_platform.domain.errors import PlatformError
from gpu_platform.domain.job import JobSpec
from gpu_platform.hosts.inject import inject_fault
from gpu_platform.hosts.paths import control_dir, node_dir
from tests.chaos.audit import Truth
from tests.chaos.killable_postgres import Server
from tests.chaos.plan import JobPlan, Step
from workers.cluster import LocalCluster

T = TypeVar("T")

RANK = Path(__file__).with_name("rank.py")
FROZEN_S = 6.0
"""Longer than leases, leaders' and activities' heartbeats last."""
DRAINED_S = 3.0
HEALING_XIDS = (31, 43, 46, 48, 62, 94)
"""Those that the fault policy answers with a reset, however often they come."""


class Monkey:
    """``database``: kill that too, now and then."""

    def __init__(
        self,
        cluster: LocalCluster,
        client: AsyncClient,
        truth: Truth,
        directory: Path,
        database: Server | None = None,
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._truth = truth
        self._directory = directory
        self._database = database
        self._database_lock = asyncio.Lock()
        self._frozen: set[int] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self.jobs: dict[str, JobPlan] = {}
        """Acknowledged submissions."""
        self.stopped: set[str] = set()
        """Jobs that were told, or may have been told, to end."""
        self.done: list[str] = []
        """What was really done, for the report of a failure."""

    async def play(self, plan: Sequence[Step]) -> None:
        """All steps at their time; then everything runs again, hosts are back, and endless jobs are killed."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        try:
            for step in plan:
                await asyncio.sleep(max(0.0, start + step.at_s - loop.time()))
                self._tasks.append(asyncio.create_task(self._do(step)))
            await asyncio.gather(*self._tasks)
        finally:
            for pid in set(self._frozen):
                self._thaw(pid)
        for name in self._cluster.nodes:
            await self._client.online(name)
        for job_id in [job_id for job_id, job in self.jobs.items() if job.endless]:
            await self._interrupt("kill", job_id)

    async def _do(self, step: Step) -> None:
        if step.job is not None:
            job = await self._client.submit(self._spec(step.job))
            self.jobs[job.id] = step.job
            return
        # What is refused (the job has just ended, the GPU is busy) was not done, and that is all.
        with contextlib.suppress(PlatformError, ProcessLookupError):
            match step.verb:
                case "kill_process":
                    child = _choose([*self._cluster.children, *[None] * 2 * bool(self._database)], step.draw)
                    if child is None:
                        await self._kill_database(step)
                    elif child.pid is not None:
                        self._note(step, child.name)
                        os.kill(child.pid, signal.SIGKILL)
                case "freeze_process":
                    child = _choose(self._cluster.children, step.draw)
                    if (pid := child.pid) is not None:
                        self._note(step, child.name)
                        os.kill(pid, signal.SIGSTOP)
                        self._frozen.add(pid)
                        await asyncio.sleep(FROZEN_S)
                        self._thaw(pid)
                case "kill_supervisor":
                    if supervisors := self._supervisors():
                        pid = _choose(supervisors, step.draw)
                        self._note(step, str(pid))
                        os.kill(pid, signal.SIGKILL)
                case "xid" | "failing_reset":
                    gpus = [(node, index) for node in self._cluster.nodes for index in range(4)]
                    node, index = _choose(gpus, step.draw)
                    xid = HEALING_XIDS[int(step.draw * 997) % len(HEALING_XIDS)]
                    self._note(step, f"{xid} on {node}:{index}")
                    home = node_dir(self._cluster.config.state_dir, node)
                    inject_fault(
                        control_dir(home), index, xid=xid, fail_resets=1 if step.verb == "failing_reset" else None
                    )
                case "drain" | "drain_force":
                    node = _choose(list(self._cluster.nodes), step.draw)
                    self._note(step, node)
                    await self._client.drain(node, force=step.verb == "drain_force")
                    await asyncio.sleep(DRAINED_S)
                    await self._client.online(node)
                case verb:
                    living = [job.id for job in self._truth.jobs(self.jobs) if not job.state.is_terminal]
                    if living:
                        job_id = _choose(living, step.draw)
                        self._note(step, job_id)
                        await self._interrupt(verb, job_id)

    async def _kill_database(self, step: Step) -> None:
        assert self._database is not None
        async with self._database_lock:
            self._note(step, "postgresql")
            await asyncio.to_thread(self._database.kill, signal.SIGKILL)
            await asyncio.sleep(step.draw)
            await asyncio.to_thread(self._database.restart)

    async def _interrupt(self, verb: str, job_id: str) -> None:
        if verb != "preempt":
            self.stopped.add(job_id)
        with contextlib.suppress(PlatformError):
            await getattr(self._client, verb)(job_id, "chaos")

    def _spec(self, plan: JobPlan) -> JobSpec:
        return JobSpec(
            command=[
                *(sys.executable, "-S", "-E", str(RANK), str(self._directory)),
                *(str(plan.seconds), str(plan.exit_code), *plan.manners),
            ],
            gpus=plan.gpus,
            rank_per=plan.rank_per,
            max_retries=plan.max_retries,
            max_hardware_retries=1000,
            grace_s=0.5,
        )

    def _supervisors(self) -> list[int]:
        parents: set[int] = set()
        for pid in self._truth.ranks_alive():
            with contextlib.suppress(OSError):
                stat = Path(f"/proc/{pid}/stat").read_text()
                parents.add(int(stat.rsplit(")", 1)[1].split()[1]))
        ranks = set(self._truth.ranks_alive())
        return sorted(pid for pid in parents - ranks if pid != 1 and pid != os.getpid() and _is_ours(pid))

    def _thaw(self, pid: int) -> None:
        self._frozen.discard(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def _note(self, step: Step, target: str) -> None:
        self.done.append(f"{step.at_s:6.2f} s {step.verb} {target}")


def _is_ours(pid: int) -> bool:
    try:
        return b"gpu_platform.hosts" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _choose(options: Sequence[T], draw: float) -> T:
    return options[int(draw * len(options))]

"""The demo: a real training on two hosts, an XID in the middle, a retry from the checkpoint."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from gpu_platform.client import AsyncClient
from gpu_platform.domain.events import Event
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.resources import RankPer, ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import GpuState, JobState
from gpu_platform.domain.texts import printable
from gpu_platform.node.nvml.fault_injection import inject_fault
from gpu_platform.node.system.paths import control_dir, node_dir
from workers.local.cluster import LocalCluster

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
EPOCHS = 16
XID = 31
DEADLINE_S = 120

COLOURS = {"COMPLETED": "bold green", "FAILED": "bold red", "RUNNING": "green", "AVAILABLE": "green"}


async def run_demo(cluster: LocalCluster, console: Console) -> int:
    """Run the demo. 0: the training ended well on its second attempt, and the GPU was healed."""
    async with AsyncClient(cluster.api_url) as client:
        spec = JobSpec(
            name="digits",
            user=re.sub(r"[^A-Za-z0-9]", "", os.environ.get("USER", "")) or "demo",
            command=[sys.executable, "train_digits.py", "--epochs", str(EPOCHS), "--min-step-ms", "12"],
            workdir=str(EXAMPLES),
            gpus=ResourceRequest(hosts=2, gpus_per_host=2, memory_mib=16 * 1024, min_compute_capability="8.0"),
            rank_per=RankPer.GPU,
            time_limit_s=600,
            max_retries=1,
            grace_s=5,
        )
        console.print(
            "[bold]submit[/]  2 hosts x 2 GPUs, 16 GiB each, compute capability 8.0: " + " ".join(spec.command)
        )
        job = await client.submit(spec)
        console.print(f"[bold]watch[/]   {job.workflow_url}")
        demo = Demo(cluster, client, console, job)
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await demo.run()
        except TimeoutError:
            console.print(f"[red]not done after {DEADLINE_S} s; the job: {(await client.get(job.id)).state}[/]")
            return 1
        finally:
            if not (await client.get(job.id)).state.is_terminal:
                await client.kill(job.id, "the demo ended")
                await client.wait(job.id, timeout_s=20)


class Demo:
    """Runs a gang, injects a fault into one of its GPUs, and shows how the platform heals it."""

    def __init__(self, cluster: LocalCluster, client: AsyncClient, console: Console, job: Job) -> None:
        self._cluster = cluster
        self._client = client
        self._console = console
        self._job = job
        self._accuracy: str | None = None
        self._faulty_gpu: str | None = None
        """The uuid of the GPU that got the XID."""
        self._struck_at: datetime | None = None
        self._running_again_s: float | None = None
        self._healed = asyncio.Event()

    async def run(self) -> int:
        """Run the demo to its end."""
        following = [asyncio.create_task(self._follow_events()), asyncio.create_task(self._follow_log())]
        try:
            job = await self._client.wait(self._job.id)
            await following[1]
            if self._faulty_gpu is not None:
                async with asyncio.timeout(30):
                    await self._healed.wait()
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)
        return self._conclude(job)

    async def _follow_events(self) -> None:
        async for event in self._client.events(after=0, follow=True):
            if event.job_id == self._job.id or (event.gpu_uuid is not None and event.gpu_uuid == self._faulty_gpu):
                self._show(event)
            if event.gpu_uuid == self._faulty_gpu and event.data.get("state") == GpuState.AVAILABLE.value:
                self._healed.set()
            if event.kind == "job.running" and event.job_id == self._job.id and self._struck_at is not None:
                self._running_again_s = (event.at - self._struck_at).total_seconds()

    async def _follow_log(self) -> None:
        rest = ""
        async for chunk in self._client.follow_logs(self._job.id, rank=0):
            *lines, rest = (rest + chunk.text).split("\n")
            for line in lines:
                self._console.print(f"            [dim]rank 0 | {escape(printable(line))}[/]")
                if found := re.match(r"epoch +(\d+)/", line):
                    if int(found[1]) >= EPOCHS // 2 and self._faulty_gpu is None:
                        await self._inject_fault()
                elif found := re.match(r"accuracy (\S+) after", line):
                    self._accuracy = found[1]

    async def _inject_fault(self) -> None:
        """Inject an XID into the last rank's GPU. It arrives like one from NVML's event set."""
        placement = (await self._client.get(self._job.id)).placement
        assert placement is not None
        host_slice = placement.slices[-1]
        self._faulty_gpu = host_slice.gpu_uuids[-1]
        self._console.print(f"[bold red]XID {XID}[/]     on GPU {host_slice.gpu_indices[-1]} of {host_slice.host}")
        home = node_dir(self._cluster.config.state_dir, host_slice.host)
        inject_fault(control_dir(home), host_slice.gpu_indices[-1], xid=XID)
        self._struck_at = datetime.now(self._job.created_at.tzinfo)

    def _show(self, event: Event) -> None:
        since_ms = (event.at - self._job.created_at).total_seconds() * 1000
        subject, _, verb = event.kind.partition(".")
        state = event.data.get("state", verb if subject == "gpu" else "")
        if subject == "queue" or event.kind == "gang.reserved":
            return
        name = str(state or verb).upper()
        text = describe(event)
        colour = COLOURS.get(name, "yellow" if subject == "gpu" else "cyan")
        self._console.print(f"[dim]{since_ms:8.0f} ms[/] {subject} [{colour}]{name}[/] {escape(printable(text))}")

    def _conclude(self, job: Job) -> int:
        say = self._console.print
        if job.state is not JobState.COMPLETED or self._accuracy is None:
            why = job.failure.message if job.failure else "without an accuracy"
            say(f"[bold red]{job.state}[/] {escape(printable(why))}")
            return 1
        assert job.finished_at is not None
        took = (job.finished_at - job.created_at).total_seconds()
        say(f"[bold green]{job.state}[/] after {took:.1f} s and {job.attempt} attempts: accuracy {self._accuracy}")
        if self._running_again_s is not None:
            say(f"XID to next attempt running: {self._running_again_s * 1000:.0f} ms; the GPU is AVAILABLE again")
        say(f"workflow: {job.workflow_url}")
        return 0 if job.attempt == 2 and self._healed.is_set() else 1


def describe(event: Event) -> str:
    """One event in words."""
    data: dict[str, Any] = event.data
    if event.kind == "job.placed":
        return f"attempt {event.attempt}: {data.get('why', '')}"
    if event.kind == "gang.released":
        return f"attempt {event.attempt}: no process is left on {', '.join(data['hosts'])}; {len(data['gpus'])} GPUs"
    if event.kind in ("job.retrying", "job.failed"):
        failure = data.get("failure") or {}
        return str(failure.get("message", ""))
    said = [str(data[key]) for key in ("reason", "message") if data.get(key)]
    which = f"attempt {event.attempt}"
    named = not event.attempt or any(text.startswith(which) for text in said)
    return ", ".join(said if named else [which, *said])

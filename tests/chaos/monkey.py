"""Carries out a plan against a cluster: submits jobs, and does to processes, GPUs and jobs what life does."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence

from sqlalchemy.exc import SQLAlchemyError

from gpu_platform.domain.array_ids import element_id
from gpu_platform.domain.errors import PlatformError
from gpu_platform.domain.jobs.array import ArraySpec
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.pipelines.pipeline import PipelineRequest
from tests.chaos import (
    disks,
    hangs,
    lies,
    older_databases,
    partitions,
    poison,
    processes,
    work,
    wrong_clocks,
)
from tests.chaos.arena import Arena, Disruption
from tests.chaos.plan import JobPlan, Step, spec_of

VERBS: Mapping[str, Disruption] = {
    **disks.VERBS,
    **hangs.VERBS,
    **lies.VERBS,
    **older_databases.VERBS,
    **processes.VERBS,
    **partitions.VERBS,
    **poison.VERBS,
    **wrong_clocks.VERBS,
    **work.VERBS,
}


async def play(arena: Arena, plan: Sequence[Step]) -> None:
    """All steps at their time; then hosts are back, and endless jobs are killed. Every fault undoes itself."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    tasks: list[asyncio.Task[None]] = []
    try:
        for step in plan:
            await asyncio.sleep(max(0.0, start + step.at_s - loop.time()))
            tasks.append(asyncio.create_task(_do(arena, step)))
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for name in arena.hosts:
        await arena.client.online(name)
    for job_id in [job_id for job_id, job in arena.jobs.items() if job.endless]:
        await arena.interrupt("kill", job_id)


async def _do(arena: Arena, step: Step) -> None:
    if step.job is not None:
        await _submit(arena, step.job)
        return
    # What is refused (the job has just ended, the GPU is busy, the database is away) was not done, and that is all.
    with contextlib.suppress(PlatformError, OSError, SQLAlchemyError):
        await VERBS[step.verb](arena, step.draw)


async def _submit(arena: Arena, plan: JobPlan) -> None:
    spec = spec_of(plan, arena.directory)
    if plan.in_pipeline:
        request = PipelineRequest(file=pipeline_file(spec), workdir=str(arena.directory))
        arena.pipelines[(await arena.client.pipelines.submit(request)).id] = plan
        return
    if not plan.elements:
        arena.jobs[(await arena.client.submit(spec)).id] = plan
        return
    array = await arena.client.submit_array(spec, ArraySpec(indices=f"0-{plan.elements - 1}"))
    arena.jobs.update({element_id(array.id, index): plan for index in range(plan.elements)})


def pipeline_file(spec: JobSpec) -> str:
    """One job, then three that do not wait for each other, then one."""
    step = {"command": spec.command, "gpus": {"gpus_per_host": 1}, "max_hardware_retries": 1000, "grace_s": 0.5}
    steps = {
        "first": step,
        "each": {**step, "after": "first", "for_each": [0, 1, 2]},
        "last": {**step, "after": "each"},
    }
    return json.dumps({"name": "storm", "steps": steps})

"""Checkpoints: of one job, and the roots that hosts keep them in."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from gpu_platform.client.wire import CheckpointAsked, CheckpointRoot, Page
from gpu_platform.domain.jobs.checkpoint import CheckpointInfo
from service.context import ServiceContextDep
from service.operations import checkpoints
from service.routers.jobs import JobId

router = APIRouter(prefix="/v1", tags=["checkpoints"])


@router.get("/jobs/{job_id}/checkpoints")
async def list_checkpoints(
    job_id: JobId,
    context: ServiceContextDep,
    verify: Annotated[bool, Query(description="Read every byte and compare hashes, not sizes only")] = False,
) -> Page[CheckpointInfo]:
    """All checkpoints of a job, oldest first, as the hosts that see them report them. Damaged ones are listed, too."""
    return Page(items=await checkpoints.list_checkpoints(context, job_id, verify=verify))


@router.post("/jobs/{job_id}/checkpoints", status_code=202)
async def ask_for_checkpoint(job_id: JobId, context: ServiceContextDep) -> CheckpointAsked:
    """Ask a running job's program for a checkpoint now. The list of its checkpoints shows whether it wrote one."""
    return CheckpointAsked(signalled=await checkpoints.ask_for_checkpoint(context, job_id))


@router.post("/checkpoint-roots:check")
async def check_roots(context: ServiceContextDep) -> Page[CheckpointRoot]:
    """Test which hosts share a checkpoint root: one host of each group writes a file, and the others look for it."""
    return Page(items=await checkpoints.check_roots(context))

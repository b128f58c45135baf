"""Remediation of a broken GPU: show it, approve or veto the next step, export the GPU's record."""

from __future__ import annotations

from fastapi import APIRouter

from gpu_platform.domain.hosts.remediation import RemediationStatus, ServiceCase
from gpu_platform.store.hosts import service_cases
from service.context import ActorDep, ServiceContextDep, now
from service.operations import remediation
from service.routers.hosts_and_gpus import GpuId
from service.routers.jobs import ReasonBodyDep

router = APIRouter(prefix="/v1/gpus/{gpu_id}", tags=["GPUs"])


@router.get("/remediation")
async def get_remediation(gpu_id: GpuId, context: ServiceContextDep) -> RemediationStatus:
    """The state of the GPU's repair; 404 if there is none."""
    return await remediation.status(context, gpu_id)


@router.post("/remediation/approve")
async def approve_remediation(
    gpu_id: GpuId, context: ServiceContextDep, actor: ActorDep, why: ReasonBodyDep = None
) -> RemediationStatus:
    """Approve the step that waits for an operator; a 409 when none waits."""
    return await remediation.order(context, gpu_id, "approve", actor, why.reason if why else "")


@router.post("/remediation/veto")
async def veto_remediation(
    gpu_id: GpuId, context: ServiceContextDep, actor: ActorDep, why: ReasonBodyDep = None
) -> RemediationStatus:
    """Skip the step that waits for an operator; the next one follows. A 409 when none waits."""
    return await remediation.order(context, gpu_id, "veto", actor, why.reason if why else "")


@router.get("/service-case")
def get_service_case(gpu_id: GpuId, context: ServiceContextDep) -> ServiceCase:
    """Everything that a vendor asks about the GPU: identity, driver, faults, resets, what was tried, who had it."""
    return service_cases.service_case(context.store, gpu_id, now())

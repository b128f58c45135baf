"""The service's side of a GPU's remediation workflow."""

from __future__ import annotations

from typing import Literal

from starlette.concurrency import run_in_threadpool

from gpu_platform.domain.contracts import remediation_id
from gpu_platform.domain.errors import IllegalTransition, NotFound, Unavailable
from gpu_platform.domain.hosts.gpu import Gpu
from gpu_platform.domain.hosts.remediation import RemediationOrder, RemediationStatus
from gpu_platform.observability import get_logger
from gpu_platform.store.hosts import gpus
from service.context import ServiceContext
from service.temporal import WorkflowGone

log = get_logger(__name__)


async def status(context: ServiceContext, reference: str) -> RemediationStatus:
    """The state of the GPU's remediation. Raises :class:`NotFound` if there is none."""
    return await _status(context, await _gpu(context, reference))


async def order(
    context: ServiceContext, reference: str, verb: Literal["approve", "veto"], actor: str, reason: str
) -> RemediationStatus:
    """Approve or veto the next step. Raises :class:`IllegalTransition` if no step waits for an operator."""
    gpu = await _gpu(context, reference)
    found = await _status(context, gpu)
    if not found.waits_for_approval:
        raise IllegalTransition(
            subject=f"the remediation of GPU {_name(gpu)}",
            current="not waiting for an operator",
            wanted="approved" if verb == "approve" else "vetoed",
            allowed=[],
            message=f"the remediation of GPU {_name(gpu)} waits for no operator, so there is nothing to {verb}; "
            f"see what is being done: gpu-platform remediation show {_name(gpu)}",
        )
    await context.workflows.order_remediation(
        remediation_id(gpu.info.uuid), verb, RemediationOrder(actor=actor, reason=reason)
    )
    return found


async def overrule(context: ServiceContext, gpu: Gpu, actor: str, reason: str, *, host_removed: bool = False) -> None:
    """End the remediation of a GPU, because an operator decided otherwise."""
    order = RemediationOrder(actor=actor, reason=reason, host_removed=host_removed)
    try:
        await context.workflows.order_remediation(remediation_id(gpu.info.uuid), "overrule", order)
    except WorkflowGone:
        return  # there was no remediation
    except Unavailable as error:  # the GPU has the state that the operator wants anyway
        log.warning("remediation.not_signalled", gpu=gpu.info.uuid, error=error.message)


async def _gpu(context: ServiceContext, reference: str) -> Gpu:
    return await run_in_threadpool(gpus.get_gpu, context.store, reference)


async def _status(context: ServiceContext, gpu: Gpu) -> RemediationStatus:
    try:
        return await context.workflows.remediation_status(remediation_id(gpu.info.uuid))
    except WorkflowGone:
        raise NotFound(f"nothing is being done about GPU {_name(gpu)}, which is {gpu.state}") from None


def _name(gpu: Gpu) -> str:
    return f"{gpu.host}:{gpu.info.index}"

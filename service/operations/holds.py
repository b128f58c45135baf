"""Holds a job or an array that waits, and releases it: first the store, then its workflow looks again.

A signal that does not arrive is not missed: the leader finds what waits without an entry in the queue.
"""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool

from gpu_platform.domain.access.roles import Role
from gpu_platform.domain.errors import Unavailable
from gpu_platform.observability import get_logger
from gpu_platform.store.jobs import holds
from gpu_platform.store.jobs.holds import Asker
from service.access.gate import Access
from service.context import ServiceContext, now

TOLD_AT_ONCE = 256
"""So many elements of an array are told themselves that they are released. The leader finds the others."""

log = get_logger(__name__)


async def hold(context: ServiceContext, access: Access, job_id: str, reason: str) -> None:
    """Hold it. Raises :class:`NotFound` and :class:`IllegalTransition`."""
    by = Asker(access.actor, is_operator=access.user != access.subject.user)
    await run_in_threadpool(holds.hold, context.store, job_id, by, reason, now())
    log.info("job.held", job=job_id, actor=by.actor, reason=reason)


async def release(context: ServiceContext, access: Access, job_id: str) -> None:
    """Release it. Raises :class:`NotFound`, :class:`Forbidden` and :class:`InvalidRequest`."""
    namespace = access.subject.namespace
    is_operator = namespace is not None and access.who.has(Role.OPERATOR, namespace)
    by = Asker(access.actor, is_operator=is_operator)
    released = await run_in_threadpool(holds.release, context.store, job_id, by, now())
    log.info("job.released", job=job_id, actor=by.actor, told=len(released))
    for one in released[:TOLD_AT_ONCE]:
        try:
            await context.workflows.ask_again(one)
        except Unavailable:
            # The leader tells the workflow later: Temporal does not answer now.
            log.info("job.release_told_later", job=one)
            return

"""Notifications of jobs: which targets one may name, and a test of one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool

from gpu_platform.client.wire import Page
from gpu_platform.domain.access.roles import Role
from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.jobs.notify import check_address
from gpu_platform.domain.notifications import Delivery, NotificationTest, OpenTarget, ShownTarget
from gpu_platform.store.jobs import notices
from service.access.gate import Access
from service.context import AccessDep, ServiceContextDep
from service.operations import notify

router = APIRouter(prefix="/v1", tags=["notifications"])


@router.get("/notifications")
def list_notification_targets(context: ServiceContextDep, access: AccessDep) -> Page[ShownTarget]:
    """The targets that one may name in `notify` of a job, with the namespaces for whose jobs, and one's own address."""
    found = _may_name(access, notices.open_targets(context.store).targets)
    return Page(
        items=[
            ShownTarget(
                name=target.name,
                kind=target.kind,
                namespaces=target.namespaces,
                personal=target.personal,
                domains=target.domains,
                address=notify.own_address(access, target, access.user),
            )
            for target in found
        ]
    )


@router.post("/notifications:test")
async def try_notification_target(
    context: ServiceContextDep,
    access: AccessDep,
    target: Annotated[str, Query(max_length=40, description="A target that one may name")],
    address: Annotated[
        str | None, Query(max_length=254, description="For a target that sends to addresses of users")
    ] = None,
) -> Page[Delivery]:
    """Send a test message to one target that users may name, and wait up to a minute for what comes of it."""
    opened = await run_in_threadpool(notices.open_targets, context.store)
    found = notify.named(_may_name(access, opened.targets), target, "for you")
    try:
        asked = None if address is None else check_address(address)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    to = notify.recipient(access, found, access.user, asked)
    context.rate_limits.take(access.user, "notification tests")
    test = NotificationTest(target=found.name, address=to, actor=access.actor)
    return Page(items=await context.workflows.test_notifications(test))


def _may_name(access: Access, targets: list[OpenTarget]) -> list[OpenTarget]:
    """The targets for whose namespaces one may submit jobs. Other namespaces are left out."""
    own = access.who.namespaces(Role.USER)
    found: list[OpenTarget] = []
    for target in targets:
        theirs = [name for name in target.namespaces if own is None or name == "*" or name in own]
        if theirs and (own is None or own):
            found.append(target.model_copy(update={"namespaces": theirs}))
    return found

"""Alerts: the part of Alertmanager's API that Prometheus uses, and a test of those who are told."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Query

from gpu_platform.alerting.reports import MOST_IN_A_REQUEST, PostedAlert
from gpu_platform.client.wire import Page
from gpu_platform.domain.notifications import Delivery, NotificationTest
from service.context import ActorDep, ServiceContextDep, now
from service.http.exact_types import exactly
from service.http.off_loop import OffLoopRoute

PROMETHEUS = "/v1/alertmanager/api/v2/alerts"

router = APIRouter(tags=["alerts"], route_class=OffLoopRoute)


@router.post(PROMETHEUS)
async def take_alerts(
    alerts: Annotated[list[PostedAlert], Body(max_length=MOST_IN_A_REQUEST), exactly(list[PostedAlert])],
    context: ServiceContextDep,
) -> None:
    """Alerts from Prometheus, as Alertmanager takes them (`path_prefix: /v1/alertmanager`). Once this has answered,
    they are stored durably: the targets of `notifications` will be told."""
    await context.alerts.take(alerts, now())


@router.post("/v1/alerts:test")
async def send_test(
    context: ServiceContextDep,
    actor: ActorDep,
    target: Annotated[str | None, Query(max_length=40, description="Only this target of `notifications`")] = None,
) -> Page[Delivery]:
    """Send a test message to one target of `notifications`, or to all, and wait up to a minute for what comes of it."""
    return Page(items=await context.workflows.test_notifications(NotificationTest(target=target, actor=actor)))

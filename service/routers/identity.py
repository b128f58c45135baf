"""Certificates of machines: join tokens for operators, certificates for machines."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Request
from starlette.concurrency import run_in_threadpool

from gpu_platform.identity.enrolment import (
    Authorities,
    Enrollment,
    EnrollmentOrder,
    FirstCertificate,
    Issued,
    NextCertificate,
)
from service.context import ActorDep, ServiceContextDep, now
from service.http.machines import peer_of
from service.routers.hosts_and_gpus import HostName

router = APIRouter(prefix="/v1", tags=["identity"])


@router.post("/hosts/{name}/enroll")
def enroll_host(
    name: HostName,
    context: ServiceContextDep,
    actor: ActorDep,
    order: Annotated[EnrollmentOrder | None, Body()] = None,
) -> Enrollment:
    """A join token for the host: it works once, for this name only. Without TLS: the host's node token."""
    return context.issuer.order(name, order or EnrollmentOrder(), actor, now())


@router.delete("/hosts/{name}/identity", status_code=204)
def revoke_host(name: HostName, context: ServiceContextDep, actor: ActorDep) -> None:
    """Believe the host's certificates no more, and give it no new one, until it is enrolled again."""
    context.issuer.revoke(name, actor, now())


@router.get("/identity/authorities")
def authorities(context: ServiceContextDep) -> Authorities:
    """The authorities that sign this cluster's certificates. Public: a new machine compares them with its join
    token."""
    return Authorities(authorities=context.issuer.authorities())


@router.post("/identity/enroll")
def enroll(body: FirstCertificate, context: ServiceContextDep) -> Issued:
    """The first certificate of a machine, for a join token."""
    return context.issuer.first(body.identity, body.secret, body.request, now())


@router.post("/identity/renew")
async def renew(body: NextCertificate, context: ServiceContextDep, request: Request) -> Issued:
    """A new certificate in place of the one that the client shows."""
    peer = peer_of(request.scope)
    if peer is not None:
        await run_in_threadpool(context.revoked.check, peer.path)
    return await run_in_threadpool(context.issuer.next, peer, body.request, now())

"""Certificates of machines: join tokens for operators, certificates for machines."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Request
from starlette.concurrency import run_in_threadpool

from gpu_platform.domain.access.enrollment import Enrollment, EnrollmentOrder
from gpu_platform.domain.access.principal import Principal, PrincipalKind
from gpu_platform.domain.access.rules import AccessVerdict
from gpu_platform.identity import names
from gpu_platform.identity.certificates import Peer
from gpu_platform.identity.enrolment import (
    Authorities,
    FirstCertificate,
    Issued,
    NextCertificate,
)
from service.access.gate import Access
from service.context import AccessDep, ActorDep, ServiceContext, ServiceContextDep, now
from service.http.exact_types import exactly
from service.http.machines import peer_of
from service.routers.hosts_and_gpus import HostName

router = APIRouter(prefix="/v1", tags=["identity"])


@router.post("/hosts/{name}/enroll")
def enroll_host(
    name: HostName,
    context: ServiceContextDep,
    actor: ActorDep,
    order: Annotated[EnrollmentOrder | None, Body(), exactly(EnrollmentOrder)] = None,
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
def enroll(body: FirstCertificate, context: ServiceContextDep, access: AccessDep) -> Issued:
    """The first certificate of a machine, for a join token."""
    issued = context.issuer.first(body.identity, body.secret, body.request, now())
    access.note(AccessVerdict.ALLOWED, "first certificate", _machine(body.identity, "join token"))
    return issued


@router.post("/identity/renew")
async def renew(body: NextCertificate, context: ServiceContextDep, access: AccessDep, request: Request) -> Issued:
    """A new certificate in place of the one that the client shows."""
    return await run_in_threadpool(_renew, body, context, access, peer_of(request.scope))


def _renew(body: NextCertificate, context: ServiceContext, access: Access, peer: Peer | None) -> Issued:
    issued = context.issuer.next(peer, body.request, now())
    access.note(AccessVerdict.ALLOWED, "next certificate", None if peer is None else _machine(peer.path, "certificate"))
    return issued


def _machine(path: str, how: str) -> Principal:
    name = names.host_of(path)
    return Principal(PrincipalKind.PROCESS if name is None else PrincipalKind.NODE, name or path, signed_in_by=how)

"""Secrets of namespaces: names are listed, values are written and never read back. Hosts get them for their ranks."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Path, Query, Request

from gpu_platform.client.wire import Page
from gpu_platform.domain.access.roles import Role
from gpu_platform.domain.access.secrets import SecretInfo, SecretValue
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.secret_uses import LaunchSecrets
from gpu_platform.identity import names
from gpu_platform.store.access import secrets as stored
from service.access.gate import Access
from service.access.submissions import check_namespace
from service.context import AccessDep, ServiceContextDep, now
from service.http.machines import peer_of
from service.http.paging import Cursor, page_of
from service.operations import secrets
from service.routers.hosts_and_gpus import HostName
from service.routers.jobs import JobId

router = APIRouter(prefix="/v1")

_NAME = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
Namespace = Annotated[str, Path(description="Namespace of jobs", pattern=_NAME, examples=["lab"])]
SecretName = Annotated[str, Path(description="Name of the secret", pattern=_NAME, examples=["wandb-key"])]


@router.get("/secrets", tags=["secrets"])
def list_secrets(
    access: AccessDep,
    context: ServiceContextDep,
    namespace: Annotated[str | None, Query(description="Only of this namespace")] = None,
    cursor: Cursor = None,
) -> Page[SecretInfo]:
    """Secrets of the namespaces in which one may submit jobs, without their values."""
    found = stored.list_secrets(context.store, access.who.namespaces(Role.USER))
    return page_of([one for one in found if namespace in (None, one.namespace)], cursor, 1000)


@router.put("/secrets/{namespace}/{secret}", tags=["secrets"])
def set_secret(
    namespace: Namespace,
    secret: SecretName,
    value: Annotated[SecretValue, Body()],
    access: AccessDep,
    context: ServiceContextDep,
) -> SecretInfo:
    """Keep a value under this name. It is not returned, now or later. Only who made a secret, or an admin of the
    namespace, may replace it."""
    check_namespace(context.store, access, namespace)
    return secrets.set_secret(context, namespace, secret, value, access.actor, _may_replace(access))


@router.delete("/secrets/{namespace}/{secret}", status_code=204, tags=["secrets"])
def delete_secret(namespace: Namespace, secret: SecretName, access: AccessDep, context: ServiceContextDep) -> None:
    """Remove a secret. Ranks that have it keep it; jobs that start later do not get it and wait."""
    stored.delete_secret(
        context.store, namespace, secret, actor=access.actor, may_replace=_may_replace(access), now=now()
    )


@router.post("/hosts/{name}/attempts/{job_id}/{attempt}/secrets", tags=["node workers"])
def launch_secrets(
    name: HostName,
    job_id: JobId,
    attempt: Annotated[int, Path(ge=1, le=1_000_000)],
    context: ServiceContextDep,
    request: Request,
) -> LaunchSecrets:
    """The secrets and the job token of an attempt, for the node worker of a host on which it holds something."""
    context.revoked.check(f"{names.NODE}/{name}", peer_of(request.scope))
    return secrets.launch_secrets(context, AttemptKey(job_id=job_id, attempt=attempt), name)


def _may_replace(access: Access) -> stored.MayReplace:
    def may(found: SecretInfo) -> bool:
        return found.created_by == access.actor or access.who.has(Role.ADMIN, found.namespace)

    return may

"""Uploaded code: people send it in parts, hosts of its jobs fetch it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from gpu_platform.client.calls import UPLOAD_SIZE_HEADER
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.upload_limits import UPLOAD_PATTERN
from gpu_platform.domain.jobs.uploads import Upload
from gpu_platform.identity import names
from gpu_platform.store.uploads import UploadKey, UploadPart
from service.access.gate import Access
from service.access.submissions import check_namespace
from service.context import AccessDep, ServiceContextDep
from service.http.machines import peer_of
from service.operations import uploads
from service.routers.hosts_and_gpus import HostName
from service.routers.jobs import JobId
from service.routers.secrets import Namespace

router = APIRouter(prefix="/v1")

Hash = Annotated[str, Path(description="SHA-256 of the upload, in hexadecimal", pattern=UPLOAD_PATTERN)]
Offset = Annotated[int, Query(ge=0, lt=2**40, description="The first byte of the part")]
_BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


@router.get("/uploads/{namespace}/{sha256}", tags=["uploads"])
def get_upload(namespace: Namespace, sha256: Hash, access: AccessDep, context: ServiceContextDep) -> Upload:
    """How much of an upload you have in the namespace. Nothing, if you never sent it there."""
    check_namespace(context.store, access, namespace)
    return uploads.find(context, _key(namespace, sha256, access))


@router.put("/uploads/{namespace}/{sha256}", tags=["uploads"], openapi_extra={"requestBody": {"content": _BYTES}})
async def put_upload(
    namespace: Namespace,
    sha256: Hash,
    request: Request,
    access: AccessDep,
    context: ServiceContextDep,
    size_bytes: Annotated[int, Query(ge=1, lt=2**40, description="Size of the whole upload")],
    offset: Offset = 0,
) -> Upload:
    """Send a part of an upload, from its beginning to its end, at most 1 MiB each. May be repeated; continue at
    `received`. With the last part the whole is compared with its hash."""
    part = UploadPart(_key(namespace, sha256, access), offset, size_bytes, await request.body())
    await run_in_threadpool(check_namespace, context.store, access, namespace)
    return await run_in_threadpool(uploads.add, context, part, access.actor)


def _key(namespace: str, sha256: str, access: Access) -> UploadKey:
    return UploadKey(namespace, access.acting_as or access.user, sha256)


@router.get(
    "/hosts/{name}/attempts/{job_id}/{attempt}/upload",
    tags=["node workers"],
    response_class=Response,
    responses={200: {"content": _BYTES}},
)
def attempt_upload(
    name: HostName,
    job_id: JobId,
    attempt: Annotated[int, Path(ge=1, le=1_000_000)],
    context: ServiceContextDep,
    request: Request,
    offset: Offset = 0,
) -> Response:
    """A part of the code of an attempt, for the node worker of a host on which it holds something."""
    context.revoked.check(f"{names.NODE}/{name}", peer_of(request.scope))
    size, content = uploads.part_for_host(context, AttemptKey(job_id=job_id, attempt=attempt), name, offset)
    return Response(content, media_type="application/octet-stream", headers={UPLOAD_SIZE_HEADER: str(size)})

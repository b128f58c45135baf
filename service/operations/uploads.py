"""Uploaded code: taken in parts, checked as a whole, and given to the hosts that run a job with it."""

from __future__ import annotations

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import Forbidden, InvalidRequest, NotFound
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.jobs.upload_limits import CHUNK_BYTES
from gpu_platform.domain.jobs.uploads import Upload
from gpu_platform.observability import get_logger
from gpu_platform.store import Store, uploads
from gpu_platform.store.access import job_tokens
from gpu_platform.store.uploads import UploadKey, UploadLimits, UploadPart
from service.context import ServiceContext, now

log = get_logger(__name__)


def find(context: ServiceContext, key: UploadKey) -> Upload:
    """How much of the upload the user has there. Raises :class:`InvalidRequest` if all arrived, and is another one."""
    found = uploads.find_upload(context.store, key, _limit(context))
    if not found.complete and uploads.is_unchecked(context.store, key):
        # The service ended, or its disk was full, between the last part and the check. No part comes any more.
        uploads.complete(context.store, key)
        return found.model_copy(update={"complete": True})
    return found


def add(context: ServiceContext, part: UploadPart, actor: str) -> Upload:
    """Keep a part. With the last one the whole is checked. Raises :class:`InvalidRequest` and :class:`OverQuota`."""
    most = _limit(context)
    if part.size_bytes > most:
        raise InvalidRequest(
            f"the upload has {part.size_bytes / 1e6:,.1f} MB; the limit is {most / 1e6:,.1f} MB "
            "(service.uploads.max_mib): leave out what the job does not need (.gpuignore), or put data where the hosts "
            "find it",
            limit_bytes=most,
        )
    if len(part.content) > CHUNK_BYTES:
        raise InvalidRequest(f"a part has at most {CHUNK_BYTES} bytes, this one {len(part.content)}: send smaller ones")
    limits = UploadLimits(most, context.settings.service.uploads.namespace_mib << 20)
    found = uploads.add_part(context.store, part, limits, actor=actor, now=now())
    if found.received == part.size_bytes and not found.complete:
        uploads.complete(context.store, part.key)
        log.info(
            "upload.completed", namespace=part.key.namespace, sha256=part.key.sha256, bytes=part.size_bytes, actor=actor
        )
        return found.model_copy(update={"complete": True})
    return found


def check_upload(store: Store, spec: JobSpec, sender: str) -> None:
    """Note that the job uses its code. ``sender``: who submits it. Raises :class:`InvalidRequest` if neither has sent
    it to the job's namespace."""
    if spec.environment is not None and spec.environment.upload is not None:
        uploads.use_upload(store, UploadKey(spec.namespace, spec.user, spec.environment.upload), now(), sender)


def part_for_host(context: ServiceContext, key: AttemptKey, host: str, offset: int) -> tuple[int, bytes]:
    """The size of the code of an attempt, and a part of it, for a host on which the attempt holds something.

    Raises :class:`Forbidden` and :class:`NotFound`.
    """
    held = job_tokens.held_attempt(context.store, key, host)
    if held is None:
        raise Forbidden(f"attempt {key} holds nothing on host {host}, or has ended")
    environment = JobSpec.model_validate_json(held.spec).environment
    if environment is None or environment.upload is None:
        raise NotFound(f"job {key.job_id} has no uploaded code")
    return uploads.read_part(context.store, UploadKey(held.namespace, held.user, environment.upload), offset)


def _limit(context: ServiceContext) -> int:
    return context.settings.service.uploads.max_mib << 20

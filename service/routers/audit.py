"""The audit log, to read and to verify."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from gpu_platform.client.wire import Page
from gpu_platform.domain.audit import AuditRecord
from gpu_platform.store import audit
from service.context import ServiceContextDep
from service.http.times import Time

router = APIRouter(prefix="/v1/audit", tags=["audit"])


@router.get("")
def read_audit(
    context: ServiceContextDep,
    after: Annotated[int, Query(ge=0, lt=2**63, description="Only records with a higher number")] = 0,
    since: Annotated[Time | None, Query(description="Only records from then on; `after` wins")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
) -> Page[AuditRecord]:
    """Who asked for what, as whom, from where, and what was decided. Each record is hashed with the one before it."""
    if since is not None and not after:
        after = audit.first_since(context.store, since.timestamp()) - 1
    found = audit.read_records(context.store, after, limit)
    return Page(items=found, next_cursor=str(found[-1].seq) if len(found) == limit else None)

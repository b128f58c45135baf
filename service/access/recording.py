"""Decisions that people must be able to look up become events: who acted for whom, and who broke the glass."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy.orm import Session

from gpu_platform.domain.access.rules import Verdict
from gpu_platform.observability import get_logger
from gpu_platform.store import Store
from gpu_platform.store.database import writing
from gpu_platform.store.events import append_event
from service.access.decisions import Decision, Recorder

log = get_logger(__name__)


def event_recorder(store: Store) -> Recorder:
    """Returns a recorder that writes events of what is out of the ordinary, and logs refusals."""

    def record(decision: Decision) -> None:
        if not decision.verdict.is_allowed:
            log.info(
                "request refused",
                verdict=decision.verdict.value,
                route=decision.route,
                path=decision.path,
                principal=decision.principal.id if decision.principal else None,
                peer=decision.peer,
            )
        elif decision.verdict is Verdict.BROKE_GLASS or (decision.acting_as and decision.changes_something):
            _record(store, decision, datetime.now(UTC))

    return record


@writing
def _record(session: Session, decision: Decision, now: datetime) -> None:
    broke = decision.verdict is Verdict.BROKE_GLASS
    data = {"request": f"{decision.route.split(' ')[0]} {decision.path}", "peer": decision.peer}
    if broke:
        data["reason"] = decision.break_glass
    if decision.acting_as:
        data["as"] = decision.acting_as
    actor = decision.principal.actor if decision.principal else "anonymous"
    kind = "access.broke_glass" if broke else "access.acted_for"
    job_id = decision.subject.job_id if broke else None
    append_event(session, kind, actor, now, job_id=job_id, data=data)

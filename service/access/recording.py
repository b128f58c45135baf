"""Decisions are recorded: every one in the audit log; who acted for whom, and who broke the glass, also as events."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime

from sqlalchemy.orm import Session

from gpu_platform.domain.access.rules import AccessVerdict, Reach
from gpu_platform.domain.audit import AuditEntry
from gpu_platform.observability import get_logger
from gpu_platform.store import Store
from gpu_platform.store.database import writing
from gpu_platform.store.events import append_event
from service.access.decisions import AccessDecision, Recorder
from service.access.gate import Access
from service.audit_log import AuditLog

_LONGEST_PATH = 500
_OPENINGS_EVERY_S = 60.0
_MOST_OPENINGS = 10_000

log = get_logger(__name__)


def audit_recorder(log: AuditLog) -> Recorder:
    """Returns a recorder that writes every decision into the audit log.

    A request that changes something, or opens what is somebody else's, waits until that is on disk. Reports of hosts
    are written only if they are refused.
    """

    def record(decision: AccessDecision) -> None:
        allowed = decision.verdict.is_allowed
        of_node = decision.rule.reach is Reach.NODE
        if of_node and allowed:
            return  # reports of hosts
        entry = AuditEntry(
            at=datetime.now(UTC),
            actor=decision.principal.actor if decision.principal else "anonymous",
            acting_as=decision.acting_as,
            peer=decision.peer,
            action=decision.route,
            target=decision.path[:_LONGEST_PATH],
            verdict=decision.verdict.value,
            reason=decision.break_glass or decision.message or None,
            request_id=decision.request_id,
        )
        broke_glass = decision.verdict is AccessVerdict.BROKE_GLASS
        log.record(entry, wait=allowed and not of_node and (decision.changes_something or broke_glass))

    return record


def event_recorder(store: Store) -> Recorder:
    """Returns a recorder that writes events of what is out of the ordinary, and logs refusals."""

    def record(decision: AccessDecision) -> None:
        if not decision.verdict.is_allowed:
            log.info(
                "request.refused",
                verdict=decision.verdict.value,
                route=decision.route,
                path=decision.path,
                principal=decision.principal.id if decision.principal else None,
                peer=decision.peer,
            )
        elif decision.verdict is AccessVerdict.BROKE_GLASS or (decision.acting_as and decision.changes_something):
            _record(store, decision, datetime.now(UTC))

    return record


@writing
def _record(session: Session, decision: AccessDecision, now: datetime) -> None:
    broke = decision.verdict is AccessVerdict.BROKE_GLASS
    data = {"request": f"{decision.route.split(' ')[0]} {decision.path}", "peer": decision.peer}
    if broke:
        data["reason"] = decision.break_glass
    if decision.acting_as:
        data["as"] = decision.acting_as
    actor = decision.principal.actor if decision.principal else "anonymous"
    kind = "access.broke_glass" if broke else "access.acted_for"
    job_id = decision.subject.job_id if broke else None
    append_event(session, kind, actor, now, job_id=job_id, data=data)


class Openings:
    """Writes down whose payloads in Temporal somebody read. Called in threads.

    The Temporal UI asks for each payload alone: who reads a workflow is written down once a minute.
    """

    def __init__(self, audit_log: AuditLog) -> None:
        self._audit_log = audit_log
        self._noted: dict[tuple[str, str], float] = {}

    def note(self, access: Access, peer: str | None, request_id: str | None, workflows: Iterable[str]) -> None:
        """Wait until it is on disk. Raises :class:`Unavailable` if it cannot be written."""
        now = time.monotonic()
        for workflow in workflows:
            key = (access.who.id, workflow)
            if now - self._noted.get(key, float("-inf")) < _OPENINGS_EVERY_S:
                continue
            entry = AuditEntry(
                at=datetime.now(UTC),
                actor=access.who.actor,
                acting_as=access.acting_as,
                peer=peer,
                action="read payloads in Temporal",
                target=f"workflow {workflow}"[:_LONGEST_PATH],
                verdict=access.verdict.value,
                request_id=request_id,
            )
            self._audit_log.record(entry, wait=True)
            if len(self._noted) >= _MOST_OPENINGS:
                self._noted.clear()
            self._noted[key] = now

"""Heartbeats of many hosts in one transaction.

A heartbeat is *quiet* if it changes nothing about its host. It only renews the lease. If its round number is too old,
it does not even do that. In a healthy cluster nearly all heartbeats are quiet. The others are written one by one
(``reports.renew_lease``), so that an error of one host stays with it. Heartbeats with an old round count as quiet too:
after a slow time every host sends one, and writing them one by one would keep the service slow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.hosts.lease import Heartbeat, LeaseAnswer, rhythm
from gpu_platform.domain.hosts.lease_protocol import LeaseTimes, renews
from gpu_platform.domain.hosts.protocol import PROTOCOL
from gpu_platform.domain.states import HostState
from gpu_platform.store.database import writing_unsynced
from gpu_platform.store.hosts.reports import checkpoints_text, telemetry_text
from gpu_platform.store.leadership import membership
from gpu_platform.store.models import allocation, host, leader
from gpu_platform.store.restoring.restoring import judge


@writing_unsynced
def renew_quiet(
    session: Session, beats: Sequence[Heartbeat], *, ttl_s: float, now: datetime
) -> list[LeaseAnswer | None]:
    """Renew the leases of all hosts whose heartbeat is quiet. None: this heartbeat is not, and nothing was written."""
    rows: dict[str, Any] = {
        row.name: row for row in session.execute(_LOCKED, {"names": sorted({beat.name for beat in beats})})
    }
    twice = {name for name, times in Counter(beat.name for beat in beats).items() if times > 1}
    current = session.scalar(_ROUND) or 0
    if newer := [beat for beat in beats if beat.round > current]:  # proves that this database is an older one
        judge(session, max(beat.round for beat in newer), (), now, of=[beat.name for beat in newer])
    held = _held(session, beats)
    times = LeaseTimes.of(ttl_s)
    quiet = [
        beat
        for beat in beats
        if beat.name not in twice
        and (row := rows.get(beat.name)) is not None
        and _is_quiet(beat, row)
        and held.issuperset((beat.name, key.job_id, key.attempt) for key in beat.attempts)
    ]
    version = membership.current_version(session)
    renewed = {beat.name for beat in quiet if renews(times, beat.round, current)}
    for (renews_it, with_telemetry), statement in _STATEMENTS.items():
        written = [
            _heard(beat, version) | (_lease(beat, ttl_s, now) if renews_it else {})
            for beat in quiet
            if (beat.name in renewed, beat.telemetry is not None) == (renews_it, with_telemetry)
        ]
        if written:
            session.execute(statement, written)
    lists = _Lists(session, version, ttl_s)
    answers = {
        beat.name: _answer(beat, rows[beat.name], current, lists, ttl_s, renewed=beat.name in renewed) for beat in quiet
    }
    return [None if beat.name in twice else answers.get(beat.name) for beat in beats]


def _is_quiet(beat: Heartbeat, row: Any) -> bool:
    return (
        bool(beat.facts)
        and row.facts_hash == beat.facts
        and beat.seq > row.report_seq
        and row.state != HostState.LOST
        and not row.by_temporal
        and not beat.degraded
        and row.degraded == "{}"
        and row.checkpoints == checkpoints_text(beat)
    )


def _held(session: Session, beats: Sequence[Heartbeat]) -> set[tuple[str, str, int]]:
    """Host, job and attempt, for what the database gives GPUs on the hosts that run something."""
    busy = sorted({beat.name for beat in beats if beat.attempts})
    return {(row.host, row.job_id, row.attempt) for row in session.execute(_HELD, {"names": busy})} if busy else set()


def _lease(beat: Heartbeat, ttl_s: float, now: datetime) -> dict[str, Any]:
    return {"new_lease_until": now + timedelta(seconds=beat.lease_s or ttl_s), "new_lease_s": beat.lease_s}


def _heard(beat: Heartbeat, version: int) -> dict[str, Any]:
    telemetry = {} if beat.telemetry is None else {"new_telemetry": telemetry_text(beat.telemetry)}
    return telemetry | {
        "host_name": beat.name,
        "new_report_seq": beat.seq,
        "new_round": beat.round,
        "new_voted": beat.voted,
        "new_members_known": beat.members_version,
        # Written down before the host gets the list: it may act on it as soon as it has it.
        "new_members_sent": version,
    }


class _Lists:
    """The list of members of this version, for hosts that know an older one."""

    def __init__(self, session: Session, version: int, ttl_s: float) -> None:
        self._session = session
        self.version = version
        self._news: dict[int, dict[str, Any]] = {}
        self.rhythm = rhythm(ttl_s, membership.count(session))

    def since(self, known: int) -> dict[str, Any]:
        """The fields of the answer to a host that knows the list ``known``."""
        if known not in self._news:
            self._news[known] = membership.news(self._session, known, self.version)
        return self._news[known]


def _answer(beat: Heartbeat, row: Any, current: int, lists: _Lists, ttl_s: float, *, renewed: bool) -> LeaseAnswer:
    return LeaseAnswer(
        protocol=PROTOCOL,
        ttl_s=ttl_s,
        online_ms=None if row.online_at is None else int(row.online_at.timestamp() * 1000),
        draining=row.cordoned,
        renewed=renewed,
        round=current,
        term=row.term,
        members_version=lists.version,
        **lists.rhythm,
        **lists.since(beat.members_version),
    )


# ---- the statements, compiled once ----

_NAMES = bindparam("names", expanding=True)
_LOCKED = (
    select(
        host.c.name,
        host.c.state,
        host.c.cordoned,
        host.c.facts_hash,
        host.c.report_seq,
        host.c.by_temporal,
        host.c.degraded,
        host.c.checkpoints,
        host.c.online_at,
        host.c.term,
    )
    .where(host.c.name.in_(_NAMES))
    .order_by(host.c.name)
    # Whoever waits for one host must not make all others wait: a locked one is written alone.
    .with_for_update(key_share=True, skip_locked=True)
)
_HELD = (
    select(allocation.c.host, allocation.c.job_id, allocation.c.attempt)
    .where(allocation.c.host.in_(_NAMES), allocation.c.released_at.is_(None), allocation.c.lost_at.is_(None))
    .distinct()
)
_ROUND = select(leader.c.round)
_HEARD = ("report_seq", "round", "voted", "members_known", "members_sent")
_LEASE = ("lease_until", "lease_s")
_TELEMETRY = ("telemetry",)
_STATEMENTS = {
    (renews_it, with_telemetry): update(host)
    .where(host.c.name == bindparam("host_name"))
    .values({name: bindparam(f"new_{name}") for name in (*_HEARD, *_LEASE * renews_it, *_TELEMETRY * with_telemetry)})
    for renews_it in (True, False)
    for with_telemetry in (True, False)
}
"""(It renews the lease, it brings telemetry) -> the statement."""

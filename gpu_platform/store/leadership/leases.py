"""Leases as the leader sees them: rounds, silent hosts, and hosts that are LOST."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import bindparam, case, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.contracts import AttemptKey, jobs_by_attempt
from gpu_platform.domain.hosts.lease import ServicesAway, VerdictHeld
from gpu_platform.domain.hosts.lease_protocol import LeaseRow
from gpu_platform.domain.states import HostState
from gpu_platform.store.database import change, reading, writing, writing_unsynced
from gpu_platform.store.events import append_event
from gpu_platform.store.leadership import membership
from gpu_platform.store.models import allocation, host, leader
from gpu_platform.store.transitions import next_state

NO_TERM = -1


@dataclass(frozen=True, slots=True)
class LostHost:
    """A host that was declared LOST, and the jobs that must run elsewhere."""

    name: str
    jobs: list[AttemptKey] = field(default_factory=list)
    """The attempts that held GPUs there when it was lost, and still do."""
    is_proved: bool = False
    """Its ranks are known to be dead, or an operator declared it LOST."""


@dataclass(frozen=True, slots=True)
class Leases:
    """The leases of all hosts, as one read of the database found them."""

    rows: dict[str, LeaseRow]
    """The lease of each host that is not LOST."""
    stamps: dict[str, datetime]
    members: dict[int, frozenset[str]]
    """Version -> its members: the newest version, and each older one that a host may still know."""
    older_seen_at: datetime | None = None
    """When the database was last found to be older than what hosts or Temporal know."""
    by_temporal: int = 0
    """How many of these hosts report through Temporal."""


@writing_unsynced
def begin_round(session: Session, now: datetime, after: int = 0) -> int:
    """Begin a round: a new number, which the answers to hosts carry from now on; 0 before the first leader. Hosts that
    have joined meanwhile become members.

    At least the Unix time, and more than ``after``, the caller's newest round: a database that was restored to an older
    point, also while the same leader goes on, does not give the same number twice. Who heard a round would count as
    having heard another one, and his vote between them as none.
    """
    number = max((session.scalar(_ROUND) or 0) + 1, int(now.timestamp()), after + 1)
    membership.catch_up(session)
    return number if change(session, update(leader).values(round=number)) else 0


@reading
def read_leases(session: Session, ttl_s: float) -> Leases:
    """Read all leases. ``ttl_s``: seconds that a lease lasts."""
    rows = session.execute(_LEASES).all()
    newest = membership.current_version(session)
    wanted = {row.name: {row.members_known, row.members_sent, newest} for row in rows}
    # A list that is gone is known to no host that is not LOST.
    members = membership.names(session, {newest}.union(*wanted.values()))
    leases = {
        row.name: LeaseRow(
            stamp=row.lease_until,
            ttl_s=row.lease_s or ttl_s,
            round=row.round,
            voted=row.voted,
            versions=tuple(sorted(wanted[row.name] & members.keys())),
            counts_rounds=row.report_seq > 0,
        )
        for row in rows
    }
    older_seen_at = session.scalar(select(leader.c.older_seen_at))
    by_temporal = sum(row.by_temporal for row in rows)
    return Leases(leases, {row.name: row.lease_until for row in rows}, members, older_seen_at, by_temporal)


@writing
def expire_leases(session: Session, leases: Mapping[str, datetime], now: datetime) -> list[LostHost]:
    """Declare these hosts LOST unless they have reported since their leases were read.

    Returns the LOST hosts with the attempts whose jobs must run elsewhere.
    """
    if not leases:
        return []
    rows = session.execute(_LEASES.where(host.c.name.in_(leases)).with_for_update(key_share=True)).all()
    lost = [row.name for row in rows if row.lease_until == leases[row.name]]
    found = [lose(session, name, "its lease ended", "control", now) for name in lost]
    if found:
        membership.refresh(session)
    return found


def lose(session: Session, name: str, reason: str, actor: str, now: datetime, *, declared: bool = False) -> LostHost:
    """Inside a transaction, before :func:`membership.refresh`: the host is LOST, and so is what attempts hold there."""
    since = first_term(now)
    term = case((host.c.term >= since, host.c.term + 1), else_=since)
    is_lost = next_state(host.c.state, dict.fromkeys(HostState, HostState.LOST))
    values = {"state": is_lost, "reason": reason, "term": term, "declared_lost": declared}
    session.execute(_UPDATE_HOST.values(values), {"host_name": name})
    session.execute(_MARK_LOST, {"host_name": name, "now": now})
    rows = session.execute(ATTEMPTS_AT_HOST, {"host_name": name})
    jobs = [AttemptKey(job_id=row.job_id, attempt=row.attempt) for row in rows]
    data = {"reason": reason, "attempts": [str(key) for key in jobs]}
    append_event(session, "host.lost", actor, now, host=name, data=data)
    return LostHost(name, jobs, is_proved=declared)


def first_term(now: datetime) -> int:
    """The term of a host that registers ``now``; see ``HostRecord.term``."""
    return int(now.timestamp())


@reading
def lost_hosts_with_attempts(session: Session) -> list[LostHost]:
    """Hosts that were LOST under attempts which still hold GPUs there: their jobs may have missed the signal."""
    query = (
        select(allocation.c.host, allocation.c.job_id, allocation.c.attempt, host.c.state, host.c.declared_lost)
        .join(host, host.c.name == allocation.c.host)
        .where(allocation.c.released_at.is_(None), allocation.c.lost_at.is_not(None))
        .distinct()
        .order_by(allocation.c.host, allocation.c.job_id, allocation.c.attempt)
    )
    found: dict[str, LostHost] = {}
    for row in session.execute(query):
        # A host that is in service again has reported that none of these attempts is left there.
        proved = row.declared_lost or row.state != HostState.LOST
        lost = found.setdefault(row.host, LostHost(row.host, is_proved=proved))
        lost.jobs.append(AttemptKey(job_id=row.job_id, attempt=row.attempt))
    return list(found.values())


@writing
def hold_verdict(session: Session, held: VerdictHeld, now: datetime) -> None:
    """Write down that silent hosts are not declared LOST now. The first time, write an event as well."""
    before = session.scalar(_HELD)
    session.execute(update(leader).values(verdict_held=held.model_dump_json()))
    if not before:
        append_event(session, "hosts.verdict_held", "control", now, data=held.model_dump(mode="json"))


@writing
def end_held_verdict(session: Session, now: datetime) -> None:
    """Silent hosts are declared LOST again. An event, if they were not until now."""
    before = session.scalar(_HELD)
    if before:
        session.execute(update(leader).values(verdict_held=""))
        append_event(session, "hosts.verdict_resumed", "control", now, data=json.loads(before))


@reading
def held_verdict(session: Session) -> VerdictHeld | None:
    """Why the leader does not declare silent hosts LOST now: too many are silent at once. None: it does."""
    held = session.scalar(_HELD)
    return VerdictHeld.model_validate_json(held) if held else None


@reading
def services_away(session: Session) -> ServicesAway | None:
    """Which hosts report through Temporal, because no service answers them. None: none does."""
    names = session.scalars(_BY_TEMPORAL).all()
    return ServicesAway(hosts=list(names)) if names else None


def host_terms(session: Session, key: AttemptKey, names: Sequence[str]) -> dict[str, int]:
    """Inside a transaction in which the attempt holds its place: the fencing token of each host; see ``HostPlan.term``.

    A host that was LOST since the place was reserved gets a term that no host has.
    """
    return terms_of_attempts(session, {key: names})[key]


def terms_of_attempts(session: Session, places: Mapping[AttemptKey, Sequence[str]]) -> dict[AttemptKey, dict[str, int]]:
    """As :func:`host_terms`, for several attempts and the hosts of each."""
    lost = {
        (AttemptKey(job_id=row.job_id, attempt=attempt), row.host)
        for attempt, job_ids in jobs_by_attempt(places).items()
        for row in session.execute(_LOST_UNDER, {"key_jobs": job_ids, "key_attempt": attempt})
    }
    terms = current_terms(session, {name for names in places.values() for name in names})
    return {
        key: {name: NO_TERM if (key, name) in lost else terms[name] for name in names if name in terms}
        for key, names in places.items()
    }


def current_terms(session: Session, names: Collection[str]) -> dict[str, int]:
    """The fencing token of each of these hosts now."""
    return {row.name: row.term for row in session.execute(_TERMS, {"names": list(names)})}


_LEASES = (
    select(
        host.c.name,
        host.c.lease_until,
        host.c.lease_s,
        host.c.round,
        host.c.voted,
        host.c.by_temporal,
        host.c.report_seq,
        host.c.members_known,
        host.c.members_sent,
    )
    .where(host.c.state != HostState.LOST.value)
    .order_by(host.c.name)
)
_BY_TEMPORAL = select(host.c.name).where(host.c.by_temporal, host.c.state != HostState.LOST.value).order_by(host.c.name)
_TERMS = select(host.c.name, host.c.term).where(host.c.name.in_(bindparam("names", expanding=True)))
_UPDATE_HOST = update(host).where(host.c.name == bindparam("host_name"))
_AT_HOST = (allocation.c.host == bindparam("host_name")) & allocation.c.released_at.is_(None)
_MARK_LOST = update(allocation).where(_AT_HOST, allocation.c.lost_at.is_(None)).values(lost_at=bindparam("now"))
ATTEMPTS_AT_HOST = (
    select(allocation.c.job_id, allocation.c.attempt)
    .where(_AT_HOST)
    .distinct()
    .order_by(allocation.c.job_id, allocation.c.attempt)
)
_LOST_UNDER = select(allocation.c.job_id, allocation.c.host).where(
    allocation.c.job_id.in_(bindparam("key_jobs", expanding=True)),
    allocation.c.attempt == bindparam("key_attempt"),
    allocation.c.released_at.is_(None),
    allocation.c.lost_at.is_not(None),
)
_ROUND = select(leader.c.round)
_HELD = select(leader.c.verdict_held)

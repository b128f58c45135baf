"""Jobs of which Temporal knows more than this database: it was lost, or restored to an older point.

What a workflow still knows of its job (specification, attempt, placement, how it ended) becomes its row again, and what
the attempt runs on is reserved again. Until the leader has compared both, nothing is placed, ranks of attempts that
only a later state of this database can know are spared, and hosts with ranks that hold nothing are LOST. What only this
database knew is gone: idempotency keys, events and usage.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pydantic import BaseModel
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.array_ids import array_of, index_of
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.job import Failure, JobProgress
from gpu_platform.domain.jobs.notify import as_column
from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.store.database import insert_new, reading, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.jobs.job_states import JobUpdate, change_job, lock_job
from gpu_platform.store.leadership import membership
from gpu_platform.store.models import JobRecord, host, job, leader, reservation
from gpu_platform.store.reservations.attempts import set_running
from gpu_platform.store.reservations.releasing import close_reservation
from gpu_platform.store.reservations.reserving import announce, take_gpus, take_jobs
from gpu_platform.store.restoring.older_rows import RESTORED, newer, pass_through, raise_attempt
from gpu_platform.store.restoring.orphans import JobRow

SPARED_FOR = timedelta(seconds=60)
"""From the beginning of a leader's term, or from a host's proof: so long the leader looks for jobs to restore."""
SHOWN_FOR = timedelta(days=1)
_PROVED_AGAIN = timedelta(seconds=10)


@dataclass(frozen=True)
class RememberedJob:
    """The state of a job as its workflow knows it."""

    job_id: str
    spec: JobSpec
    state: JobState
    progress: JobProgress
    placement: Placement | None
    """The placement of attempt ``progress.attempt``. None: the job waits, or has ended."""
    created_at: datetime
    exit_code: int | None = None
    failure: Failure | None = None
    displaced: bool = False
    """That attempt had its place, which is somebody else's by now: it is over, and the job waits."""


class RestoreNote(BaseModel):
    """A restore, as ``/readyz`` and ``status`` show it."""

    since: datetime
    last_at: datetime
    jobs: int = 0
    written_until: datetime | None = None
    """A leader began to compare the database with Temporal, and did not end: what was written later may be missing."""
    compared_for: datetime | None = None
    """The newest proof (``older_seen_at``) after which a leader compared all jobs."""

    @property
    def message(self) -> str:
        """What people read of it."""
        count = "1 job was" if self.jobs == 1 else f"{self.jobs} jobs were"
        return (
            f"the database was lost or restored to an older point (noticed {self.since:%Y-%m-%d %H:%M} UTC): {count} "
            "restored from Temporal. Idempotency keys, events, usage, drains, GPUs taken offline, service cases and "
            "jobs that Temporal had forgotten are gone; the events job.restored name the jobs. This is shown for a day"
        )


@reading
def rows_of(session: Session, job_ids: Collection[str]) -> dict[str, JobRow]:
    """Job id -> row, for the jobs that have one."""
    return _rows(session, job_ids)


@reading
def older_seen_at(session: Session) -> datetime | None:
    """When a host, or Temporal, last knew more than this database. None: never."""
    return session.scalar(select(leader.c.older_seen_at))


@reading
def last_restore(session: Session, now: datetime) -> RestoreNote | None:
    """The last restore, as long as it is shown; None: there is none to show."""
    note = _note(session)
    return note if note is not None and note.jobs and now - note.last_at < SHOWN_FOR else None


@writing
def note_older(session: Session, now: datetime) -> None:
    """Write down that Temporal knows more than this database."""
    session.execute(update(leader).values(older_seen_at=now))


@writing
def begin_comparing(session: Session, written_until: datetime, now: datetime) -> datetime | None:
    """A leader begins to compare the database with Temporal. ``written_until``: when the database was last written.

    Returns the ``written_until`` of the first leader that began this and did not come to its end.
    """
    note = _note(session) or RestoreNote(since=now, last_at=now)
    if note.written_until is None:
        _write_note(session, note.model_copy(update={"written_until": written_until}))
    return note.written_until


@writing
def end_comparing(session: Session, proved_at: datetime | None, now: datetime) -> None:
    """Write down that every job of which Temporal knew more has been restored. ``proved_at``: the newest proof that the
    leader knew of before it compared. None: there was none."""
    note = _note(session) or RestoreNote(since=now, last_at=now)
    _write_note(session, note.model_copy(update={"written_until": None, "compared_for": proved_at}))


@writing
def note_restored(session: Session, jobs: int, now: datetime) -> None:
    """Add ``jobs`` to the restore under way, or begin a new one."""
    before = _note(session) or RestoreNote(since=now, last_at=now)
    if not before.jobs or now - before.last_at > SPARED_FOR:
        before = before.model_copy(update={"since": now, "jobs": 0})
    _write_note(session, before.model_copy(update={"last_at": now, "jobs": before.jobs + jobs}))


@dataclass(frozen=True)
class StaleAttempts:
    """Attempts that run on a host but hold nothing there."""

    kill: Sequence[AttemptKey] = ()
    spare: Sequence[AttemptKey] = ()
    """They may be restored soon."""
    keep_out: bool = False
    """The host gets no jobs while there are any: what they run on looks free."""


def judge(
    session: Session, echoed_round: int, stale: Sequence[AttemptKey], now: datetime, *, of: Collection[str]
) -> StaleAttempts:
    """Inside a transaction: what to do with ``stale``, the attempts that hold nothing at the host that reports them.

    ``echoed_round``: the round of the host's report. One that this database has not given yet proves that it is older:
    for the host itself at once, and for all if a second host says so, too, since one may lie. ``of``: the hosts that
    bring back this round, or also a newer one.
    """
    columns = (leader.c.since, leader.c.round, leader.c.older_seen_at, leader.c.restored)
    row = session.execute(select(*columns)).one_or_none()
    if row is None:  # no leader has begun: this database may be a new one
        return _judged(session, stale, is_older=False)
    seen_at = row.older_seen_at
    says_so = echoed_round > row.round
    if says_so and (seen_at is None or now - seen_at > _PROVED_AGAIN) and _is_proved(session, row.round, of):
        seen_at = now
        session.execute(update(leader).values(older_seen_at=now))
    if not stale:
        return StaleAttempts()
    if says_so:
        return _judged(session, stale, is_older=True)
    note = _parse_note(row.restored)
    no_leader_yet = seen_at is not None and row.since < seen_at and (note is None or note.compared_for != seen_at)
    recent = now - max(row.since, seen_at or row.since) <= SPARED_FOR
    if not (recent or no_leader_yet or _compares(note)):
        return StaleAttempts(kill=stale)
    return _judged(session, stale, is_older=seen_at is not None and (no_leader_yet or now - seen_at <= SPARED_FOR))


def _is_proved(session: Session, newest_round: int, of: Collection[str]) -> bool:
    """Do two hosts bring back newer rounds? In a cluster of one or two hosts one is enough."""
    others = session.scalar(
        select(func.count()).select_from(host).where(host.c.round > newest_round, host.c.name.not_in(of))
    )
    return len(of) + (others or 0) >= min(2, max(1, membership.count(session) - 1))


def _judged(session: Session, stale: Sequence[AttemptKey], *, is_older: bool) -> StaleAttempts:
    spare = newer(session, stale) if stale else []
    return StaleAttempts([key for key in stale if key not in spare], spare, keep_out=bool(spare) or is_older)


def _compares(note: RestoreNote | None) -> bool:
    """Has a leader begun to compare the database with Temporal, and not ended?"""
    return note is not None and note.written_until is not None


@writing
def restore_job(session: Session, found: RememberedJob, now: datetime) -> bool:
    """Write the job's row, or bring it up to date: QUEUED, or RUNNING with its reservation, or as it ended.

    False: the row is not behind. Raises :class:`ReservationConflict`, with nothing changed, while its hosts have not
    registered yet, or when another attempt holds a GPU of it.
    """
    progress = found.progress
    over = progress.attempt if found.displaced or found.state.is_terminal else max(0, progress.attempt - 1)
    counters = {
        "user_retries": progress.user_retries,
        "hardware_retries": progress.hardware_retries,
        "preemptions": progress.preemptions,
    }
    if _insert(session, found, over, counters, now):
        for attempt in range(1, over + 1):  # none of them can reserve any more
            close_reservation(session, AttemptKey(job_id=found.job_id, attempt=attempt), now)
    else:
        row = lock_job(session, found.job_id)
        if not _is_behind(session, row, found):
            return False
        if JobState(row.state).holds_gpus and row.attempt == progress.attempt and found.state.holds_gpus:
            set_running(session, [AttemptKey(job_id=found.job_id, attempt=progress.attempt)], now)
            return True
        raise_attempt(session, row, over, now, **counters)
    if found.state.is_terminal:
        _end(session, found, now)
    elif found.placement is not None:
        _restore_place(session, found, found.placement, now)
    return True


def _note(session: Session) -> RestoreNote | None:
    return _parse_note(session.scalar(select(leader.c.restored)))


def _parse_note(text: str | None) -> RestoreNote | None:
    return RestoreNote.model_validate_json(text) if text else None


def _write_note(session: Session, note: RestoreNote) -> None:
    session.execute(update(leader).values(restored=note.model_dump_json()))


def _insert(session: Session, found: RememberedJob, attempt: int, counters: dict[str, int], now: datetime) -> bool:
    row = {
        "id": found.job_id,
        "state": JobState.QUEUED.value,
        "attempt": attempt,
        "namespace": found.spec.namespace,
        "user": found.spec.user,
        "name": found.spec.name,
        "priority": found.spec.priority,
        "kind": found.spec.kind,
        "created_at": found.created_at,
        "queued_at": found.created_at,
        "state_at": now,
        "spec": found.spec.model_dump_json(),
        "notify": None if array_of(found.job_id) else as_column(found.spec.notify),
        "array_id": array_of(found.job_id),
        "array_index": None if array_of(found.job_id) is None else index_of(found.job_id),
        **counters,
    }
    if not insert_new(session, job, row):
        return False
    data = {"name": found.spec.name, "state": found.state.value, "reason": "only Temporal knew it"}
    append_event(session, RESTORED, "scheduler", now, job_id=found.job_id, data=data)
    return True


def _is_behind(session: Session, row: JobRecord, found: RememberedJob) -> bool:
    """Does the workflow know more than the row? A healthy row is written before its workflow goes on, so it never is.

    The row was read after the workflow was asked: what it says of this attempt, or of a later one, is newer.
    """
    state, attempt = JobState(row.state), row.attempt
    wanted = found.progress.attempt
    if state.is_terminal:
        return False
    if found.state.is_terminal:
        return True
    if attempt > wanted:
        return False
    if attempt == wanted:
        return found.state is JobState.RUNNING and state in (JobState.ALLOCATED, JobState.STARTING)
    if found.placement is None and not found.displaced:
        return state is not JobState.QUEUED
    which = (reservation.c.job_id == found.job_id) & (reservation.c.attempt == wanted)
    return session.scalar(select(reservation.c.attempt).where(which)) is None


def _end(session: Session, found: RememberedJob, now: datetime) -> None:
    """A row that waits becomes what its workflow ended as, without the states in between."""
    row = lock_job(session, found.job_id)
    update = JobUpdate(failure=found.failure, exit_code=found.exit_code, attempt=found.progress.attempt)
    if found.state is JobState.COMPLETED:
        steps = [JobState.ALLOCATED, JobState.RUNNING]  # COMPLETED may follow no other
        pass_through(session, found.job_id, JobState(row.state), steps)
        row = lock_job(session, found.job_id)
    data = update.event_data() | {"reason": "Temporal knew its end"}
    change_job(session, row, found.state, now, "scheduler", update.columns(), data)


def _restore_place(session: Session, found: RememberedJob, placement: Placement, now: datetime) -> None:
    key = AttemptKey(job_id=found.job_id, attempt=found.progress.attempt)
    row = {"job_id": key.job_id, "attempt": key.attempt, "epoch": placement.epoch, "reserved_at": now}
    insert_new(session, reservation, row)
    take_jobs(session, {key: placement}, now)
    take_gpus(session, {key: placement}, now, on_lost_hosts=True)
    announce(session, key, placement, now)
    if found.state is JobState.RUNNING:
        set_running(session, [key], now)


def _rows(session: Session, job_ids: Collection[str]) -> dict[str, JobRow]:
    found: dict[str, JobRow] = {}
    ordered = sorted(job_ids)
    for begin in range(0, len(ordered), 500):
        query = select(job.c.id, job.c.state, job.c.attempt, job.c.state_at)
        for row in session.execute(query.where(job.c.id.in_(ordered[begin : begin + 500]))):
            found[row.id] = JobRow(row.id, JobState(row.state), row.attempt, row.state_at)
    return found

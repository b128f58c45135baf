"""What the follower of notices finds in the feed, on both databases."""

from __future__ import annotations

from typing import Any

from gpu_platform.domain.jobs.notify import NotifyOn
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.notices import RunningAttempt, Undelivered
from gpu_platform.domain.notifications import OpenTarget, OpenTargets
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.database import writing
from gpu_platform.store.events import last_seq, read_events
from gpu_platform.store.jobs import notices
from gpu_platform.store.jobs.job_states import change_job, lock_job
from gpu_platform.store.jobs.jobs import submit_job
from tests.support.store_cluster import NOW

OPENED = OpenTargets(targets=[OpenTarget(name="team", kind="json", namespaces=["*"])])


def submit(store: Store, job_id: str, *on: str) -> None:
    notify = [{"events": on, "target": "team"}] if on else []
    spec = JobSpec.model_validate({"command": ["x"], "notify": notify})
    submit_job(store, job_id, spec, actor="ada", now=NOW)


@writing
def cancel(session: Any, job_id: str) -> None:
    change_job(session, lock_job(session, job_id), JobState.CANCELLED, NOW, "control")


def test_only_what_somebody_wants_to_hear_is_found_and_only_after_the_first_follower_began(store: Store) -> None:
    submit(store, "j-before", "end")
    cancel(store, "j-before")
    assert notices.position(store) is None
    seq = notices.begin(store, OPENED)
    assert notices.open_targets(store) == OPENED
    for job_id, on in (("j-silent", ()), ("j-start", ("start",)), ("j-end", ("end", "fail"))):
        submit(store, job_id, *on)
        cancel(store, job_id)
    found = notices.look(store, seq)
    [happened] = found.happened
    assert (happened.of.id, happened.on) == ("j-end", frozenset({NotifyOn.END}))
    assert found.seq == found.last == last_seq(store)
    notices.advance(store, found.seq)
    notices.advance(store, seq)
    assert notices.position(store) == found.seq, "a follower that was replaced does not move it back"
    assert notices.look(store, found.seq).happened == []
    assert notices.begin(store, OPENED) == found.seq, "the next follower goes on there"


def test_a_long_feed_is_read_in_pieces_and_none_is_left_out(store: Store) -> None:
    seq = notices.begin(store, OPENED)
    wanted = [f"j-{number}" for number in range(7)]
    for job_id in wanted:
        submit(store, job_id, "end")
        cancel(store, job_id)
    found: list[str] = []
    old = notices.MOST_AT_ONCE
    notices.MOST_AT_ONCE = 3
    try:
        while seq < last_seq(store):
            look = notices.look(store, seq)
            found += [one.of.id for one in look.happened]
            seq = look.seq
    finally:
        notices.MOST_AT_ONCE = old
    assert found == wanted


def test_an_event_says_who_was_not_told_of_jobs_that_are_there(store: Store) -> None:
    submit(store, "j-1", "end")
    given = Undelivered(target="team", reason="503", jobs=["j-1", "j-gone"])
    notices.note_undelivered(store, given, NOW)
    [event] = [one for one in read_events(store, 0) if one.kind == notices.NOT_DELIVERED]
    assert (event.job_id, event.data) == ("j-1", {"target": "team", "reason": "503"})
    assert not notices.runs(store, RunningAttempt(job_id="j-1", attempt=1))
    notices.withdraw_targets(store)
    assert notices.open_targets(store) == OpenTargets()

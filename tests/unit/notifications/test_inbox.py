"""What one user is told: every notice once, in few messages, whatever order things happen in."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from gpu_platform.domain.jobs.notify import NotifyOn
from gpu_platform.domain.notices import Notice
from gpu_platform.notifications.inbox import HOUR, MOST_DESTINATIONS, MOST_WAITING, Inbox
from gpu_platform.notifications.job_notices import MOST_LINES, message_of

NOW = datetime(2026, 12, 1, 8, tzinfo=UTC)


def notice(number: int, target: str = "team", due_at: datetime | None = None) -> Notice:
    said = f"j-{number} (train) is FAILED"
    terms = {"on": NotifyOn.FAIL, "at": NOW, "title": said, "line": said, "body": said, "tone": "failure"}
    return Notice(id=f"{target}-{number}", job_id=f"j-{number}", target=target, due_at=due_at, **terms)


@given(st.lists(st.tuples(st.sampled_from(["take", "again", "send", "hour"]), st.integers(0, 2)), max_size=60))
def test_every_notice_is_told_once_and_no_hour_has_more_messages_than_allowed(steps: list[tuple[str, int]]) -> None:
    inbox, now, number, told = Inbox(user="ann"), NOW, 0, []
    messages: list[datetime] = []
    for step, which in steps:
        target = ("team", "mail", "hook")[which]
        if step == "take":
            number += 1
            inbox.take([notice(number, target)])
        elif step == "again":
            inbox.take([notice(number, target)] if f"{target}-{number}" in inbox.seen else [])
        elif step == "send" and target in inbox.waiting and inbox.room(now, 2):
            sent = inbox.begin(target, now)
            number += 1
            inbox.take([notice(number, target)])  # comes while the message is on its way
            told += [one.id for one in sent.notices]
            messages.append(now)
            inbox.end(target, sent)
        else:
            now += HOUR / 2
        assert sum(at + HOUR > now for at in messages) <= 2
    waits = [one.id for waiting in inbox.waiting.values() for one in waiting.notices]
    assert sorted([*told, *waits]) == sorted({*told, *waits}), "nothing twice"
    assert {*told, *waits} == {*inbox.seen}, "nothing lost"


def test_a_flood_is_one_message_that_says_how_many_there_were() -> None:
    inbox = Inbox(user="ann")
    inbox.take([notice(number) for number in range(MOST_WAITING + 700)])
    sent = inbox.begin("team", NOW)
    message = message_of("lab", sent.notices, sent.left_out, NOW + HOUR)
    assert message.title == "[lab] 1000 notices of jobs: 300 fail"
    assert f"and {1000 - MOST_LINES} more" in message.body
    assert "This hour's messages are used up: what happens until 2026-12-01 09:00:00 UTC" in message.body
    inbox.take([notice(number) for number in range(5000, 5007)])  # while the message is on its way
    inbox.end("team", sent)
    rest = inbox.begin("team", NOW)
    assert message_of("lab", rest.notices, rest.left_out, None).title == "[lab] 7 notices of jobs"
    inbox.end("team", rest)
    assert not inbox.waiting
    assert not inbox.is_quiet(NOW)
    assert inbox.is_quiet(NOW + HOUR)


def test_many_addresses_are_no_way_around_the_limit() -> None:
    inbox = Inbox(user="ann")
    inbox.take([notice(number, f"t-{number}") for number in range(MOST_DESTINATIONS + 50)])
    assert len(inbox.waiting) == MOST_DESTINATIONS
    for key in [*inbox.waiting][:3]:
        inbox.begin(key, NOW)
    assert inbox.room(NOW, 3) == 0
    assert inbox.has_room_at(NOW, 3) == NOW + HOUR


def test_what_is_due_later_is_asked_for_then() -> None:
    inbox = Inbox(user="ann")
    due = NOW + timedelta(hours=2)
    inbox.take([notice(1, due_at=due), notice(2, due_at=due + HOUR)])
    assert inbox.take_due(NOW) == []
    [found] = inbox.take_due(due)
    assert found.job_id == "j-1"
    assert [one.job_id for one in inbox.later] == ["j-2"]
    inbox.tell(found)
    assert inbox.waiting["team"].notices == [found]


def test_while_a_target_is_away_nothing_is_done_until_something_is_heard() -> None:
    inbox = Inbox(user="ann")
    inbox.take([notice(1)])
    inbox.begin("team", NOW)
    assert inbox.next_change(NOW, 20, waits=False) == NOW + HOUR, "then the message does not count any more"
    assert inbox.next_change(NOW + HOUR, 20, waits=False) is None
    assert not inbox.is_quiet(NOW + HOUR)
    inbox.take([notice(2, due_at=NOW + 3 * HOUR)])
    assert inbox.next_change(NOW + HOUR, 20, waits=False) == NOW + 3 * HOUR
    inbox.take([notice(3, "mail")])
    assert inbox.next_change(NOW, 1, waits=True) == NOW + 3 * HOUR, "there is room"
    inbox.begin("mail", NOW + HOUR)
    assert inbox.next_change(NOW + HOUR, 1, waits=True) == NOW + 2 * HOUR

"""What people read of a job: one event of it, or several in one message.

Texts that users wrote, such as reasons, are shown without what a chat or a mail program would obey.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from gpu_platform.domain.jobs.array import Array
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.notify import NotifyOn, NotifyRule
from gpu_platform.domain.notices import Happened, Notice
from gpu_platform.domain.notifications import Message, Tone
from gpu_platform.domain.states import JobState
from gpu_platform.domain.texts import counted, duration, moment, one_line

MOST_LINES = 30
"""Notices that a message names; of the others it says how many there are."""
LIMIT_SHARE = 0.9
"""A notice of the time limit comes after this share of it."""
_LONGEST = 300
_MOST_HOSTS = 8
_OBEYED = str.maketrans({"<": "‹", ">": "›", "@": "＠", "`": "'", "*": "∗", "[": "(", "]": ")", "|": "¦", "\\": "/"})
"""What chats obey (mentions, links, markup), and what is shown in its place."""
_WORST_FIRST: list[Tone] = ["failure", "warning", "success", "info"]
_TONES: dict[str, Tone] = {
    "completed": "success",
    "failed": "failure",
    "cancelled": "warning",
    "retrying": "warning",
    "preempted": "warning",
    "promise_withdrawn": "warning",
    "promise_broken": "warning",
}


def harmless(text: str) -> str:
    """A text that a user wrote, on one line, cut, and without anything that a target would obey."""
    found = one_line(text).translate(_OBEYED).replace("://", ": //")
    return found if len(found) <= _LONGEST else found[: _LONGEST - 1] + "…"


def notices_of(happened: Happened, cluster: str, dashboard_url: str | None) -> list[Notice]:
    """One notice for each destination that is told of this event."""
    found: dict[str, Notice] = {}
    for rule in happened.rules:
        wanted = [on for on in NotifyOn if on in rule.events and on in happened.on]
        for on in wanted:
            if on is NotifyOn.END and NotifyOn.FAIL in wanted:
                continue
            one = _notice(happened, rule, on, cluster, dashboard_url)
            if one is not None:
                found.setdefault(one.id, one)
    return [*found.values()]


def destination(target: str, address: str | None) -> str:
    """Names where a notice goes, as one text."""
    return target if address is None else f"{target} {address}"


def message_of(cluster: str, notices: Sequence[Notice], left_out: int, resumes_at: datetime | None) -> Message:
    """The message with these notices. ``left_out``: how many more there were. ``resumes_at``: until then the user gets
    no further message."""
    after = []
    if resumes_at is not None:
        after = ["", f"This hour's messages are used up: what happens until {moment(resumes_at)} comes in one message."]
    if not left_out and len({one.job_id for one in notices}) == 1:
        *earlier, last = notices
        before = ["", "Before:", *(f"- {one.line}" for one in earlier[-MOST_LINES:])] if earlier else []
        return Message(title=last.title, body="\n".join([last.body, *before, *after]), tone=last.tone)
    counts = Counter(one.on for one in notices)
    said = ", ".join(f"{number} {on}" for on, number in counts.items())
    lines = [f"- {one.line}" for one in notices[:MOST_LINES]]
    more = len(notices) - len(lines) + left_out
    lines += [f"and {more} more"] if more else []
    lines += ["", "What to do: gpu-platform jobs list, gpu-platform jobs describe JOB"]
    tones: list[Tone] = [one.tone for one in notices] or ["info"]
    return Message(
        title=f"[{cluster}] {len(notices) + left_out} notices of jobs" + (f": {said}" if said else ""),
        body="\n".join([*lines, *after]),
        tone=min(tones, key=_WORST_FIRST.index),
    )


def trial_message(cluster: str, actor: str) -> Message:
    """A message that says nothing but that it arrives."""
    body = f"{harmless(actor)} tests whether messages arrive. Nothing is wrong."
    return Message(title=f"[{cluster}] test", body=body)


def _notice(
    happened: Happened, rule: NotifyRule, on: NotifyOn, cluster: str, dashboard_url: str | None
) -> Notice | None:
    assert rule.target is not None, "the service fills it in"
    event, of = happened.event, happened.of
    due_at = None
    if on is NotifyOn.LIMIT:
        if happened.time_limit_s is None:
            return None
        due_at = event.at + timedelta(seconds=happened.time_limit_s * LIMIT_SHARE)
    what, reason = _what(happened, on), _reason(happened, on)
    name = harmless(of.spec.name)
    noun = "Array" if isinstance(of, Array) else "Job"
    facts = [
        f"{noun} {of.id} ({name}) of {of.spec.user} in {of.spec.namespace} {what}.",
        *([f"Reason: {reason}"] if reason else []),
        *([f"Where: {where}"] if (where := _where(of, event.attempt)) else []),
        f"When: {moment(event.at)}",
        f"What to do: {_next_step(of, on, failed=event.kind.endswith('.failed'))}",
        *([f"Dashboard: {dashboard_url.rstrip('/')}/jobs/{of.id}"] if dashboard_url and isinstance(of, Job) else []),
    ]
    said = f"{event.seq} {on} {destination(rule.target, rule.address)}"
    return Notice(
        id=hashlib.sha256(said.encode()).hexdigest()[:24],
        on=on,
        job_id=of.id,
        target=rule.target,
        address=rule.address,
        at=event.at,
        title=f"[{cluster}] {name} ({of.id}) {what}",
        line=f"{of.id} ({name}) {what}" + (f": {reason}" if reason else ""),
        body="\n".join(facts),
        tone="warning" if on is NotifyOn.LIMIT else _TONES.get(event.kind.partition(".")[2], "info"),
        due_at=due_at,
        attempt=event.attempt,
    )


def _what(happened: Happened, on: NotifyOn) -> str:
    event, of = happened.event, happened.of
    kind = event.kind.partition(".")[2]
    if on is NotifyOn.LIMIT:
        return f"has run for nine tenths of its time limit ({duration(happened.time_limit_s or 0)})"
    if on is NotifyOn.PROMISE:
        later = event.data.get("later")
        when = f"to {moment(_at(later))}" if isinstance(later, int | float) else "to an unknown time"
        return f"will not start at {moment(_at(event.data['promised']))} as promised: moved {when}"
    if kind == "running":
        attempt = f", attempt {event.attempt}" if (event.attempt or 1) > 1 else ""
        waited = f" after it waited {duration((event.at - of.created_at).total_seconds())}" if not attempt else ""
        return f"runs{attempt}{waited}"
    if on is NotifyOn.REQUEUE:
        return f"was {'preempted' if kind == 'preempted' else 'interrupted'} and waits for another attempt"
    return f"is {kind.upper()}{_took(of)}"


def _took(of: Job | Array) -> str:
    if of.finished_at is None:
        return ""
    if isinstance(of, Array):
        counts = ", ".join(f"{number} {state.value}" for state, number in of.counts.items() if number)
        return f" after {duration((of.finished_at - of.created_at).total_seconds())} ({counts})"
    if of.started_at is None:
        return " before it ran"
    return f" after {duration((of.finished_at - of.started_at).total_seconds())}"


def _reason(happened: Happened, on: NotifyOn) -> str:
    if on in (NotifyOn.START, NotifyOn.LIMIT):
        return ""
    data = happened.event.data
    failure = data.get("failure")
    said = failure.get("message") if isinstance(failure, dict) else data.get("reason")
    of = happened.of
    if not said and of.stopped_by is not None and on is not NotifyOn.PROMISE:
        said = str(of.stopped_by)
    if not said and isinstance(of, Job) and of.state is JobState.FAILED and of.failure is not None:
        said = of.failure.message
    return harmless(said) if isinstance(said, str) else ""


def _where(of: Job | Array, attempt: int | None) -> str:
    if isinstance(of, Array) or of.placement is None or attempt != of.attempt:
        return ""
    hosts = of.placement.hosts
    named = ", ".join(hosts[:_MOST_HOSTS]) + (
        f" and {len(hosts) - _MOST_HOSTS} more" if len(hosts) > _MOST_HOSTS else ""
    )
    return f"{named} ({counted(len(of.placement.gpu_uuids), 'GPU')}, attempt {attempt})"


def _next_step(of: Job | Array, on: NotifyOn, *, failed: bool) -> str:
    if isinstance(of, Array):
        return f"gpu-platform jobs list --array {of.id}" + (" --state FAILED" if failed else "")
    if failed:
        return f"gpu-platform jobs logs {of.id}"
    return {
        NotifyOn.START: f"gpu-platform jobs logs {of.id} --follow",
        NotifyOn.LIMIT: f"gpu-platform jobs checkpoint {of.id}, if the job can; it is stopped at its limit",
    }.get(on, f"gpu-platform jobs describe {of.id}")


def _at(unix_s: float) -> datetime:
    return datetime.fromtimestamp(unix_s, UTC)

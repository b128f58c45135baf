"""What happened to the jobs that violations name, in order: events, ranks and faults."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tests.chaos.checks import Facts, Violation


def story(facts: Facts, violations: Sequence[Violation]) -> list[str]:
    """One line each, with seconds since the first fault."""
    words = {word for violation in violations for word in re.findall(r"[\w-]+", violation.text)}
    jobs = words & {seen.event.job_id for seen in facts.events if seen.event.job_id}
    first = min((fault.begin for fault in facts.faults), default=0.0)
    return [f"{at - first:8.2f} s {text}" for at, text in sorted(_lines(facts, jobs))]


def _lines(facts: Facts, jobs: set[str]) -> Iterator[tuple[float, str]]:
    for fault in facts.faults:
        yield fault.begin, f"fault {fault.kind} {fault.target} for {fault.end - fault.begin:.1f} s"
    for run in facts.truth.runs:
        if run.job in jobs:
            end = f"{run.end - run.begin:.2f} s" if run.end is not None else "still there"
            yield run.begin, f"rank {run.name} on {run.host}, exit {run.exit_code}: {end}"
    for seen in facts.events:
        event = seen.event
        if event.job_id in jobs or event.kind.startswith("host"):
            who = f"{event.job_id}#{event.attempt}" if event.job_id else event.host
            yield seen.before, f"event {event.kind} {who} by {event.actor} {event.data}"

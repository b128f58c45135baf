"""What happened to the jobs that violations name, and to those that their events name: events, ranks and faults."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from tests.chaos.facts import Facts, Violation


def story(facts: Facts, violations: Sequence[Violation]) -> list[str]:
    """One line each, with seconds since the first fault."""
    events = [seen.event for seen in [*facts.events, *facts.forgotten]]
    known = {event.job_id for event in events if event.job_id}
    jobs = known & _words(violation.text for violation in violations)
    jobs |= known & _words(str(event.data) for event in events if event.job_id in jobs)
    first = min((fault.begin for fault in facts.faults), default=0.0)
    gpus = {uuid for hold in facts.holds if hold.job in jobs for uuid in hold.gpus}
    return [f"{at - first:8.2f} s {text}" for at, text in sorted(_lines(facts, jobs, gpus))]


def _words(texts: Iterable[str]) -> set[str]:
    return {word for text in texts for word in re.findall(r"[\w-]+", text)}


def _lines(facts: Facts, jobs: set[str], gpus: set[str]) -> Iterator[tuple[float, str]]:
    for fault in facts.faults:
        yield fault.begin, f"fault {fault.kind} {fault.target} for {fault.end - fault.begin:.1f} s"
    for run in facts.truth.runs:
        if run.job in jobs:
            end = f"{run.end - run.begin:.2f} s" if run.end is not None else "still there"
            yield run.begin, f"rank {run.name} on {run.host}, exit {run.exit_code}: {end}"
    told = [(seen, "event") for seen in facts.events] + [(seen, "forgotten event") for seen in facts.forgotten]
    for seen, what in told:
        event = seen.event
        if event.job_id in jobs or event.kind.startswith("host") or event.gpu_uuid in gpus:
            who = f"{event.job_id}#{event.attempt}" if event.job_id else event.gpu_uuid or event.host
            yield seen.before, f"{what} {event.kind} {who} by {event.actor} {event.data}"

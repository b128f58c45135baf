"""Why too few hosts have the labels and names that a job asks for, and which come near."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from difflib import get_close_matches

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.jobs.host_choice import Constraint, HostChoice
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.scheduling.cluster.snapshot import Snapshot
from gpu_platform.scheduling.explaining.phrases import plural

NAMED = 5
"""How many labels, values or hosts a sentence names."""


def too_few_chosen(resources: ResourceRequest, snapshot: Snapshot) -> str:
    """Say that the choice leaves too few of the registered hosts, and what there is. Empty: it leaves enough."""
    choice, needed = resources.host_choice, 1 if resources.total is not None else resources.hosts
    if not choice or not len(snapshot):
        return ""
    left = int(np.count_nonzero(snapshot.accepted_by(choice)))
    if left >= needed:
        return ""
    parts = [HostChoice(constraints=(text,)) for text in choice.constraints]
    parts += [HostChoice(include=choice.include, exclude=choice.exclude)] if choice.include or choice.exclude else []
    counts = [int(np.count_nonzero(snapshot.accepted_by(part))) for part in parts]
    for part, count in zip(parts, counts, strict=True):
        if count < needed:
            said = _constraint(part, snapshot, count) if part.constraints else _names(part, snapshot, count)
            return said if needed == 1 else f"{said}; {plural(needed, 'host')} are needed"
    each = ", ".join(f"{count} {part}" for part, count in zip(parts, counts, strict=True))
    return f"{plural(left, 'host')} of {len(snapshot)} meet all of it ({each}): ask for less"


def labels_there(resources: ResourceRequest, snapshot: Snapshot, hosts: NDArray[np.intp]) -> str:
    """Say what these hosts have instead of what the constraints ask for."""
    labels = [snapshot.labels[host_index] for host_index in hosts.tolist()]
    found = []
    for constraint in map(Constraint.parse, resources.constraints):
        unmet = [one for one in labels if not constraint.accepts(one)]
        if unmet:
            values = [one[constraint.label] for one in unmet if constraint.label in one]
            found.append(f"{constraint.label} is {_values(values)}" if values else f"no {constraint.label}")
    return ", ".join(found)


def _constraint(part: HostChoice, snapshot: Snapshot, count: int) -> str:
    constraint = Constraint.parse(part.constraints[0])
    values = [labels[constraint.label] for labels in snapshot.labels if constraint.label in labels]
    if constraint.excludes:
        there = "every host has" if not count else f"only {plural(count, 'host')} of {len(snapshot)} has not"
        return f"{there} label {constraint.label}={'|'.join(constraint.values)}: ask for less, or leave it out"
    if not values:
        known = sorted({label for labels in snapshot.labels for label in labels})
        near = get_close_matches(constraint.label, known, 1)
        if near:
            of_it = _values(labels[near[0]] for labels in snapshot.labels if near[0] in labels)
            return f"no host has a label {constraint.label}; the nearest is {near[0]} ({of_it})"
        there = f"; there are {_some(known)}" if known else " or any other: set node.labels on the hosts"
        return f"no host has a label {constraint.label}{there}"
    no_host = "no host has" if not count else f"only {plural(count, 'host')} has"
    return (
        f"{no_host} label {constraint}; {plural(len(values), 'host')} {'has' if len(values) == 1 else 'have'} "
        f"{constraint.label} with {_values(values)}: ask for one of these"
    )


def _names(part: HostChoice, snapshot: Snapshot, count: int) -> str:
    no_host = "no host has" if not count else f"only {plural(count, 'host')} has"
    return f"{no_host} a name that the job takes ({part}); there are {_some(sorted(snapshot.names))}"


def _values(values: Iterable[str]) -> str:
    """Return the values, those of most hosts first, with the number of hosts."""
    counted = sorted(Counter(values).items(), key=lambda one: (-one[1], one[0]))
    return _some([f"{value} ({count})" for value, count in counted])


def _some(texts: list[str]) -> str:
    return ", ".join(texts[:NAMED]) + (", …" if len(texts) > NAMED else "")

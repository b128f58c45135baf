"""The jobs that ``squeue``, ``scancel`` and ``sacct`` are about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gpu_platform.client import access_calls, calls
from gpu_platform.domain.array_ids import array_of, is_array_id
from gpu_platform.domain.errors import NotFound
from gpu_platform.domain.jobs.index_set import IndexSet
from gpu_platform.domain.states import ArrayState, JobState
from gpu_platform.slurm.dependencies import job_id as read_id

if TYPE_CHECKING:
    from gpu_platform.client import Client

Job = dict[str, Any]
PAGE = 1000
WAITING = [JobState.PENDING, JobState.QUEUED, JobState.PREEMPTED]
LIVE = [*WAITING, JobState.ALLOCATED, JobState.STARTING, JobState.RUNNING]
_OPEN_ARRAYS = [ArrayState.PENDING, ArrayState.RUNNING]


def ids(text: str) -> list[str]:
    """Ids with commas between them: ``j-1,a-2_[1-3]``. Steps (``j-1.batch``) are their job. Raises ``ValueError``, also
    if nothing is named: a variable that is not set must not make a filter wider."""
    found: list[str] = []
    for part in _split(text):
        whole, bracket, rest = part.partition("_[")
        if bracket:
            found += [f"{read_id(whole)}.{index}" for index in _indices(rest.rstrip("]"))]
            continue
        for suffix in (".batch", ".extern"):
            part = part.removesuffix(suffix)
        found.append(read_id(part))
    if not found:
        raise ValueError(f"{text[:40]!r} names no job")
    return found


def _indices(text: str) -> list[int]:
    found = IndexSet.parse(text.partition("%")[0])
    if len(found) > 10_000:
        raise ValueError("at most 10,000 elements can be named: name the array")
    return list(found)


def _split(text: str) -> list[str]:
    parts: list[str] = []
    depth = 0
    word = ""
    for letter in text:
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(word.strip())
            word = ""
        else:
            word += letter
    return [part for part in [*parts, word.strip()] if part]


def jobs_of(client: Client, wanted: Iterable[str]) -> tuple[list[Job], list[str]]:
    """The jobs and arrays with these ids, an array with its elements; and the ids that there are not."""
    found: list[Job] = []
    missing: list[str] = []
    for one in wanted:
        try:
            if is_array_id(one):
                array = client.json(calls.array(one))
                elements = list(client.json_pages(lambda cursor, one=one: calls.elements(one, None, cursor, PAGE)))
                found += [*elements, *_rest_of(array, elements)]
            else:
                found.append(client.json(calls.job(one)))
        except NotFound:
            missing.append(one)
    return found, missing


def jobs_in(client: Client, states: list[str] | None, user: str | None, name: str | None) -> Iterator[Job]:
    """All jobs of these states, newest first. States None: every state."""
    yield from client.json_pages(lambda cursor: calls.jobs(states, None, user, name, None, cursor, PAGE))


def parts_of_arrays(
    client: Client, user: str | None, name: str | None, *, ended: bool = False, since: datetime | None = None
) -> Iterator[Job]:
    """The elements of arrays, and of each array one line for those that have no row yet, as Slurm shows them.

    ``ended``: also of arrays that have ended, if that was not before ``since``.
    """
    states = None if ended else _OPEN_ARRAYS
    for array in list(client.json_pages(lambda cursor: calls.arrays(states, None, user, name, None, cursor, PAGE))):
        finished = array.get("finished_at")
        if since is not None and finished is not None and datetime.fromisoformat(finished) < since:
            continue
        elements = list(client.json_pages(lambda cursor, one=array["id"]: calls.elements(one, None, cursor, PAGE)))
        yield from elements
        yield from _rest_of(array, elements)


def open_arrays(client: Client, user: str | None, name: str | None) -> list[str]:
    """The ids of arrays that have not ended."""
    found = client.json_pages(lambda cursor: calls.arrays(_OPEN_ARRAYS, None, user, name, None, cursor, PAGE))
    return [array["id"] for array in found]


def _rest_of(array: Job, elements: list[Job]) -> list[Job]:
    """The array as one line for its elements that are still to come. Nothing, if none are."""
    if array["state"] not in ("PENDING", "RUNNING"):
        return []
    here = {int(one["id"].rpartition(".")[2]) for one in elements}
    indices = IndexSet.parse(array["array"]["indices"])
    rest = [index for index in indices if index not in here]
    return [{**array, "waiting_indices": str(IndexSet.of(rest))}] if rest else []


def user_of(client: Client) -> str:
    """Who asks, as jobs name their users."""
    return str(client.json(access_calls.who_am_i())["name"])


def order(jobs: Iterable[Job]) -> list[Job]:
    """Slurm's order: the oldest first, elements of an array together."""
    return sorted(jobs, key=lambda job: (job["created_at"], array_of(job["id"]) or job["id"]))

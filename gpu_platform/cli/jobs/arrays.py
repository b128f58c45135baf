"""What ``gpu-platform submit|jobs …`` do with arrays: wait with a progress bar, describe, interrupt, run again."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING

import typer

from gpu_platform.cli import session
from gpu_platform.domain.array_ids import array_of, index_of, is_array_id

if TYPE_CHECKING:
    from rich.progress import Progress

    from gpu_platform.client import Client
    from gpu_platform.domain.jobs.array import Array
    from gpu_platform.domain.jobs.changes import JobChanges

LOOK_EVERY_S = 0.5
SHOWN_FAILED = 10


def after_submission(array: Array, *, wait: bool, json: bool) -> None:
    """Print the id of a new array. With ``wait`` wait for its end, and return its exit code."""
    if not json:
        session.write(array.id)
    if not wait:
        if json:
            session.print_json(array)
        else:
            session.say(f"{array.size:,} elements submitted; see them with: gpu-platform jobs wait {array.id}")
        return
    wait_for(array.id, None, json)


def wait_for(array_id: str, timeout_s: float | None, json: bool) -> None:
    """Wait for the end with a progress bar on stderr, and exit: 0 if all elements completed, else 1."""
    from gpu_platform.domain.states import ArrayState

    with session.service(session.FOLLOW_PATIENCE_S) as client:
        try:
            array = _watched(client, array_id, timeout_s)
        except TimeoutError as error:
            session.say(str(error))
            raise typer.Exit(session.FAILED) from None
        except KeyboardInterrupt:
            session.say(f"{array_id} goes on; stop it with: gpu-platform jobs cancel {array_id}")
            raise
        if json:
            session.print_json(array)
        _print_end(client, array)
    raise typer.Exit(0 if array.state is ArrayState.COMPLETED else session.FAILED)


def describe(array_id: str, json: bool) -> None:
    """Print everything about one array."""
    with session.service() as client:
        found = client.array(array_id)
        failed = _failed(client, found)
    if json:
        session.print_json(found)
        return
    from gpu_platform.cli.show import show_array

    session.show(show_array.array_details(found, failed))


def interrupt(verb: str, target: str, elements: str | None, reason: str, json: bool) -> None:
    """Cancel or kill an array, or some of its elements."""
    with session.service() as client:
        send = client.cancel_array if verb == "cancel" else client.kill_array
        array = send(target, reason, elements=elements)
    if json:
        session.print_json(array)
        return
    done = "being cancelled" if verb == "cancel" else "being killed"
    what = f"{target} is" if elements is None else _sentence(elements, target, "is", "are")
    session.say(f"{what} {done}" if not array.state.is_terminal else f"{target} is {array.state}")


def update(target: str, changes: JobChanges, elements: str | None, json: bool) -> None:
    """Change elements of an array that wait or are to come, and say which were not changed, and why."""
    with session.service() as client:
        changed = client.update_array(target, changes, elements=elements)
    if json:
        session.print_json(changed)
        return
    session.say(f"{target}: {changed.summary}")


def retry(target: str, elements: str | None, json: bool) -> None:
    """Run elements of an array again: those that failed, or these. An element may be named by its own id."""
    array_id = array_of(target)
    if array_id is not None:
        if elements is not None:
            raise typer.BadParameter(f"{target} is one element: name the array ({array_id}) to say --elements")
        elements = str(index_of(target))
    with session.service() as client:
        array = client.retry_array(array_id or target, elements=elements)
    if json:
        session.print_json(array)
        return
    session.write(array.id)
    session.say(f"{_sentence(str(array.array.indices), array_id or target, 'runs', 'run')} again, in a new array")


def _sentence(indices: str, array_id: str, verb: str, verbs: str) -> str:
    """``element 7 of a-1 runs`` or ``elements 0-3 of a-1 run``."""
    return (
        f"element {indices} of {array_id} {verb}" if indices.isdigit() else f"elements {indices} of {array_id} {verbs}"
    )


def check_elements_option(target: str, elements: str | None) -> None:
    """Raise :class:`typer.BadParameter` if ``--elements`` was given for a job."""
    if elements is not None and not is_array_id(target):
        raise typer.BadParameter(f"{target} is no array, so it has no elements: leave --elements out")


def _watched(client: Client, array_id: str, timeout_s: float | None) -> Array:
    end = None if timeout_s is None else time.monotonic() + timeout_s
    array = client.array(array_id)
    with _progress() as progress:
        task = progress.add_task(array_id, total=array.size)
        while True:
            progress.update(task, completed=array.ended, description=_summary(array))
            if array.state.is_terminal:
                return array
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(f"array {array_id} is {array.state} after {timeout_s:g} s")
            time.sleep(LOOK_EVERY_S)
            array = client.array(array_id)


def _progress() -> Progress:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = session.err()
    percentage, description = TextColumn("{task.percentage:>3.0f} %"), TextColumn("{task.description}", markup=False)
    columns = (BarColumn(), percentage, description, TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _print_end(client: Client, array: Array) -> None:
    from gpu_platform.cli.show import show_array

    session.say(f"{array.id} {array.state}: {_summary(array)}")
    if array.stopped_by is not None:
        session.say(str(array.stopped_by))
    failed = _failed(client, array)
    for line in show_array.failures(array, failed):
        session.say(line)


def _summary(array: Array) -> str:
    from gpu_platform.cli.show import job_rows

    return job_rows.array_summary(array.model_dump(mode="json"))


def _failed(client: Client, array: Array) -> list[tuple[str, str]]:
    """Some elements that failed, each with the reason."""
    from gpu_platform.domain.states import JobState

    if not array.count(JobState.FAILED):
        return []
    found = islice(client.elements(array.id, states=[JobState.FAILED], page_size=SHOWN_FAILED), SHOWN_FAILED)
    return [(job.id, job.failure.message if job.failure else "failed") for job in found]

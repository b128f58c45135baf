"""Starts the workflow of a submission that is recorded, or takes the record back: see :mod:`submission`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.concurrency import run_in_threadpool

from gpu_platform.domain.errors import NotFound, StorageFull, Unavailable

T = TypeVar("T")


async def start_recorded(
    recorded: T,
    created: bool,
    *,
    start: Callable[[], Awaitable[object]],
    withdraw: Callable[[], bool],
    read: Callable[[], T],
) -> T:
    """Call ``start``, and return the submission as it is then. ``created``: this request recorded it.

    ``withdraw`` takes the record back; False: it went on meanwhile. ``read`` returns it as it is now, and raises
    :class:`NotFound` if it was withdrawn. Raises :class:`Unavailable`. Then nothing has changed, unless the error says
    that the record could not be taken back.
    """
    try:
        await start()
    except Unavailable as no_answer:
        if not created or await _taken_back(withdraw, no_answer):
            raise
        # No answer came to the start, but it happened: its workflow has gone on meanwhile.
        return await run_in_threadpool(read)
    if not created:
        # The request that recorded it may have withdrawn it while we started its workflow.
        try:
            await run_in_threadpool(read)
        except NotFound as error:
            raise Unavailable("the submission was withdrawn meanwhile; submit it again") from error
    return recorded


async def _taken_back(withdraw: Callable[[], bool], no_answer: Unavailable) -> bool:
    """Call ``withdraw``. Raises :class:`Unavailable` if the database cannot do it: then the record stays, and the
    leader starts its workflow later. The same idempotency key finds it."""
    try:
        return await run_in_threadpool(withdraw)
    except Unavailable as error:
        why = "the disk of the database is full" if isinstance(error, StorageFull) else "the database does not answer"
        raise Unavailable(
            f"{no_answer.message}. But the submission is recorded and could not be taken back, because {why}: it may "
            "start later. Repeat the request with its idempotency key, or look into the list before you submit again"
        ) from error

"""Starts the workflow of a submission that is recorded, or takes the record back: see :mod:`submission`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.concurrency import run_in_threadpool

from gpu_platform.domain.errors import NotFound, Unavailable

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
    :class:`NotFound` if it was withdrawn. Raises :class:`Unavailable`. Then nothing has changed.
    """
    try:
        await start()
    except Unavailable:
        if not created or await run_in_threadpool(withdraw):
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

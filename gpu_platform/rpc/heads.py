"""Waits for the beginning of a stream: with asyncio, and without. A stream has no deadline: it may go on for days."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import grpc

from gpu_platform.client.answer import NoAnswer

_REQUEST_ID = "x-request-id"
"""The service sends it before the first message: then the call has not been refused."""


async def begins_async(call: Any, timeout_s: float) -> bool:
    """Wait until the service accepts the stream. False: it refused. Raises :class:`NoAnswer` if nothing comes."""
    try:
        async with asyncio.timeout(timeout_s):
            return _accepts(await call.initial_metadata()) or await call.code() is grpc.StatusCode.OK
    except TimeoutError as error:
        raise NoAnswer(TimeoutError("no answer in time"), was_sent=True) from error


def begins_sync(call: Any, timeout_s: float) -> bool:
    """Wait until the service accepts the stream. False: it refused, or nothing came and the call was cancelled."""
    patience = threading.Timer(timeout_s, call.cancel)
    patience.start()
    try:
        return _accepts(call.initial_metadata()) or call.code() is grpc.StatusCode.OK
    finally:
        patience.cancel()


def _accepts(head: Any) -> bool:
    return _REQUEST_ID in (head if isinstance(head, Mapping) else dict(head or ()))

"""Output of ranks. It is stored on the host that ran them; the host's node worker serves it to the service."""

from __future__ import annotations

import asyncio
import codecs
import json
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple

import httpx
from starlette.concurrency import run_in_threadpool

from gpu_platform.client.wire import PROBLEM_JSON, LogChunk, problem_of_response
from gpu_platform.domain.errors import HostUnavailable, InvalidRequest, NotFound, PlatformError
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.placement import HostSlice
from gpu_platform.domain.jobs.ranks import max_ranks, number_ranks
from gpu_platform.domain.texts import counted
from gpu_platform.store import events
from gpu_platform.store.jobs import jobs
from service import node_agents
from service.context import ServiceContext
from service.node_agents import NodeAgents
from service.streams import end, message

POLL_S = 0.2
CHUNK_BYTES = 64 * 1024
"""Size of one event that is sent to a follower."""
PIECE_BYTES = 256 * 1024
"""Size of one piece that the service reads from a host."""
ALL_BYTES = 1 << 50
"""A number larger than any log."""
_NUMBER = re.compile(r"[0-9]{1,15}")
_LONGEST_NOTE = 500
AWAY_AFTER_END_S = 5.0
"""How long a follower of an attempt that has ended waits for a host that does not answer. The last try may last
longer."""


@dataclass(frozen=True)
class LogPosition:
    """How far a follower has read: an offset in the log of an attempt."""

    attempt: int
    offset: int

    @classmethod
    def parse(cls, event_id: str) -> LogPosition:
        """Read the id of an event. Raises :class:`InvalidRequest`."""
        attempt, _, offset = event_id.partition(".")
        if not (attempt.isdecimal() and offset.isdecimal() and len(event_id) < 40):
            raise InvalidRequest(f"Last-Event-ID {event_id[:80]!r} is not an id of this stream")
        return cls(int(attempt), int(offset))

    def __str__(self) -> str:
        return f"{self.attempt}.{self.offset}"


def check_rank(job: Job, rank: int) -> None:
    """Raise :class:`InvalidRequest` if the job has no such rank."""
    size = max_ranks(job.spec) if job.placement is None else len(number_ranks(job.spec, job.placement.slices))
    if not 0 <= rank < size:
        ranks = "one rank, 0" if size == 1 else f"{size} ranks, 0 to {size - 1}"
        raise InvalidRequest(f"job {job.id} has {ranks}; there is no rank {rank}")


async def whole_log(context: ServiceContext, job: Job, rank: int, attempt: int | None) -> AsyncGenerator[bytes, None]:
    """The whole log in pieces. The first is fetched before this returns, so that an error still sets the status."""
    if attempt is None and job.attempt == 0:
        return _nothing()
    if attempt is not None and not 1 <= attempt <= job.attempt:
        raise NotFound(f"job {job.id} has no attempt {attempt} yet; the last one is {job.attempt}", job_id=job.id)
    source = await _LogSource.find(context, job, attempt or job.attempt, rank)
    pieces = _pieces(source)
    first = await anext(pieces, b"")

    async def all_pieces() -> AsyncGenerator[bytes, None]:
        yield first
        async for piece in pieces:
            yield piece

    return all_pieces()


async def _pieces(source: _LogSource) -> AsyncGenerator[bytes, None]:
    """The host's log. If the answer ends early because old output was removed, it is requested again."""
    at, size = 0, None
    while size is None or at < size:
        began = at
        async with source.open(at, ALL_BYTES) as (head, body):
            size = head.size if size is None else size
            at = head.offset
            if head.note is not None:
                yield f"[gpu-platform: {head.note}]\n".encode()
            async for data in body:
                at += len(data)
                yield data
        if at <= began:
            return


async def follow_log(
    context: ServiceContext, job: Job, rank: int, only: int | None, start: LogPosition | None
) -> AsyncGenerator[bytes, None]:
    """Server-sent :class:`LogChunk`s of attempt ``only``, or of one attempt after the other until the job has ended."""
    at = start or LogPosition(only or 1, 0)
    with context.feed.watching(job.id) as wakeup:
        while not context.feed.closed:
            wakeup.clear()
            job = await run_in_threadpool(jobs.get_job, context.store, job.id)
            if job.attempt >= at.attempt:
                async for event in _follow_attempt(context, job, rank, at, wakeup):
                    yield event
                if at.attempt == only:
                    break
                at = LogPosition(at.attempt + 1, 0)
            elif job.state.is_terminal:
                break
            else:
                await wakeup.wait()
    if not context.feed.closed:
        yield end(json.dumps({"state": job.state}))


async def _follow_attempt(
    context: ServiceContext, job: Job, rank: int, at: LogPosition, wakeup: asyncio.Event
) -> AsyncGenerator[bytes, None]:
    """The log of one attempt until the attempt has ended and everything is read."""
    source: _LogSource | None = None
    away_since: float | None = None
    reported_note: str | None = None
    wakeup.set()  # something may have happened before we began to listen
    while not context.feed.closed:
        # Ask for the state before the log is read: once the attempt has ended, the log is complete.
        if wakeup.is_set():
            wakeup.clear()
            job = await run_in_threadpool(jobs.get_job, context.store, job.id)
        over = job.attempt > at.attempt or not job.state.holds_gpus
        more, began = False, time.monotonic()
        try:
            source = source or await _LogSource.find(context, job, at.attempt, rank)
            piece = await source.read(at.offset)
        except NotFound as error:
            if over and error.details.get("removed"):
                yield _event(LogChunk(attempt=at.attempt, rank=rank, next_offset=0, text="", note=error.message), at)
            if over:
                return
        except HostUnavailable:
            away_since = began if away_since is None else away_since
            if over and time.monotonic() - away_since >= AWAY_AFTER_END_S:
                return
        else:
            away_since = None
            more = piece.end < piece.size
            text, used = decode(piece.data, final=over and not more)
            note = None if piece.note == reported_note else piece.note
            if used or note is not None:
                reported_note = piece.note
                at = LogPosition(at.attempt, piece.offset + used)
                yield _event(LogChunk(attempt=at.attempt, rank=rank, next_offset=at.offset, text=text, note=note), at)
            if over and not more:
                return
        if not more:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await wakeup.wait()


def _event(chunk: LogChunk, at: LogPosition) -> bytes:
    return message(chunk.model_dump_json(exclude_none=True), str(at))


def decode(data: bytes, final: bool) -> tuple[str, int]:
    """The text in ``data``, and how many bytes it took. A character that is cut off at the end waits for its rest."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final)
    return text, len(data) - len(decoder.getstate()[0])


class _LogHead(NamedTuple):
    offset: int
    """Offset at which the answer begins. Later than requested if earlier output is gone."""
    size: int
    """Size of everything that was ever written."""
    note: str | None


class _LogPiece(NamedTuple):
    data: bytes
    offset: int
    size: int
    note: str | None

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


class _LogSource:
    """One rank's log at the node worker of the host that ran it.

    Raises :class:`NotFound` while there is no log or when it was removed, :class:`HostUnavailable` if the host does
    not answer.
    """

    def __init__(self, node_workers: NodeAgents, host: str, path: str) -> None:
        self._node_workers = node_workers
        self._host = host
        self._path = path

    @classmethod
    async def find(cls, context: ServiceContext, job: Job, attempt: int, rank: int) -> _LogSource:
        host = await run_in_threadpool(host_of, context, job, attempt, rank)
        return cls(context.node_workers, host, f"/logs/{job.id}/{attempt}/{rank}")

    async def read(self, offset: int) -> _LogPiece:
        """Read at most ``CHUNK_BYTES`` from ``offset`` on."""
        async with self.open(offset, CHUNK_BYTES) as (head, body):
            return _LogPiece(b"".join([data async for data in body]), *head)

    @asynccontextmanager
    async def open(self, offset: int, limit: int) -> AsyncGenerator[tuple[_LogHead, AsyncIterator[bytes]], None]:
        """Stream at most ``limit`` bytes from ``offset`` on."""
        params = {"offset": offset, "limit": limit}
        try:
            async with self._node_workers.stream(self._host, "GET", self._path, params=params) as answer:
                if not answer.is_success:
                    raise self._error(await node_agents.whole(answer, self._host))
                head = self._head(answer.headers)
                most = min(limit, max(0, head.size - head.offset))
                yield head, node_agents.pieces(answer, most, PIECE_BYTES)
        except httpx.TransportError as error:
            raise HostUnavailable(
                f"the log is on host {self._host}, which does not answer; it can be read when the host is back",
                host=self._host,
            ) from error

    def _head(self, headers: httpx.Headers) -> _LogHead:
        offset, size = headers.get("X-Log-Offset", ""), headers.get("X-Log-Size", "")
        if not (_NUMBER.fullmatch(offset) and _NUMBER.fullmatch(size)):
            raise HostUnavailable(f"host {self._host} answered without saying where in the log it begins")
        note = headers.get("X-Log-Note")
        return _LogHead(int(offset), int(size), None if note is None else note[:_LONGEST_NOTE])

    def _error(self, answer: httpx.Response) -> PlatformError:
        if answer.headers.get("content-type", "").startswith(PROBLEM_JSON):
            return problem_of_response(answer.status_code, answer.headers, answer.content).error()
        if answer.status_code == httpx.codes.NOT_FOUND:
            return NotFound(f"host {self._host} has no log of this rank", host=self._host)
        return HostUnavailable(f"host {self._host} answered {answer.status_code} for the log", host=self._host)


def host_of(context: ServiceContext, job: Job, attempt: int, rank: int) -> str:
    """The host that ran this rank of the attempt. Raises :class:`NotFound` if the attempt was never placed."""
    if job.placement is not None and attempt == job.attempt:
        return _host_in(job, attempt, rank, job.placement.slices)
    seq = 0
    while page := events.read_events(context.store, seq, job_id=job.id):
        for event in page:
            if event.kind == "job.placed" and event.attempt == attempt:
                slices = [HostSlice.model_validate(part) for part in event.data["slices"]]
                return _host_in(job, attempt, rank, slices)
        seq = page[-1].seq
    raise NotFound(f"attempt {attempt} of job {job.id} was never placed", job_id=job.id)


def _host_in(job: Job, attempt: int, rank: int, slices: list[HostSlice]) -> str:
    ranks = number_ranks(job.spec, slices)
    if rank >= len(ranks):
        raise NotFound(f"attempt {attempt} of job {job.id} had {counted(len(ranks), 'rank')}; there was no rank {rank}")
    return ranks[rank].host


async def _nothing() -> AsyncGenerator[bytes, None]:
    yield b""

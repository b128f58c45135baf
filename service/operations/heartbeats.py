"""Heartbeats of many hosts are written together: one transaction for all that came while the last one ran.

A heartbeat that has news of its host is written alone, in its own turn, as full reports are: another transaction may
hold the host's row for seconds, and no other host may wait for that.

A service keeps none of them: each is answered after its transaction, so any number of services may take them. If they
come faster than they are written, the newest are first; see :mod:`service.operations.report_turns`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from anyio import CapacityLimiter, to_thread

from gpu_platform.domain.errors import PlatformError
from gpu_platform.domain.hosts.lease import Heartbeat, LeaseAnswer
from gpu_platform.domain.hosts.lease_protocol import answer_within_s
from gpu_platform.domain.hosts.protocol import check_host
from gpu_platform.identity import names
from gpu_platform.identity.certificates import Peer
from gpu_platform.store import Store
from gpu_platform.store.hosts import heartbeats, reports
from service.operations.identities import Revocations
from service.operations.report_turns import ReportTurns, refuse, superseded, too_late

GATHER_S = 0.05
"""How long the first heartbeat of a batch waits for others. It is nothing beside a lease, and halves the work of a
service for a thousand hosts."""
MOST_AT_ONCE = 500


@dataclass(frozen=True)
class _Waiting:
    """A heartbeat that is not written yet."""

    beat: Heartbeat
    peer: Peer | None
    answer: asyncio.Future[LeaseAnswer | None]
    """None: it must be written alone."""
    came_at: float
    """On the writer's clock."""


class HeartbeatWriter:
    """Renews leases, many in one transaction.

    ``threads``: in which it writes, ``turns``: of reports that are written alone, ``clock``: seconds that only grow.
    """

    def __init__(
        self,
        store: Store,
        ttl_s: float,
        revoked: Revocations,
        threads: CapacityLimiter,
        turns: ReportTurns,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._ttl_s = ttl_s
        self._revoked = revoked
        self._threads = threads
        self._turns = turns
        self._clock = clock
        self._waiting: dict[str, _Waiting] = {}
        """Host -> its newest heartbeat that is not written yet. The last one came last."""
        self._writing: asyncio.Task[None] | None = None

    async def renew(self, beat: Heartbeat, peer: Peer | None) -> LeaseAnswer:
        """The answer to one heartbeat, when it is written. ``peer``: the certificate that its host showed.

        Raises as ``reports.renew_lease``, :class:`Forbidden` if the host was revoked, and :class:`Unavailable` if its
        turn does not come in time.
        """
        waiting = _Waiting(beat, peer, asyncio.get_running_loop().create_future(), self._clock())
        if (older := self._waiting.pop(beat.name, None)) is not None:
            refuse(older.answer, superseded(beat.name))
        self._waiting[beat.name] = waiting
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all())
        answer = await waiting.answer
        if answer is None:
            async with self._turns.turn(beat.name):
                answer = await to_thread.run_sync(self._write_alone, beat, limiter=self._threads)
        return answer

    async def _write_all(self) -> None:
        while self._waiting:
            await asyncio.sleep(GATHER_S)
            self._give_up()
            newest = [*self._waiting][-MOST_AT_ONCE:]
            batch = [self._waiting.pop(host) for host in newest]
            if not batch:
                return
            outcomes: Sequence[LeaseAnswer | Exception | None]
            try:
                outcomes = await to_thread.run_sync(self._write, batch, limiter=self._threads)
            except Exception as error:  # whoever waits must hear of it; the next batch may succeed
                outcomes = [error] * len(batch)
            for one, outcome in zip(batch, outcomes, strict=True):
                if one.answer.done():  # its host does not wait any more
                    continue
                if isinstance(outcome, Exception):
                    one.answer.set_exception(outcome)
                else:
                    one.answer.set_result(outcome)

    def _give_up(self) -> None:
        """Refuse what has waited for so long that its host does not wait any more."""
        patience_s = answer_within_s(self._ttl_s)
        for host, one in [*self._waiting.items()]:
            if self._clock() - one.came_at < patience_s:
                return  # the others came later
            del self._waiting[host]
            refuse(one.answer, too_late(host, patience_s))

    def _write(self, batch: Sequence[_Waiting]) -> list[LeaseAnswer | Exception | None]:
        refusals = [self._refusal(one) for one in batch]
        allowed = [one.beat for one, refusal in zip(batch, refusals, strict=True) if refusal is None]
        quiet = (
            heartbeats.renew_quiet(self._store, allowed, ttl_s=self._ttl_s, now=datetime.now(UTC)) if allowed else []
        )
        answers = iter(None if answer is None else self._with_revoked(answer) for answer in quiet)
        return [refusal or next(answers) for refusal in refusals]

    def _with_revoked(self, answer: LeaseAnswer) -> LeaseAnswer:
        revoked = self._revoked.listed()
        return answer.model_copy(update={"revoked": revoked}) if revoked else answer

    def _refusal(self, one: _Waiting) -> Exception | None:
        try:
            self._revoked.check(f"{names.NODE}/{one.beat.name}", one.peer)
            check_host(one.beat.name, one.beat.protocol)
        except PlatformError as error:
            return error
        return None

    def _write_alone(self, beat: Heartbeat) -> LeaseAnswer:
        return self._with_revoked(reports.renew_lease(self._store, beat, ttl_s=self._ttl_s, now=datetime.now(UTC)))

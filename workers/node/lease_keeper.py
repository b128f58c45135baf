"""The host's lease: reports every few seconds, and ends the ranks when the lease ends.

A report is full until a service has answered one. Then it is a heartbeat, until the facts change, or a service does not
know them. By way of Temporal it is always full.

The rules are in :class:`~gpu_platform.domain.hosts.lease_protocol.HostLease`. This module gives them the clock, the
network and the disk: a report goes to the services in turn, and to Temporal if none of them answers; ``PeerVotes`` asks
the other hosts; the lease is written to a file that the supervisors of ranks read (``node/system/lease_file.py``).

A node worker runs it in a thread and an event loop of its own, and nothing here waits for a disk, a driver or another
thread without a bound. What a report says of them comes from elsewhere: while they hang, it says what was known last,
and that the host gets no new work. So its ranks run on.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import httpx
import structlog
from pydantic import ValidationError

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import InvalidRequest, PlatformError
from gpu_platform.domain.hosts.lease import (
    REPORTS_PER_LEASE,
    Heartbeat,
    HostReport,
    LeaseAnswer,
    ReportedFacts,
)
from gpu_platform.domain.hosts.lease_protocol import HostLease, LeaseTimes, answer_within_s
from gpu_platform.domain.hosts.protocol import check_control_plane
from gpu_platform.domain.jobs.attempt import StopRequest
from gpu_platform.identity.revocation import Revoked
from gpu_platform.lanes import Stuck
from gpu_platform.node.node_worker import NodeWorker
from gpu_platform.node.system.lease_file import Lease, LeaseRecord
from gpu_platform.node.system.records import boot_clock_s
from gpu_platform.settings import Settings
from workers.node.identity import NodeIdentity
from workers.node.members import MemberList, MemberLists
from workers.node.peer_votes import PeerVotes
from workers.node.services import ServiceAddress, Services
from workers.node.temporal_turns import ALL_MAY, TemporalTurns

log = structlog.get_logger()

TemporalReporter = Callable[[HostReport], Awaitable[LeaseAnswer]]
"""Sends a report through Temporal. Raises what the Temporal client raises if it cannot."""
Reader = Callable[[Callable[[], HostReport]], Awaitable[HostReport]]
"""Calls what makes a report in a thread. Raises :class:`Stuck` if that takes too long."""
Order = Callable[[], Coroutine[Any, Any, object]]


async def _here(order: Order) -> object:
    return await order()


LOOKS_PER_LEASE, SELDOM_LOOKS_PER_LEASE = 40, 8
FACTS_UNKNOWN = 409
"""How a service answers a heartbeat whose facts it does not know."""
RESTART_NOTICE_S = 4.0
FRESH_VOTES = 0.75
"""The other hosts are asked again when less than this part of the life of a vote is left."""


class LeaseKeeper:
    """Renews the host's lease, and ends ranks when it cannot be renewed."""

    def __init__(
        self,
        settings: Settings,
        worker: NodeWorker,
        make_report: Callable[[], HostReport],
        forget_resets_before: Callable[[int], None],
        temporal: TemporalReporter,
        record: LeaseRecord,
        identity: NodeIdentity | None = None,
        members: MemberLists | None = None,
        peers: PeerVotes | None = None,
    ) -> None:
        """``forget_resets_before`` is called with the time (Unix ms) when an operator last put the host online.

        ``record``: the file of the lease; its ``write`` must not block. ``identity``: how it proves which host this is;
        None: by the settings, without TLS. ``peers``: asks the other hosts; None: over the network.
        """
        self.services = Services([settings.api_url, *settings.api_urls])
        self._cluster = settings.cluster.name
        self._restart_lease_s = settings.node.restart_lease_s
        self._worker = worker
        self._make_report = make_report
        self.read: Reader = asyncio.to_thread
        """Makes the reports."""
        self.carry_out: Callable[[Order], Awaitable[object]] = _here
        """Runs what ends ranks. A keeper with a loop of its own needs one that does it in the loop of the worker."""
        self._made: HostReport | None = None
        self._excuse_resets = forget_resets_before
        self._temporal = temporal
        self._record = record
        self._ttl_s = settings.lease_ttl_s
        self._own_interval_s = settings.node.lease_interval_s
        self._interval_s = self._own_interval_s or self._ttl_s / REPORTS_PER_LEASE
        self._facts = ReportedFacts()
        self._telemetry_in_s = 0.0
        self._telemetry_sent_at = -math.inf
        self._lists = members or MemberLists()
        self._members: MemberList | None = None
        self._identity = identity or NodeIdentity(settings)
        self._peers = peers or PeerVotes(worker.host, self._identity.peer_extensions)
        self.revoked: Revoked = {}
        """Machines whose certificates are not believed, as the service last said."""
        self.announces_restart: Callable[[], bool] = lambda: True
        """False: what runs here ends with this process, so a longer lease would only delay its next attempt."""
        self._refused = self._no_answer = ""
        self._killing: dict[AttemptKey, asyncio.Task[None]] = {}
        self._ending: asyncio.Task[object] | None = None
        self._soon = asyncio.Event()
        self._ended = False
        self._are_busy = False
        """The services take too long. Reports through Temporal cost many times as much, and would make that worse. So
        in a large cluster a host without ranks, which has nothing to lose, waits."""
        self._knows_votes = False
        """It has asked the other hosts since it had an answer."""
        self._again_by_temporal = False
        """The newest answer came through Temporal and did not renew the lease: it brought the round with which the
        next report does. That must be soon, since with an answer the votes of the other hosts are void."""
        left = record.read() or Lease(-1.0, -1.0, 0)
        self._lease = HostLease.begin(
            worker.host,
            LeaseTimes.of(self._ttl_s),
            boot_clock_s(),
            run_until=left.run_until_s,
            leased_until=left.leased_until_s,
            term=left.term,
            round=left.round,
        )
        self._turns = TemporalTurns(boot_clock_s())

    @property
    def state(self) -> HostLease:
        """The lease as it is now."""
        return self._lease

    def report_soon(self) -> None:
        """Report at once, because something changed."""
        self._soon.set()

    def votes(self) -> dict[str, float]:
        """The answer to another host that asks: member -> seconds, for votes that hold, this host's own included."""
        holds_s = self.vote()
        return {**self._lease.vote_list(boot_clock_s()), self._worker.host: holds_s}

    def vote(self) -> float:
        """For how many seconds this host gives its own vote now. 0.0: it gives none."""
        self._lease, holds_s = self._lease.vote(boot_clock_s())
        return holds_s

    async def run(self) -> None:
        """Report and renew until cancelled."""
        async with self._identity.client(answer_within_s(self._ttl_s)) as http:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._report_for_ever(http))
                    group.create_task(self._watch_lease(http))
                    group.create_task(self.services.keep_looked_up())
            except asyncio.CancelledError:
                await self._announce_restart(http)
                raise

    # -- reporting -------------------------------------------------------------------------------

    async def _report_for_ever(self, http: httpx.AsyncClient) -> None:
        reachable = True
        while True:
            self._soon.clear()
            was_reachable, reachable = reachable, await self._report(http) is not None
            if reachable != was_reachable:
                if reachable:
                    log.warning("lease.renewed_again", services=self.services.urls)
                else:
                    log.warning("lease.control_plane_away", services=self.services.urls, error=self._no_answer)
            pause = self._interval_s if reachable else min(0.5, self._interval_s) * random.uniform(0.5, 1.5)
            try:
                async with asyncio.timeout(pause):
                    await self._soon.wait()
            except TimeoutError:
                continue

    async def _report(self, http: httpx.AsyncClient, lease_s: float | None = None) -> LeaseAnswer | None:
        """Send the report to the services in turn, then through Temporal. None: none of them answered."""
        made = await self._facts_of_now()
        if made is None:
            return None
        self._are_busy = False
        if self._again_by_temporal and (answer := await self._by_temporal(made, lease_s)) is not None:
            return answer
        patience_s = self.services.patience_s(self._ttl_s)
        for service in self.services.in_order():
            answer = await self._report_by(partial(self._post, http, service), made, lease_s, patience_s)
            if answer is not None:
                self.services.answered(service)
                self._again_by_temporal = False
                return answer
        self.services.are_replaced = False
        self.services.look_up_soon()
        if self._are_busy and not made.attempts and len(self._lease.members) > ALL_MAY:
            return None
        if not self._turns.is_turn(self._lease, boot_clock_s(), self._interval_s, knows_votes=self._knows_votes):
            return None
        return await self._by_temporal(made, lease_s)

    async def _facts_of_now(self) -> HostReport | None:
        """The report, without what the lease adds. While the host cannot read it: the one before, with the attempts of
        now. None: there was none before."""
        try:
            self._made = await self.read(self._make_report)
        except Stuck as error:
            if self._made is None:
                log.warning("lease.report_not_made", error=str(error))
                return None
            why = "what this host says of itself is old: a disk or a driver of it does not answer"
            kept_away = {gpu.uuid: why for gpu in self._made.inventory.gpus}
            return self._made.model_copy(
                update={"attempts": self._worker.attempts(), "degraded": {**kept_away, **self._made.degraded}}
            )
        return self._made

    async def _by_temporal(self, made: HostReport, lease_s: float | None) -> LeaseAnswer | None:
        answer = await self._report_by(self._temporal, made, lease_s, answer_within_s(self._ttl_s))
        self.services.are_replaced = answer is not None
        if answer is not None:
            self._again_by_temporal = not answer.renewed
        return answer

    async def _report_by(
        self, send: TemporalReporter, made: HostReport, lease_s: float | None, patience_s: float
    ) -> LeaseAnswer | None:
        sent_at = boot_clock_s()
        self._lease = lease = self._lease.reporting(sent_at, lease_s)
        self._write()
        report = made.model_copy(
            update={
                "seq": int(sent_at * 1_000_000),
                "round": lease.round,
                "voted": lease.voted(sent_at),
                "members_version": lease.members_version,
                "lease_s": lease_s,
            }
        )
        try:
            async with asyncio.timeout(patience_s):
                answer = await send(report)
        except (httpx.HTTPError, ValidationError, PlatformError, TimeoutError) as error:
            self._no_answer = repr(error)[:500]
            log.debug("lease.no_answer", error=self._no_answer)
            self._are_busy |= isinstance(error, httpx.TimeoutException | TimeoutError) or _has_too_much(error)
            return None
        if not self._understands(answer):
            return None
        self._apply_answer(answer, sent_at, lease_s)
        return answer

    def _understands(self, answer: LeaseAnswer) -> bool:
        """False if the control plane is too old for this release. Says so in the log, once."""
        try:
            check_control_plane(self.services.in_order()[0].url, answer.protocol)
        except InvalidRequest as error:
            if error.message != self._refused:
                self._refused = error.message
                log.error("lease.control_plane_too_old", error=error.message)
            return False
        return True

    async def _post(self, http: httpx.AsyncClient, service: ServiceAddress, report: HostReport) -> LeaseAnswer:
        if not self._facts.must_be_full(report):
            beat = self._heartbeat(report)
            response = await self._send(http, service, "heartbeat", beat)
            if response.status_code != FACTS_UNKNOWN:
                return self._accept(service.url, response, beat)
            self._facts = self._facts.refused()
        answer = self._accept(service.url, await self._send(http, service, "report", report), report)
        self._facts = self._facts.answered(report)
        if answer.cluster not in (None, self._cluster):
            log.warning("lease.other_cluster_name", ours=self._cluster, of_service=answer.cluster, service=service.url)
        return answer

    def _heartbeat(self, report: HostReport) -> Heartbeat:
        """Without telemetry if that is not due before the next heartbeat."""
        beat = report.heartbeat()
        if boot_clock_s() - self._telemetry_sent_at < self._telemetry_in_s - self._interval_s / 2:
            return beat.model_copy(update={"telemetry": None})
        return beat

    async def _send(
        self, http: httpx.AsyncClient, service: ServiceAddress, what: str, report: Heartbeat
    ) -> httpx.Response:
        return await http.post(
            f"{service.reached_at}/v1/hosts/{report.name}/{what}",
            content=report.model_dump_json(exclude_defaults=True),
            headers={"content-type": "application/json", **service.headers, **self._identity.headers()},
            extensions=dict(service.extensions),
        )

    def _accept(self, url: str, response: httpx.Response, report: Heartbeat) -> LeaseAnswer:
        if response.status_code in (401, 403, 422):
            self._complain(url, response)
        response.raise_for_status()
        self._refused = ""
        if report.telemetry is not None:
            self._telemetry_sent_at = boot_clock_s()
        return LeaseAnswer.model_validate_json(response.content)

    def _complain(self, url: str, response: httpx.Response) -> None:
        """Log why the service refuses the reports, once for each reason."""
        if response.text != self._refused:
            self._refused = response.text
            log.error("lease.report_refused", service=url, status=response.status_code, answer=response.text[:1000])

    def _apply_answer(self, answer: LeaseAnswer, sent_at: float, lease_s: float | None) -> None:
        self._knows_votes = False
        self._ttl_s = answer.ttl_s
        self._interval_s = self._own_interval_s or answer.report_in_s or answer.ttl_s / REPORTS_PER_LEASE
        self._telemetry_in_s = answer.telemetry_in_s or 0.0
        members = self._lists.learn(self._members, answer)
        if members is not None:
            self._members = members
            self._peers.know(members.members)
        self.revoked = self.revoked if answer.revoked is None else answer.revoked
        self._lease = self._lease.with_times(LeaseTimes.of(answer.ttl_s)).answered(
            boot_clock_s(),
            sent_at=sent_at,
            round=answer.round,
            term=answer.term,
            members_version=answer.members_version,
            members=None if members is None else members.names,
            renewed=answer.renewed,
            lease_s=lease_s,
        )
        self._write()
        if not answer.renewed:
            self.report_soon()
        self._worker.checkpointing.clock.drain(answer.draining)
        if answer.online_ms is not None:
            self._excuse_resets(answer.online_ms)
        for key in answer.kill:
            if key not in self._killing:
                self._killing[key] = asyncio.create_task(self._kill(key))

    async def _kill(self, key: AttemptKey) -> None:
        log.warning("attempt.stale", job=key.job_id, attempt=key.attempt)
        try:
            request = StopRequest(key=key, host=self._worker.host, grace_s=0, reason="stale: released meanwhile")
            await self.carry_out(partial(self._worker.stop, request))
        finally:
            self._killing.pop(key, None)
            self.report_soon()

    async def _announce_restart(self, http: httpx.AsyncClient) -> None:
        """Ask for a restart lease, so that ranks may run until the next node worker is there."""
        if not self.announces_restart() or not self._worker.attempts() or not self._lease.may_run(boot_clock_s()):
            return
        renewed = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RESTART_NOTICE_S):
                # An answer that does not renew the lease brings the round that does, e.g. after a new leader began.
                while not renewed and (answer := await self._report(http, self._restart_lease_s)) is not None:
                    renewed = answer.renewed
        log.info("lease.restart", lease_s=self._restart_lease_s if renewed else self._ttl_s)

    # -- keeping to the lease ----------------------------------------------------------------------

    async def _watch_lease(self, http: httpx.AsyncClient) -> None:
        """Ask the other hosts in time, and end the ranks when the lease has ended."""
        while True:
            now = boot_clock_s()
            if self._lease.may_run(now):
                self._ended = False
                if self._lease.must_ask(now) and not self._has_fresh_votes(now):
                    await self._ask(http)
            elif not self._ended:
                self._end_ranks()
            await asyncio.sleep(self._look_again_in_s())

    def _look_again_in_s(self) -> float:
        """Often when something is due, and seldom while nothing can be: a host with a new answer has nothing to do."""
        often, seldom = self._ttl_s / LOOKS_PER_LEASE, self._ttl_s / SELDOM_LOOKS_PER_LEASE
        lease = self._lease
        due_in_s = min(lease.answered_at + lease.times.vote_after_s, lease.run_until) - boot_clock_s()
        return max(often, min(due_in_s, seldom))

    def _has_fresh_votes(self, now: float) -> bool:
        """The votes that it has let ranks run for most of the time for which new ones would."""
        return self._knows_votes and self._lease.run_until - now > FRESH_VOTES * self._lease.times.vote_for_s

    async def _ask(self, http: httpx.AsyncClient) -> None:
        asked_at = boot_clock_s()
        given = await self._peers.ask(http, self._ttl_s / 10)
        self._knows_votes = True
        before = self._lease.run_until
        self._lease = self._lease.given(asked_at, given).counted(boot_clock_s())
        if self._lease.run_until != before:
            self._write()
        log.warning(
            "lease.asked_other_hosts",
            votes=sorted(name for name, holds_s in given.items() if holds_s > 0),
            members=len(self._lease.members),
            ranks_may_run_s=round(self._lease.run_until - boot_clock_s(), 2),
        )

    def _end_ranks(self) -> None:
        """Begin to end the ranks. It lasts as long as one of them does not die, and nothing here waits for it."""
        attempts = self._worker.attempts()
        if attempts:
            log.error("lease.ended", attempts=[str(key) for key in attempts])
        self._ended = True
        if self._ending is None or self._ending.done():
            self._ending = asyncio.create_task(self._end_all())

    async def _end_all(self) -> None:
        try:
            await self.carry_out(self._worker.end_ranks_without_lease)
        except PlatformError as error:
            log.error("lease.ranks_not_ended", error=error.message)
            self._ended = False  # it is tried again

    def _write(self) -> None:
        lease = self._lease
        try:
            self._record.write(Lease(lease.run_until, lease.leased_until, lease.term, lease.round))
        except (
            OSError
        ) as error:  # the disk is full: ranks end with the lease that is on disk, unless it is renewed in time
            log.error("lease.not_written", error=str(error))


def _has_too_much(error: Exception) -> bool:
    """A service refuses reports that have waited for too long, and it cannot write them while the disk of the database
    is full: the way through Temporal leads to the same database."""
    return isinstance(error, httpx.HTTPStatusError) and error.response.status_code in (
        httpx.codes.SERVICE_UNAVAILABLE,
        httpx.codes.INSUFFICIENT_STORAGE,
    )

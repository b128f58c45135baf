"""The client for code without asyncio: every method returns when the service has answered.

This file is generated from ``aio.py`` by ``make client``: change that one.
"""

from __future__ import annotations

import builtins
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import httpx
from httpx_sse import ServerSentEvent, connect_sse
from pydantic import BaseModel

from gpu_platform.client import calls
from gpu_platform.client.calls import Call
from gpu_platform.client.connection import Connection, may_repeat, retry_after_s, retry_delays
from gpu_platform.client.sync_pipelines import Pipelines
from gpu_platform.client.sync_schedules import Schedules
from gpu_platform.client.wire import (
    CheckpointAsked,
    CheckpointRoot,
    DryRun,
    Health,
    LogChunk,
    Page,
    Problem,
    problem_of_response,
)
from gpu_platform.domain.access.enrollment import Enrollment
from gpu_platform.domain.access.secrets import SecretInfo, SecretValue
from gpu_platform.domain.access.tokens import LoginInfo, NewToken, TokenInfo, TokenRequest, WhoAmI
from gpu_platform.domain.audit import AuditRecord
from gpu_platform.domain.cluster_report import ClusterReport
from gpu_platform.domain.errors import TooManyRequests, Unavailable
from gpu_platform.domain.events import Event
from gpu_platform.domain.hosts.gpu import ClusterCounts, Gpu, GpuHealth, Host
from gpu_platform.domain.hosts.remediation import RemediationStatus, ServiceCase
from gpu_platform.domain.jobs.array import Array, ArraySpec
from gpu_platform.domain.jobs.checkpoint import CheckpointInfo
from gpu_platform.domain.jobs.exec import ExecChunk, ExecReceived, ExecRequest, ExecSession
from gpu_platform.domain.jobs.job import Job, QueueEntry
from gpu_platform.domain.jobs.placement import Reason
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.jobs.usage import JobUsage, UsageReport
from gpu_platform.domain.jobs.work_kind import WorkKind
from gpu_platform.domain.placing.cluster_state import ClusterState
from gpu_platform.domain.states import ArrayState, GpuState, JobState

M = TypeVar("M", bound=BaseModel)
E = TypeVar("E", Job, Array)


class Client:
    """Talks to the service at ``base_url`` (default: ``GPU_PLATFORM_API_URL``, then ``http://127.0.0.1:8700``).

    With several addresses (default: also those in ``GPU_PLATFORM_API_URLS``) the first is asked until it does not
    answer or is unavailable, then the next. All must be services of one cluster: each of them may get the token.

    Every method raises the errors of :mod:`gpu_platform.domain.errors`. A connection error or a 503 is retried with
    back-off for ``retry_for_s`` seconds, then becomes :class:`Unavailable`. ``token`` defaults to the one that
    :mod:`gpu_platform.client.credentials` finds. ``user``: the user for whom an operator of the cluster acts.
    ``break_glass``: why an operator enters jobs of others.
    """

    def __init__(
        self,
        base_url: str | Sequence[str] | None = None,
        *,
        token: str | None = None,
        user: str | None = None,
        break_glass: str | None = None,
        retry_for_s: float = 10.0,
        **http_options: Any,
    ) -> None:
        self._connection = Connection(base_url, token, user, break_glass, retry_for_s)
        self._http = httpx.Client(**self._connection.http_options() | http_options)
        self.schedules = Schedules(self)
        self.pipelines = Pipelines(self)

    @property
    def base_url(self) -> str:
        """The address of the service; of several, the first."""
        return self._connection.base_url

    def submit(self, spec: JobSpec, *, idempotency_key: str | None = None) -> Job:
        """Submit a job. With the same key and spec the same job comes back, however often this is sent."""
        return self.send(calls.submit(spec, idempotency_key), Job)

    def dry_run(self, spec: JobSpec) -> DryRun:
        """Where and when the job would start. Nothing is submitted."""
        return self.send(calls.dry_run(spec), DryRun)

    def reason(self, job_id: str) -> Reason:
        """Why this one job waits. It is computed for this job, which may take a second in a large cluster."""
        return self.send(calls.reason(job_id), Reason)

    def queue(self, *, namespace: str | None = None, page_size: int = 100) -> Iterator[QueueEntry]:
        """Waiting jobs, the next one first, each with its reason."""
        return self.pages(Page[QueueEntry], lambda cursor: calls.queue(namespace, cursor, page_size))

    def snapshot(self) -> ClusterState:
        """The live state of the cluster as one document."""
        return self.send(calls.snapshot(), ClusterState)

    def get(self, job_id: str) -> Job:
        """One job. Raises :class:`NotFound`."""
        return self.send(calls.job(job_id), Job)

    def list(
        self,
        *,
        states: Iterable[JobState | str] | None = None,
        namespace: str | None = None,
        user: str | None = None,
        name: str | None = None,
        kind: WorkKind | str | None = None,
        page_size: int = 100,
    ) -> Iterator[Job]:
        """All jobs that match, newest first. Pages are fetched as they are needed."""
        wanted = [*states] if states else None
        return self.pages(Page[Job], lambda cursor: calls.jobs(wanted, namespace, user, name, kind, cursor, page_size))

    def submit_array(self, spec: JobSpec, array: ArraySpec, *, idempotency_key: str | None = None) -> Array:
        """Submit an array: ``spec`` is what its elements share. With the same key the same array comes back."""
        return self.send(calls.submit_array(spec, array, idempotency_key), Array)

    def array(self, array_id: str) -> Array:
        """One array. Raises :class:`NotFound`."""
        return self.send(calls.array(array_id), Array)

    def arrays(
        self,
        *,
        states: Iterable[ArrayState | str] | None = None,
        namespace: str | None = None,
        user: str | None = None,
        name: str | None = None,
        kind: WorkKind | str | None = None,
        page_size: int = 100,
    ) -> Iterator[Array]:
        """All arrays that match, newest first."""
        wanted, model = [*states] if states else None, Page[Array]
        return self.pages(model, lambda cursor: calls.arrays(wanted, namespace, user, name, kind, cursor, page_size))

    def elements(
        self, array_id: str, *, states: Iterable[JobState | str] | None = None, page_size: int = 100
    ) -> Iterator[Job]:
        """The elements of an array that have entered the queue, by index."""
        wanted = [*states] if states else None
        return self.pages(Page[Job], lambda cursor: calls.elements(array_id, wanted, cursor, page_size))

    def cancel_array(self, array_id: str, reason: str = "", *, elements: str | None = None) -> Array:
        """Stop the array, or only ``elements`` (``5-9,17``): SIGTERM, the grace, SIGKILL. Returns at once."""
        return self.send(calls.interrupt_array("cancel", array_id, reason, elements), Array)

    def kill_array(self, array_id: str, reason: str = "", *, elements: str | None = None) -> Array:
        """Stop the array, or only ``elements``, with SIGKILL at once."""
        return self.send(calls.interrupt_array("kill", array_id, reason, elements), Array)

    def retry_array(self, array_id: str, *, elements: str | None = None, idempotency_key: str | None = None) -> Array:
        """Submit a new array that runs ``elements`` again; None: those that FAILED."""
        return self.send(calls.retry_array(array_id, elements, idempotency_key), Array)

    def wait_for_array(self, array_id: str, timeout_s: float | None = None) -> Array:
        """Wait until the array has ended, and return it. Raises :class:`TimeoutError` after ``timeout_s`` seconds."""
        return self._wait(lambda wait_s: calls.array(array_id, wait_s), Array, timeout_s)

    def checkpoints(self, job_id: str, *, verify: bool = False) -> builtins.list[CheckpointInfo]:
        """All checkpoints that its hosts see, oldest first. ``verify``: read and check every byte."""
        return (self.send(calls.checkpoints(job_id, verify), Page[CheckpointInfo])).items

    def ask_for_checkpoint(self, job_id: str) -> CheckpointAsked:
        """Ask the program of a running job to save now."""
        return self.send(calls.ask_for_checkpoint(job_id), CheckpointAsked)

    def check_checkpoint_roots(self) -> builtins.list[CheckpointRoot]:
        """Which hosts share a checkpoint root. The hosts test it with a file."""
        return (self.send(calls.check_checkpoint_roots(), Page[CheckpointRoot])).items

    def cancel(self, job_id: str, reason: str = "") -> Job:
        """Stop the job with SIGTERM, its grace, SIGKILL. Returns at once; :meth:`wait` waits for the end."""
        return self.send(calls.interrupt("cancel", job_id, reason), Job)

    def kill(self, job_id: str, reason: str = "") -> Job:
        """Stop the job with SIGKILL at once."""
        return self.send(calls.interrupt("kill", job_id, reason), Job)

    def preempt(self, job_id: str, reason: str = "") -> Job:
        """Stop the job with its grace to write a checkpoint, and queue it again."""
        return self.send(calls.interrupt("preempt", job_id, reason), Job)

    def wait(self, job_id: str, timeout_s: float | None = None) -> Job:
        """Wait until the job has ended, and return it. Raises :class:`TimeoutError` after ``timeout_s`` seconds."""
        return self._wait(lambda wait_s: calls.job(job_id, wait_s), Job, timeout_s)

    def events(self, job_id: str | None = None, *, after: int | None = None, follow: bool = False) -> Iterator[Event]:
        """The events of one job or of everything, oldest first, after sequence number ``after``.

        With ``follow`` it goes on as things happen: until the job has ended, or for ever without ``job_id`` (then it
        starts now unless ``after`` is given).
        """
        if follow:
            call = calls.job_events(job_id, after, True) if job_id else calls.events(after, True)
            return (Event.model_validate_json(sse.data) for sse in self._follow(call))

        def page(cursor: str | None) -> Call:
            start = int(cursor) if cursor else after
            return calls.job_events(job_id, start, False) if job_id else calls.events(start or 0, False)

        return self.pages(Page[Event], page)

    def logs(self, job_id: str, *, rank: int = 0, attempt: int | None = None) -> str:
        """The output of rank ``rank`` in the attempt (default: the last attempt)."""
        return (self.answer(calls.logs(job_id, rank, attempt, False))).text

    def follow_logs(self, job_id: str, *, rank: int = 0, attempt: int | None = None) -> Iterator[LogChunk]:
        """The output as it is written, of all attempts or of one. It ends when the job (or the attempt) has ended."""
        call = calls.logs(job_id, rank, attempt, True)
        return (LogChunk.model_validate_json(sse.data) for sse in self._follow(call))

    def exec(self, job_id: str, request: ExecRequest) -> ExecSession:
        """Start a command beside a rank of a running job. It is ended after 30 s if nobody reads its output."""
        return self.send(calls.exec_start(job_id, request), ExecSession)

    def exec_output(self, session: ExecSession, *, offset: int = 0) -> Iterator[ExecChunk]:
        """The command's output while it runs. The last chunk has the exit code."""
        follow = self._follow(calls.exec_output(session, offset))
        return (ExecChunk.model_validate_json(sse.data) for sse in follow)

    def exec_input(self, session: ExecSession, data: bytes, *, offset: int, eof: bool = False) -> int:
        """Send input that begins at byte ``offset`` of all input. Returns how many bytes the command has had so far."""
        call = calls.exec_input(session, data, offset, eof)
        return (self.send(call, ExecReceived)).received

    def exec_resize(self, session: ExecSession, rows: int, columns: int) -> None:
        """Set the size of the command's terminal."""
        self.answer(calls.exec_resize(session, rows, columns))

    def exec_end(self, session: ExecSession) -> None:
        """Kill the command with SIGKILL."""
        self.answer(calls.exec_end(session))

    def ready(self) -> Health:
        """The state of the service. Raises :class:`Unavailable` if it cannot do its work."""
        return self.send(calls.ready(), Health)

    def counts(self) -> ClusterCounts:
        """How many hosts and GPUs are in each state. Cheap in a cluster of any size."""
        return self.send(calls.counts(), ClusterCounts)

    def hosts(self) -> Iterator[Host]:
        """All hosts, by name."""
        return self.pages(Page[Host], calls.hosts)

    def host(self, name: str) -> Host:
        """One host. Raises :class:`NotFound`."""
        return self.send(calls.host(name), Host)

    def enroll_host(self, name: str, *, address: str | None = None, valid_s: float = 3600.0) -> Enrollment:
        """A join token for a new host, which works once and for ``valid_s`` seconds."""
        return self.send(calls.enroll_host(name, address, valid_s), Enrollment)

    def revoke_host(self, name: str) -> None:
        """Believe the host's certificates no more, until it is enrolled again. Raises :class:`NotFound`."""
        self.answer(calls.revoke_host(name))

    def remove_host(self, name: str) -> None:
        """Forget a host that is LOST or DRAINED and holds nothing."""
        self.answer(calls.remove_host(name))

    def declare_lost(self, name: str, *, force: bool = False, reason: str = "") -> Host:
        """Declare the host dead. If it is only cut off, its old ranks may run beside the new ones."""
        return self.send(calls.set_host(name, "declare-lost", force, reason), Host)

    def drain(self, name: str, *, force: bool = False, reason: str = "") -> Host:
        """Give the host no new work. Running jobs go on; with ``force`` they are preempted."""
        return self.send(calls.set_host(name, "drain", force, reason), Host)

    def online(self, name: str, reason: str = "") -> Host:
        """Put the host back into service: ends its cordon, its quarantine and its repair."""
        return self.send(calls.set_host(name, "online", False, reason), Host)

    def offline(self, name: str, *, force: bool = False, reason: str = "") -> Host:
        """Take the host out of service at once. Refused while jobs run there, unless ``force`` kills them."""
        return self.send(calls.set_host(name, "offline", force, reason), Host)

    def gpus(self, *, host: str | None = None, states: Iterable[GpuState | str] | None = None) -> Iterator[Gpu]:
        """All GPUs that match, by host and index."""
        wanted = [*states] if states else None
        return self.pages(Page[Gpu], lambda cursor: calls.gpus(host, wanted, cursor))

    def gpu(self, gpu_id: str) -> Gpu:
        """One GPU. ``gpu_id``: uuid, a unique beginning of it, or ``host:index``."""
        return self.send(calls.gpu(gpu_id), Gpu)

    def gpu_events(self, gpu_id: str, limit: int = 50) -> builtins.list[Event]:
        """Its newest events, oldest first: faults, resets, changes of its state."""
        return (self.send(calls.gpu_events(gpu_id, limit), Page[Event])).items

    def remediation(self, gpu_id: str) -> RemediationStatus:
        """The state of its remediation. Raises :class:`NotFound` if there is none."""
        return self.send(calls.remediation(gpu_id), RemediationStatus)

    def order_remediation(self, gpu_id: str, verb: Literal["approve", "veto"], reason: str = "") -> RemediationStatus:
        """Approve or veto the step that waits for an operator."""
        return self.send(calls.order_remediation(gpu_id, verb, reason), RemediationStatus)

    def service_case(self, gpu_id: str) -> ServiceCase:
        """The GPU's record for its vendor."""
        return self.send(calls.service_case(gpu_id), ServiceCase)

    def gpu_online(self, gpu_id: str, reason: str = "") -> Gpu:
        """Put the GPU back into service: ends its cordon and its remediation."""
        return self.send(calls.set_gpu(gpu_id, "online", False, reason), Gpu)

    def gpu_health(self, gpu_id: str) -> GpuHealth:
        """What its host measures right now. Raises :class:`HostUnavailable` if the host does not answer."""
        return self.send(calls.gpu_health(gpu_id), GpuHealth)

    def gpu_drain(self, gpu_id: str, *, force: bool = False, reason: str = "") -> Gpu:
        """Give the GPU no new work. ``force`` preempts the jobs that run on it."""
        return self.send(calls.set_gpu(gpu_id, "drain", force, reason), Gpu)

    def gpu_offline(self, gpu_id: str, *, force: bool = False, reason: str = "") -> Gpu:
        """Take the GPU OFFLINE. Refused while jobs hold it, unless ``force`` kills them."""
        return self.send(calls.set_gpu(gpu_id, "offline", force, reason), Gpu)

    def job_usage(self, job_id: str) -> JobUsage:
        """The usage of its ended attempts, and the current usage of the one that runs."""
        return self.send(calls.job_usage(job_id), JobUsage)

    def usage(
        self,
        *,
        namespace: str | None = None,
        user: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> UsageReport:
        """Sums over the attempts that ended from ``since`` to before ``until`` (times with a time zone)."""
        return self.send(calls.usage(namespace, user, since, until), UsageReport)

    def report(self, *, since: datetime | None = None, until: datetime | None = None) -> ClusterReport:
        """The key figures of the cluster from ``since`` (default: seven days before) to before ``until`` (now)."""
        return self.send(calls.report(since, until), ClusterReport)

    def how_to_sign_in(self) -> LoginInfo:
        """Where people sign in."""
        return self.send(calls.how_to_sign_in(), LoginInfo)

    def who_am_i(self) -> WhoAmI:
        """Who the service takes the owner of the token for, and what that one may do."""
        return self.send(calls.who_am_i(), WhoAmI)

    def create_token(self, request: TokenRequest) -> NewToken:
        """Make an API token. It is shown only in this answer."""
        return self.send(calls.create_token(request), NewToken)

    def tokens(self) -> Iterator[TokenInfo]:
        """One's own tokens; for an admin also those of others. Oldest first."""
        return self.pages(Page[TokenInfo], calls.tokens)

    def revoke_token(self, token_id: str) -> TokenInfo:
        """End a token at once."""
        return self.send(calls.revoke_token(token_id), TokenInfo)

    def secrets(self, *, namespace: str | None = None) -> Iterator[SecretInfo]:
        """Secrets of one's namespaces, without their values."""
        return self.pages(Page[SecretInfo], lambda cursor: calls.list_secrets(namespace, cursor))

    def set_secret(self, namespace: str, name: str, value: SecretValue) -> SecretInfo:
        """Keep a secret. Nobody reads its value back."""
        return self.send(calls.set_secret(namespace, name, value), SecretInfo)

    def delete_secret(self, namespace: str, name: str) -> None:
        """Remove a secret."""
        self.answer(calls.delete_secret(namespace, name))

    def audit(self, *, since: datetime | None = None) -> Iterator[AuditRecord]:
        """The audit log, oldest first, from ``since`` (with a time zone) or from its beginning."""
        return self.pages(Page[AuditRecord], lambda cursor: calls.audit(since, cursor))

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait(self, call: Callable[[float], Call], model: type[E], timeout_s: float | None) -> E:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = calls.LONG_POLL_S if deadline is None else deadline - time.monotonic()
            found = self.send(call(max(0.0, min(left, calls.LONG_POLL_S))), model)
            if found.state.is_terminal:
                return found
            if deadline is not None and time.monotonic() >= deadline:
                what = "job" if isinstance(found, Job) else "array"
                raise TimeoutError(f"{what} {found.id} is {found.state} after {timeout_s} s")

    def send(self, call: Call, model: type[M]) -> M:
        """Send a request, and read its answer."""
        return model.model_validate_json((self.answer(call)).content)

    def answer(self, call: Call) -> httpx.Response:
        """Send a request, again after errors that pass."""
        deadline = time.monotonic() + self._connection.retry_for_s
        for delay in retry_delays():
            url = self._connection.current
            try:
                response = self._http.request(call.method, url + call.path, **self._connection.request_options(call))
            except httpx.TransportError as error:
                self._connection.pass_over(url)
                if not may_repeat(call, error) or time.monotonic() + delay > deadline:
                    raise self._connection.unavailable_error(error) from error
            else:
                if response.is_success:
                    return response
                problem = problem_of_response(response.status_code, response.headers, response.content)
                if response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
                    self._connection.pass_over(url)
                delay = retry_after_s(response.headers) or delay
                # A 429 says that nothing was done.
                safe = call.repeatable or response.status_code == 429
                if not (problem.retryable and safe) or time.monotonic() + delay > deadline:
                    raise problem.error()
            time.sleep(delay)
        raise AssertionError("retry_delays has no end")

    def pages(self, model: type[Page[M]], call: Callable[[str | None], Call]) -> Iterator[M]:
        """The items of all pages. ``call`` makes the request for the page at a cursor."""
        cursor: str | None = None
        while True:
            page = self.send(call(cursor), model)
            yield from page.items
            cursor = page.next_cursor
            if cursor is None:
                return

    def _follow(self, call: Call) -> Iterator[ServerSentEvent]:
        """Server-sent events. After a broken connection it continues after the last event that was received."""
        last_id = ""
        deadline = time.monotonic() + self._connection.retry_for_s
        delays = retry_delays()
        while True:
            opened, failure = False, None
            url = self._connection.current
            try:
                with connect_sse(
                    self._http, call.method, url + call.path, **self._connection.stream_options(call, last_id)
                ) as source:
                    if not source.response.is_success:
                        body = source.response.read()
                        raise problem_of_response(source.response.status_code, source.response.headers, body).error()
                    opened = True
                    for sse in source.iter_sse():
                        if sse.event == "end":
                            return
                        if not sse.data:
                            continue  # a keep-alive: once an id was seen, httpx-sse makes an event of it
                        if sse.event == "problem":
                            raise Problem.model_validate_json(sse.data).error()
                        last_id = sse.id or last_id
                        yield sse
            except httpx.TransportError as error:
                self._connection.pass_over(url)
                failure = self._connection.unavailable_error(error)
            except Unavailable as error:
                if not isinstance(error, TooManyRequests):
                    self._connection.pass_over(url)
                failure = error
            if opened:  # the service was restarted, or the network broke
                deadline, delays = time.monotonic() + self._connection.retry_for_s, retry_delays()
            elif failure is not None and time.monotonic() > deadline:
                raise failure
            time.sleep(max(next(delays), failure.retry_after_s if failure is not None else 0.0))

# Generated from aio/asking.py (make client): do not edit, change that one.
"""Sends requests, again after errors that pass, and follows streams."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Self, TypeVar

from gpu_platform.client import calls, models
from gpu_platform.client.answer import Answer, NoAnswer
from gpu_platform.client.calls import Call
from gpu_platform.client.connection import Connection, chosen_transport, may_repeat, retry_after_s, retry_delays
from gpu_platform.client.http_sync import Http, Stream
from gpu_platform.client.listing import listed
from gpu_platform.domain.errors import PlatformError, TooManyRequests, Unavailable

if TYPE_CHECKING:
    from types import TracebackType

    from pydantic import BaseModel

    from gpu_platform.client.answer import ServerSentEvent
    from gpu_platform.client.connection import Transport
    from gpu_platform.client.wire import Page
    from gpu_platform.domain.jobs.array import Array
    from gpu_platform.domain.jobs.job import Job

M = TypeVar("M", bound="BaseModel")
E = TypeVar("E", "Job", "Array")
R = TypeVar("R", bound=Answer | Stream)


class Asking:
    """Connections to the services of a cluster, and who asks. The parameters are those of the client."""

    def __init__(
        self,
        base_url: str | Sequence[str] | None,
        token: str | None,
        user: str | None,
        break_glass: str | None,
        retry_for_s: float,
        transport: Transport | None,
        http_options: dict[str, Any],
    ) -> None:
        self._connection = Connection(base_url, token, user, break_glass, retry_for_s)
        self._http: Http
        if chosen_transport(transport) == "grpc":
            from gpu_platform.client.sync.rpc_sender import RpcSender  # gRPC takes 0.2 s to import

            self._http = RpcSender(self._connection, **http_options)  # type: ignore[assignment]
        else:
            self._http = Http(self._connection, **http_options)

    @property
    def base_url(self) -> str:
        """The address of the service; of several, the first."""
        return self._connection.base_url

    def send(self, call: Call, model: type[M]) -> M:
        """Send a request, and read its answer."""
        return model.model_validate_json((self.answer(call)).content)

    def json(self, call: Call) -> Any:
        """Send a request. The answer as plain JSON, unchecked: for who passes it on, or shows a part of it."""
        return json.loads((self.answer(call)).content)

    def answer(self, call: Call) -> Answer:
        """Send a request, again after errors that pass."""
        deadline = time.monotonic() + self._connection.retry_for_s
        for tries, delay in enumerate(retry_delays()):
            url = self._connection.current
            try:
                answer = self._send(url, call, tries)
            except NoAnswer as error:
                self._connection.pass_over(url)
                if not may_repeat(call, error) or self._connection.gives_up(tries + 1, deadline - delay):
                    raise self._connection.unavailable_error(error) from error
            except Unavailable:  # of who renews the token: the request was refused, and so nothing was done
                if self._connection.gives_up(len(self._connection.base_urls), deadline - delay):
                    raise
            else:
                if answer.is_success:
                    return answer
                error = _error_of(answer)
                services_asked = len(self._connection.base_urls)  # an answer of one is the answer of all
                if answer.status == 503:
                    self._connection.pass_over(url)
                    services_asked = tries + 1
                delay = retry_after_s(answer.headers) or delay
                # A 429 says that nothing was done.
                safe = call.repeatable or answer.status == 429
                if not (error.retryable and safe) or self._connection.gives_up(services_asked, deadline - delay):
                    raise error
            time.sleep(delay)
        raise AssertionError("retry_delays has no end")

    @listed
    def pages(self, model: type[Page[M]], call: Callable[[str | None], Call]) -> Iterator[M]:
        """The items of all pages. ``call`` makes the request for the page at a cursor."""
        cursor: str | None = None
        while True:
            page = self.send(call(cursor), model)
            yield from page.items
            cursor = page.next_cursor
            if cursor is None:
                return

    def json_pages(self, call: Callable[[str | None], Call]) -> Iterator[dict[str, Any]]:
        """As :meth:`pages`, with each item as plain JSON, unchecked."""
        cursor: str | None = None
        while True:
            page = self.json(call(cursor))
            yield from page["items"]
            cursor = page.get("next_cursor")
            if cursor is None:
                return

    def _follow(self, call: Call, on_connection: Callable[[bool], object] = bool) -> Iterator[ServerSentEvent]:
        """Server-sent events. After a broken connection it continues after the last event that was received."""
        last_id = ""
        deadline = time.monotonic() + self._connection.retry_for_s
        delays, tries = retry_delays(), 0
        while True:
            opened, failure, tries = False, None, tries + 1
            url = self._connection.current
            try:
                stream, token = self._open(url, call, last_id)
                with closing(stream):
                    opened = True
                    on_connection(True)
                    for event in stream.events():
                        if event.event == "end":
                            return
                        if not event.data:
                            continue  # a keep-alive: once an id was seen, httpx-sse makes an event of it
                        if event.event == "problem":
                            self._look_for_newer(token, models.Problem.model_validate_json(event.data))
                            break
                        last_id = event.id or last_id
                        yield event
            except NoAnswer as error:
                self._connection.pass_over(url)
                failure = self._connection.unavailable_error(error)
            except Unavailable as error:
                if not isinstance(error, TooManyRequests):
                    self._connection.pass_over(url)
                failure = error
            if failure is not None:  # else the service ended it, e.g. because its token did: the next one opens at once
                on_connection(False)
            if opened:  # the service was restarted, or the network broke
                deadline, delays, tries = time.monotonic() + self._connection.retry_for_s, retry_delays(), 0
            elif failure is not None and self._connection.gives_up(tries, deadline):
                raise failure
            time.sleep(max(next(delays), failure.retry_after_s if failure is not None else 0.0))

    def _wait(self, call: Callable[[float], Call], model: type[E], timeout_s: float | None, progress: bool) -> E:
        if not progress:
            return self._ask_until_ended(call, model, timeout_s, calls.LONG_POLL_S, lambda found: None)
        from gpu_platform.client.progress import LOOK_EVERY_S, Progress

        with Progress() as bar:
            return self._ask_until_ended(call, model, timeout_s, LOOK_EVERY_S, bar.show)

    def _ask_until_ended(
        self,
        call: Callable[[float], Call],
        model: type[E],
        timeout_s: float | None,
        poll_s: float,
        show: Callable[[E], None],
    ) -> E:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = poll_s if deadline is None else deadline - time.monotonic()
            found = self.send(call(max(0.0, min(left, poll_s))), model)
            show(found)
            if found.state.is_terminal:
                return found
            if deadline is not None and time.monotonic() >= deadline:
                what = "job" if isinstance(found, models.Job) else "array"
                raise TimeoutError(f"{what} {found.id} is {found.state} after {timeout_s} s")

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, url: str, call: Call, tries: int) -> Answer:
        answer, _ = self._signed(lambda token: self._http.send(url, call, token, tries))
        return answer

    def _open(self, url: str, call: Call, last_id: str) -> tuple[Stream, str | None]:
        """A stream of the events after ``last_id``, and the token that opened it. Raises :class:`PlatformError`,
        :class:`NoAnswer`."""
        found, used = self._signed(lambda token: self._http.open(url, call, token, last_id))
        if isinstance(found, Answer):
            raise _error_of(found)
        return found, used

    def _signed(self, ask: Callable[[str | None], R]) -> tuple[R, str | None]:
        """What comes for the token, and the token. If that one is refused: for a newer one, if there is one."""
        token = self._connection.token
        used = token.kept or token.current()
        answer = ask(used)
        if (newer := self._newer(answer.status, used)) is not None:
            return ask(newer), newer
        return answer, used

    def _look_for_newer(self, used: str | None, problem: models.Problem) -> None:
        """A stream ended with a problem. Return if a newer token may go on with it, else raise its error."""
        if self._newer(problem.status, used) is None:
            raise problem.error()

    def _newer(self, status: int, used: str | None) -> str | None:
        """A newer token than the one that was answered with this status. None: it was not refused, or there is none."""
        token = self._connection.token
        if not token.may_be_old(status):
            return None
        newest = token.newest(used)
        return None if newest == used else newest


def _error_of(answer: Answer) -> PlatformError:
    from gpu_platform.client.wire import problem_of_response

    return problem_of_response(answer.status, answer.headers, answer.content).error()

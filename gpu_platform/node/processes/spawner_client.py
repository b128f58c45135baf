"""The node worker's side of the spawner and of the guard: starts them, talks to them, replaces them when they die."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import structlog

import gpu_platform
from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.node.isolation.orders import JailOrder, RankOrder
from gpu_platform.node.processes.spawner import HELPER, OTHER, PLAIN
from gpu_platform.node.system.lease_page import (
    LEASED,
    RELAXED,
    GuardSeen,
    SlotContent,
    anonymous_page,
    attempt_mark,
    newest_guard,
    open_page,
    taken_slots,
)

log = structlog.get_logger(__name__)

_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); from gpu_platform.node.processes.guard import main; "
    "main(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), forks=sys.argv[5] == 'forks')"
)
_ANSWER_TIMEOUT_S = 30.0
_START_TIMEOUT_S = 10.0
_END_TIMEOUT_S = 2.0
_TRIES = 3
_GUARD_AGAIN_S = 1.0
"""Between two tries to start a guard."""
STANDS_STILL_S = 3.0
"""A guard that has not looked for so long stands still. It looks every second, and a lease that was just renewed lasts
for longer: another guard is there before it ends."""
_LOOK_S = 1.0


class SpawnerClient:
    """Sends orders to the spawner, and keeps a guard. Thread-safe.

    ``page``: of the host's lease, see ``lease_page``. None: it has none, and the guard only ends what killed
    supervisors leave. ``start_ranks`` may be called again after any failure: a rank starts only once.
    """

    def __init__(self, page: str | None = None) -> None:
        self._lock = threading.Lock()
        self._page = page
        self._page_fd: int | None = None
        self._connection: _SpawnerConnection | None = None
        self._guards: list[_Process] = []
        self._closed = threading.Event()
        self.on_guard: Callable[[dict[str, Any]], None] = lambda begun: None
        """Called when a guard has begun, with its pid (``guard``) and what it could not have (``without``)."""

    def start_ranks(self, orders: Sequence[RankOrder | JailOrder]) -> list[dict[str, Any]]:
        """Start ranks or jails, with one answer for each order; see
        :func:`gpu_platform.node.processes.supervisor.supervise`.

        Raises :class:`HostUnavailable` if several spawners in a row die or do not answer.
        """
        answers: list[dict[str, Any] | None] = [None] * len(orders)
        for _ in range(_TRIES):
            open_orders = [i for i, answer in enumerate(answers) if answer is None]
            if not open_orders:
                break
            connection = self._connect()
            futures = connection.send([orders[i] for i in open_orders])
            for i, future in zip(open_orders, futures, strict=True):
                try:
                    answers[i] = future.result(_ANSWER_TIMEOUT_S)
                except _Gone:
                    continue
                except TimeoutError:
                    connection.kill()
                    raise HostUnavailable(f"the spawner did not answer within {_ANSWER_TIMEOUT_S:g} s") from None
        result = [answer for answer in answers if answer is not None]
        if len(result) < len(orders):
            raise HostUnavailable("the process that starts ranks was killed each time it was started")
        return result

    def start_helper(self, fds: Sequence[int]) -> None:
        """Start a helper of ``jobs exec``. ``fds``: its socket, stdin, stdout, stderr. Raises
        :class:`HostUnavailable`."""
        try:
            answer = self._connect().send_helper(fds).result(_ANSWER_TIMEOUT_S)
        except (OSError, TimeoutError, _Gone) as error:
            raise HostUnavailable(f"the host cannot start a process: {error or 'its spawner was killed'}") from None
        if answer["status"] != "started":
            raise HostUnavailable(f"the host cannot start a process: {answer['message']}")

    def start(self) -> None:
        """Start spawner and guard now, e.g. for ranks that an earlier node worker started. They need not be there when
        this returns. If they cannot be started, that is logged: supervisors end their ranks with the lease without."""
        try:
            self._connect()
        except OSError as error:
            log.error("guard.not_started", error=str(error))

    @property
    def pid(self) -> int:
        """The pid of the spawner. Starts one if there is none."""
        return self._connect().wait_begun()["spawner"]

    @property
    def guard_pids(self) -> list[int]:
        """The pids of the guards that this node worker has started and that live: usually one."""
        with self._lock:
            guards = list(self._guards)
        return [guard.process.pid for guard in guards if guard.process.poll() is None]

    def registered(self, attempt_dir: str) -> list[SlotContent]:
        """The ranks of the attempt that run here, as their supervisors say it in the page. No disk is asked."""
        fd, mark = self._page_fd, attempt_mark(attempt_dir)
        if fd is None:
            return []
        slots = taken_slots(lambda at, size: os.pread(fd, size, at))
        return [slot for _, slot in slots if slot.state in (RELAXED, LEASED) and slot.attempt == mark]

    def close(self) -> None:
        """End the spawner. Ranks and their supervisors go on, and so does the guard while there are any."""
        with self._lock:
            self._closed.set()
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            for guard in self._guards:
                guard.leave()
            if self._page_fd is not None:
                os.close(self._page_fd)
                self._page_fd = None

    def _connect(self) -> _SpawnerConnection:
        with self._lock:
            if self._connection is None or self._connection.gone:
                if self._connection is not None:
                    self._connection.close()
                self._closed.clear()
                orders, theirs = socket.socketpair()
                with theirs:
                    process = self._start_guard("forks", stdin=theirs.fileno())
                self._connection = _SpawnerConnection(process.process, orders, self.on_guard)
            return self._connection

    def _start_guard(self, what: str, *, stdin: int) -> _Process:
        if self._page_fd is None:
            self._page_fd = anonymous_page() if self._page is None else open_page(self._page)
        root = str(Path(gpu_platform.__file__).parent.parent)
        life, ours = os.pipe()
        arguments = [root, str(self._page_fd), self._page or "", str(life), what]
        try:
            # No site packages and an empty environment: the process is small, and supervisors inherit nothing secret.
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-X", "utf8", "-c", _PROGRAM, *arguments],
                stdin=stdin,
                stdout=subprocess.PIPE,
                env={},
                pass_fds=[self._page_fd, life],
            )
        except OSError:
            os.close(ours)
            raise
        finally:
            os.close(life)
        guard = _Process(process, ours)
        self._guards = [one for one in self._guards if one.process.poll() is None] + [guard]
        threading.Thread(target=self._keep_guard, args=(guard,), name="guard", daemon=True).start()
        return guard

    def _keep_guard(self, guard: _Process) -> None:
        """Wait for its end, or until it stands still, and start another one at once. The spawner goes on meanwhile."""
        still = self._watch(guard)
        with self._lock:  # as in close: a descriptor that is closed twice may be another one's by then
            guard.leave()
        self._replace(guard, still)
        guard.process.wait()

    def _replace(self, guard: _Process, stood_still_s: float | None) -> None:
        while not self._closed.is_set():
            with self._lock:
                if self._closed.is_set() or any(one.process.poll() is None for one in self._guards if one is not guard):
                    return
                log.error("guard.ended", pid=guard.process.pid, code=guard.process.poll(), stood_still_s=stood_still_s)
                try:
                    new = self._start_guard("alone", stdin=subprocess.DEVNULL)
                except OSError as error:  # ranks end with their supervisors as long as there is none
                    log.error("guard.not_started", error=str(error))
                    new = None
            if new is not None:
                _hear_alone(new.process, self.on_guard)
                return
            self._closed.wait(_GUARD_AGAIN_S)

    def _watch(self, guard: _Process) -> float | None:
        """Wait for the end of a guard. One that stands still is killed, and not waited for: it may be frozen, or hang
        in the kernel. Returns for how long it stood still. None: it has ended by itself.

        Each look is one of this process, too: when the whole host stood still, nobody is blamed.
        """
        pid, looks, seen = guard.process.pid, 0, -1.0
        fd = os.pidfd_open(pid)
        try:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            while not poll.poll(_LOOK_S * 1000):
                newest = self._newest_guard()
                looked_s = newest.looked_s if newest is not None and newest.process.pid == pid else 0.0
                looks = 0 if looked_s != seen else looks + 1
                seen = looked_s
                if looks * _LOOK_S >= (STANDS_STILL_S if looked_s else _START_TIMEOUT_S) and not self._closed.is_set():
                    guard.process.kill()
                    return looks * _LOOK_S
        finally:
            os.close(fd)
        guard.process.wait()
        return None

    def _newest_guard(self) -> GuardSeen | None:
        with self._lock:  # close() closes it
            fd = self._page_fd
            return None if fd is None else newest_guard(lambda at, size: os.pread(fd, size, at))


class _Process:
    """A guard, and the pipe that tells it that the node worker is gone."""

    def __init__(self, process: subprocess.Popen[bytes], life: int) -> None:
        self.process = process
        self._life: int | None = life

    def leave(self) -> None:
        """Let it end as soon as there is no rank."""
        life, self._life = self._life, None
        if life is not None:
            os.close(life)


class _Gone(Exception):
    """The spawner has died, or the supervisor died before it answered."""


class _SpawnerConnection:
    def __init__(
        self, guard: subprocess.Popen[bytes], orders: socket.socket, on_guard: Callable[[dict[str, Any]], None]
    ) -> None:
        assert guard.stdout is not None
        self._guard, self._on_guard = guard, on_guard
        self._orders, self._answers = orders, guard.stdout
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._count = 0
        self._begun: Future[dict[str, Any]] = Future()
        self.gone = False
        self._reader = threading.Thread(target=self._read, name="spawner", daemon=True)
        self._reader.start()

    def wait_begun(self) -> dict[str, Any]:
        """What the guard said when it was there. Raises :class:`HostUnavailable`."""
        try:
            return self._begun.result(_START_TIMEOUT_S)
        except (_Gone, TimeoutError):
            raise HostUnavailable("the process that starts ranks does not begin") from None

    def send(self, orders: Sequence[RankOrder | JailOrder]) -> list[Future[dict[str, Any]]]:
        bodies = [json.dumps(order.to_json()).encode() for order in orders]
        kinds = [PLAIN if isinstance(order, RankOrder) and order.jail is None else OTHER for order in orders]
        return self._send(kinds, bodies)

    def send_helper(self, fds: Sequence[int]) -> Future[dict[str, Any]]:
        [future] = self._send([HELPER], [b""], fds)
        return future

    def _send(
        self, kinds: Sequence[int], bodies: Sequence[bytes], fds: Sequence[int] = ()
    ) -> list[Future[dict[str, Any]]]:
        futures: list[Future[dict[str, Any]]] = [Future() for _ in bodies]
        with self._lock:
            if self.gone:
                for future in futures:
                    future.set_exception(_Gone())
                return futures
            message = bytearray()
            for future, body, kind in zip(futures, bodies, kinds, strict=True):
                self._count += 1
                self._waiting[self._count] = future
                message += len(body).to_bytes(4) + self._count.to_bytes(4) + bytes([kind]) + body
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the reader sees the end too
                if fds:
                    socket.send_fds(self._orders, [message], list(fds))
                else:
                    self._orders.sendall(message)
        return futures

    def kill(self) -> None:
        """Kill the spawner. Its guard stays with the ranks."""
        if self._begun.done() and self._begun.exception() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._begun.result()["spawner"], signal.SIGKILL)
        else:
            self._guard.kill()

    def close(self) -> None:
        """End the spawner. Ranks and their supervisors go on."""
        with self._lock:
            self.gone = True
            self._orders.close()
        self._reader.join(_END_TIMEOUT_S)
        if self._reader.is_alive():
            self.kill()
            self._reader.join(_END_TIMEOUT_S)

    def _read(self) -> None:
        with self._answers as answers:
            for line in answers:
                answer = json.loads(line)
                if "guard" in answer:
                    self._begun.set_result(answer)
                    self._on_guard(answer)
                    continue
                with self._lock:
                    future = self._waiting.pop(answer.pop("number"), None)
                if future is None:
                    continue
                if answer["status"] == "ended":
                    future.set_exception(_Gone())
                else:
                    future.set_result(answer)
        with self._lock:
            self.gone = True
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            future.set_exception(_Gone())
        if not self._begun.done():
            self._begun.set_exception(_Gone())


def _hear_alone(guard: subprocess.Popen[bytes], on_guard: Callable[[dict[str, Any]], None]) -> None:
    assert guard.stdout is not None
    with guard.stdout as lines:
        if line := lines.readline():
            on_guard(json.loads(line))

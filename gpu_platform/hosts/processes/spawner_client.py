"""The node worker's side of the spawner: starts it, talks to it, replaces it when it dies."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import gpu_platform
from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.hosts.isolation.orders import JailOrder, RankOrder

_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from gpu_platform.hosts.processes.spawner import main; main()"
_ANSWER_TIMEOUT_S = 30.0
_END_TIMEOUT_S = 2.0
_TRIES = 3


class SpawnerClient:
    """Sends orders to the spawner. Thread-safe.

    ``start_ranks`` may be called again after any failure: a rank starts only once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: _SpawnerConnection | None = None

    def start_ranks(self, orders: Sequence[RankOrder | JailOrder]) -> list[dict[str, Any]]:
        """Start ranks or jails, with one answer for each order; see
        :func:`gpu_platform.hosts.processes.supervisor.supervise`.

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
                    connection.process.kill()
                    raise HostUnavailable(f"the spawner did not answer within {_ANSWER_TIMEOUT_S:g} s") from None
        result = [answer for answer in answers if answer is not None]
        if len(result) < len(orders):
            raise HostUnavailable("the process that starts ranks was killed each time it was started")
        return result

    @property
    def pid(self) -> int:
        """The pid of the spawner. Starts one if there is none."""
        return self._connect().process.pid

    def close(self) -> None:
        """End the spawner. Ranks and their supervisors go on."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _connect(self) -> _SpawnerConnection:
        with self._lock:
            if self._connection is None or self._connection.gone:
                if self._connection is not None:
                    self._connection.close()
                self._connection = _SpawnerConnection()
            return self._connection


class _Gone(Exception):
    """The spawner has died, or the supervisor died before it answered."""


class _SpawnerConnection:
    def __init__(self) -> None:
        root = str(Path(gpu_platform.__file__).parent.parent)
        # No site packages and an empty environment: the process is small, and supervisors inherit nothing secret.
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-X", "utf8", "-c", _PROGRAM, root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={},
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._orders, self._answers = self.process.stdin, self.process.stdout
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._count = 0
        self.gone = False
        self._reader = threading.Thread(target=self._read, name="spawner", daemon=True)
        self._reader.start()

    def send(self, orders: Sequence[RankOrder | JailOrder]) -> list[Future[dict[str, Any]]]:
        futures: list[Future[dict[str, Any]]] = [Future() for _ in orders]
        bodies = [json.dumps(order.to_json()).encode() for order in orders]
        is_plain = [isinstance(order, RankOrder) and order.jail is None for order in orders]
        with self._lock:
            if self.gone:
                for future in futures:
                    future.set_exception(_Gone())
                return futures
            message = bytearray()
            for future, body, plain in zip(futures, bodies, is_plain, strict=True):
                self._count += 1
                self._waiting[self._count] = future
                message += len(body).to_bytes(4) + self._count.to_bytes(4) + bytes([plain]) + body
            with contextlib.suppress(BrokenPipeError):  # the reader thread sees the end too, after the last answers
                self._orders.write(message)
                self._orders.flush()
        return futures

    def close(self) -> None:
        """End the spawner. Ranks and their supervisors go on."""
        with self._lock:
            self.gone = True
            with contextlib.suppress(BrokenPipeError):
                self._orders.close()
        try:
            self.process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _read(self) -> None:
        with self._answers as answers:
            for line in answers:
                answer = json.loads(line)
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
        self.process.wait()

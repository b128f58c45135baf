"""Sums over a gang of processes: ring all-reduce on plain TCP.

The ranks find each other as PyTorch's do: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT.
Every rank reports to rank 0, learns its neighbours, and from then on talks only to them:
2 (n - 1) steps, each moving 1/n of the vector, so that the traffic of a rank does not grow
with the gang (Patarasu and Yuan, Bandwidth optimal all-reduce algorithms, JPDC 2009).
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

_HELLO_LIMIT = 65536
_RETRY_S = 0.05


class PeerLost(RuntimeError):
    """A rank of the gang went away, or never came: the gang is broken and this rank must end."""


@dataclass(frozen=True)
class Gang:
    """Who we are among whom."""

    rank: int
    world_size: int
    master: tuple[str, int]
    attempt: str
    """Only ranks that name the same attempt are let in: a stale one on a partitioned host is refused."""

    @classmethod
    def from_environment(cls) -> Gang:
        env = os.environ
        return cls(
            rank=int(env.get("RANK", "0")),
            world_size=int(env.get("WORLD_SIZE", "1")),
            master=(env.get("MASTER_ADDR", "127.0.0.1"), int(env.get("MASTER_PORT", "29500"))),
            attempt=f"{env.get('GPU_PLATFORM_JOB_ID', '')}#{env.get('GPU_PLATFORM_ATTEMPT', '')}",
        )


class Ring:
    """This rank's two connections. With one rank there are none, and sums are what they were.

    Raises:
        PeerLost: the gang was not complete within ``timeout_s``, or a neighbour's connection
            ended or stayed silent for that long.
    """

    def __init__(self, gang: Gang, timeout_s: float = 60.0) -> None:
        self.gang = gang
        self._timeout_s = timeout_s
        self._left: socket.socket | None = None
        self._right: socket.socket | None = None
        if gang.world_size > 1:
            try:
                self._connect(time.monotonic() + timeout_s)
            except (OSError, ValueError) as error:
                self.close()
                raise PeerLost(f"rank {gang.rank} could not join {gang.world_size} ranks: {error}") from error

    def sum(self, values: Vector) -> Vector:
        """The element-wise sum of every rank's ``values``, a new array that is equal on all ranks, bit for bit."""
        n, rank = self.gang.world_size, self.gang.rank
        total = np.array(values, dtype=np.float64)
        if n == 1:
            return total
        chunks = np.array_split(total, n)  # views
        for step in range(n - 1):  # reduce-scatter: afterwards chunk rank + 1 is complete here
            chunks[(rank - step - 1) % n] += self._exchange(
                chunks[(rank - step) % n], len(chunks[(rank - step - 1) % n])
            )
        for step in range(n - 1):  # all-gather: pass the complete chunks on
            chunks[(rank - step) % n][:] = self._exchange(chunks[(rank - step + 1) % n], len(chunks[(rank - step) % n]))
        return total

    def close(self) -> None:
        for connection in (self._left, self._right):
            if connection is not None:
                connection.close()

    def _connect(self, deadline: float) -> None:
        rank, n = self.gang.rank, self.gang.world_size
        if rank == 0:
            with socket.create_server(self.gang.master, backlog=n) as meeting:
                # Our own ring port is on the address that the others know already.
                listener = socket.create_server((meeting.getsockname()[0], 0), backlog=n)
                addresses = self._introduce_everybody(meeting, listener.getsockname()[1], deadline)
        else:
            listener, addresses = self._report_to_rank_0(deadline)
        with listener:
            host, port = addresses[(rank + 1) % n]
            self._right = self._dial((host, port), deadline)
            _send_line(self._right, self._hello())
            self._left = self._accept(listener, deadline, only_rank=(rank - 1) % n)[0]
        for connection in (self._left, self._right):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setblocking(False)

    def _introduce_everybody(self, meeting: socket.socket, own_port: int, deadline: float) -> list[tuple[str, int]]:
        """Rank 0: wait for every rank, then tell each where all of them listen."""
        connections: dict[int, socket.socket] = {}
        addresses = {0: (self.gang.master[0], own_port)}
        try:
            while len(addresses) < self.gang.world_size:
                connection, hello = self._accept(meeting, deadline)
                rank = int(hello["rank"])
                if rank in connections:  # it gave up on its first try
                    connections[rank].close()
                connections[rank] = connection
                addresses[rank] = (connection.getpeername()[0], int(hello["port"]))
            table = [addresses[rank] for rank in range(self.gang.world_size)]
            for connection in connections.values():
                _send_line(connection, {"addresses": table})
            return table
        except TimeoutError as error:
            missing = sorted(set(range(self.gang.world_size)) - set(addresses))
            raise TimeoutError(f"ranks {missing} did not come within {self._timeout_s:g} s") from error
        finally:
            for connection in connections.values():
                connection.close()

    def _report_to_rank_0(self, deadline: float) -> tuple[socket.socket, list[tuple[str, int]]]:
        while True:
            with self._dial(self.gang.master, deadline) as connection:
                # Listen where rank 0 can reach us: on the address we reached it from.
                listener = socket.create_server((connection.getsockname()[0], 0), backlog=self.gang.world_size)
                try:
                    _send_line(connection, {**self._hello(), "port": listener.getsockname()[1]})
                    connection.settimeout(_left_until(deadline))
                    return listener, [(host, port) for host, port in _receive_line(connection)["addresses"]]
                except (ConnectionError, KeyError):
                    # What listens there is not our rank 0, yet: a stale attempt's that is about to die.
                    listener.close()
            time.sleep(min(_RETRY_S, _left_until(deadline)))

    def _dial(self, address: tuple[str, int], deadline: float) -> socket.socket:
        """Connect, again and again until ``deadline``: the ranks of a gang do not start at once."""
        while True:
            try:
                return socket.create_connection(address, timeout=_left_until(deadline))
            except (ConnectionError, socket.gaierror) as error:
                if time.monotonic() + _RETRY_S > deadline:
                    raise TimeoutError(f"{address[0]}:{address[1]}: {error}") from error
                time.sleep(_RETRY_S)

    def _accept(
        self, listener: socket.socket, deadline: float, only_rank: int | None = None
    ) -> tuple[socket.socket, dict[str, Any]]:
        """The next connection of a rank of this attempt; anybody else is turned away."""
        while True:
            listener.settimeout(_left_until(deadline))
            connection, _ = listener.accept()
            try:
                connection.settimeout(min(5.0, _left_until(deadline)))
                hello = _receive_line(connection)
                if hello.get("attempt") == self.gang.attempt and (
                    hello["rank"] == only_rank if only_rank is not None else 0 < hello["rank"] < self.gang.world_size
                ):
                    return connection, hello
            except (OSError, ValueError, KeyError, TypeError):
                pass  # a port scanner; our own ranks say hello at once
            connection.close()

    def _hello(self) -> dict[str, Any]:
        return {"attempt": self.gang.attempt, "rank": self.gang.rank}

    def _exchange(self, outgoing: Vector, expected: int) -> Vector:
        """Send to the right while receiving from the left.

        At once, since a ring in which everybody first sends stands still when a chunk is
        larger than the socket's buffers.
        """
        assert self._left is not None
        assert self._right is not None
        incoming = np.empty(expected)
        to_send, to_fill = outgoing.view(np.uint8).data, incoming.view(np.uint8).data
        with selectors.DefaultSelector() as selector:
            if len(to_send):
                selector.register(self._right, selectors.EVENT_WRITE)
            if len(to_fill):
                selector.register(self._left, selectors.EVENT_READ)
            while selector.get_map():
                ready = selector.select(self._timeout_s)
                if not ready:
                    raise PeerLost(f"rank {self.gang.rank}: a neighbour was silent for {self._timeout_s:g} s")
                for key, _ in ready:
                    try:
                        if key.fileobj is self._right:
                            to_send = to_send[self._right.send(to_send) :]
                            finished = not len(to_send)
                        else:
                            received = self._left.recv_into(to_fill)
                            if not received:
                                raise ConnectionResetError("it closed the connection")
                            to_fill = to_fill[received:]
                            finished = not len(to_fill)
                    except BlockingIOError:
                        continue
                    except OSError as error:
                        side = 1 if key.fileobj is self._right else -1
                        peer = (self.gang.rank + side) % self.gang.world_size
                        raise PeerLost(f"rank {self.gang.rank} lost its neighbour, rank {peer}: {error}") from error
                    if finished:
                        selector.unregister(key.fileobj)
        return incoming


def _left_until(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _send_line(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _receive_line(connection: socket.socket) -> dict[str, Any]:
    """One line of JSON, byte by byte: what follows it belongs to the sums."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte:
            raise ConnectionResetError("the connection was closed")
        line += byte
        if len(line) > _HELLO_LIMIT:
            raise ValueError("not a rank of this gang")
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError("not a rank of this gang")
    return message

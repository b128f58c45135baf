"""The manager of steps: on rank 0, beside the script. It knows the other ranks, and starts what ``srun`` asks for."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gpu_platform.steps.choosing import GpuPool, choose, wanted_gpus
from gpu_platform.steps.environ import Layout
from gpu_platform.steps.node import Node
from gpu_platform.steps.protocol import Channel, Message, NotTrusted, admit

_MOST_GREETINGS = 256
"""Connections that may prove their key at the same time."""
_LOOK_S = 0.5
"""How often a step that waits for GPUs looks whether its srun still lives."""


class Hands(Protocol):
    """Who starts tasks on one host: this process, or a member."""

    def send(self, message: Message) -> None:
        """Carry out ``start``, ``signal`` or ``stop`` of a step. Raises ``OSError`` if the host is gone."""


class _Step:
    """A step that runs. What its tasks say goes to the ``srun`` that asked for it."""

    def __init__(
        self,
        number: int,
        channel: Channel,
        layout: Layout,
        hands: list[Hands],
        *,
        gpus: list[list[int]] | None,
        over: Callable[[_Step], None],
    ) -> None:
        """``gpus``: the numbers of its GPUs on each host; None: all. ``over`` is called once, when no task lives."""
        self.number, self._channel, self.layout, self.hands = number, channel, layout, hands
        self.gpus, self._over = gpus, over
        self._lock = threading.Lock()
        self._open = {task: node for node in range(len(hands)) for task in _tasks(layout, node)}
        self.is_over = threading.Event()
        self._worst = 0

    def tell(self, message: Message) -> None:
        try:
            self._channel.send(message)
        except OSError:
            self.order({"type": "stop"})

    def order(self, message: Message) -> None:
        for hands in self.hands:
            try:
                hands.send({**message, "step": self.number})
            except OSError:
                continue  # the host is gone, and its tasks with it

    def ended(self, task: int, code: int, message: Message) -> None:
        with self._lock:
            if self._open.pop(task, None) is None:
                return
            self._worst, last = max(self._worst, code), not self._open
        self.tell(message)
        if last:
            self.is_over.set()
            self._over(self)
            self.tell({"type": "end", "code": self._worst})

    def lost(self, hands: Hands, host: str) -> None:
        """A host is gone. Its tasks count as killed."""
        node = self.hands.index(hands) if hands in self.hands else None
        for task in [task for task, of_node in list(self._open.items()) if of_node == node]:
            self.ended(task, 137, {"type": "exit", "task": task, "code": 137, "host": host, "why": "the host is gone"})


class StepManager:
    """Listens for members and for ``srun``. Only who knows the key of the attempt gets in."""

    def __init__(self, key: str, port: int, size: int, own: Node, *, everywhere: bool) -> None:
        """``size``: how many hosts the job has. ``everywhere``: members come from other hosts."""
        self._key, self._size, self._own = key, size, own
        self._lock = threading.Lock()
        self._here = threading.Condition(self._lock)
        self._members: dict[int, tuple[str, Hands]] = {0: (own.host, own)}
        self._steps: dict[int, _Step] = {}
        self._next_step = 0
        self._greeting = threading.Semaphore(_MOST_GREETINGS)
        self._layout: Layout | None = None
        self._pool: GpuPool | None = None
        self._gpus = {0: own.gpus}
        self._closed = False
        self._defaults: dict[str, Any] = {}
        self._environ: Mapping[str, str] = {}
        own.report = self.heard
        self._listener = socket.create_server(("" if everywhere else "127.0.0.1", port), backlog=4096)
        threading.Thread(target=self._accept, daemon=True).start()

    def wait_for_members(self, timeout_s: float, give_up: threading.Event) -> tuple[str, ...] | None:
        """The names of all hosts in the order of their ranks, as soon as all are here. None: some did not come."""
        with self._here:
            self._here.wait_for(lambda: len(self._members) == self._size or give_up.is_set(), timeout_s)
            if len(self._members) < self._size:
                return None
            return tuple(self._members[rank][0] for rank in range(self._size))

    def missing(self) -> list[int]:
        """Ranks that have not come."""
        with self._lock:
            return [rank for rank in range(self._size) if rank not in self._members]

    def wake(self) -> None:
        """Let :meth:`wait_for_members` look at its event."""
        with self._here:
            self._here.notify_all()

    def open_for_steps(self, layout: Layout, defaults: dict[str, Any], environ: Mapping[str, str]) -> None:
        """From now on ``srun`` may start steps. ``defaults``: GPUs and CPUs for each task, and tasks of a host;
        ``environ``: what the script starts with."""
        with self._here:
            self._layout, self._defaults, self._environ = layout, defaults, environ
            self._pool = GpuPool({host: self._gpus[rank] for rank, host in enumerate(layout.hosts)})
            members = [hands for rank, (_, hands) in self._members.items() if rank]
        for member in members:
            try:
                member.send({"type": "layout", "hosts": layout.hosts, "tasks": layout.tasks})
            except OSError:
                continue  # it is gone; the platform ends the attempt

    def close(self) -> None:
        """The script has ended: end all steps, and let the members go."""
        self._listener.close()
        with self._here:
            self._closed = True
            self._here.notify_all()
            steps = list(self._steps.values())
            members = [hands for rank, (_, hands) in self._members.items() if rank]
        for step in steps:
            step.order({"type": "stop"})
        for member in members:
            try:
                member.send({"type": "bye"})
            except OSError:
                continue

    def heard(self, message: Message) -> None:
        """What a host says of a task."""
        with self._lock:
            step = self._steps.get(int(message.get("step", -1)))
        if step is None:
            return
        if message["type"] == "exit":
            step.ended(int(message["task"]), int(message["code"]), message)
        else:
            step.tell(message)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with self._greeting:
                channel, hello = admit(connection, self._key)
        except (NotTrusted, OSError):
            connection.close()
            return
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            if hello.get("role") == "member":
                self._serve_member(channel, hello)
            else:
                self._serve_srun(channel)
        except (NotTrusted, OSError, ValueError, KeyError, TypeError) as error:
            _try_send(channel, {"type": "refused", "why": str(error)})
        finally:
            channel.close()

    def _serve_member(self, channel: Channel, hello: Message) -> None:
        rank, host = int(hello.get("rank", -1)), str(hello.get("host", ""))
        with self._here:
            if not 0 < rank < self._size or rank in self._members:
                raise ValueError(f"rank {rank} is here already, or is none of this job")
            self._members[rank] = (host, channel)
            self._gpus[rank] = int(hello.get("gpus", 0))
            self._here.notify_all()
        while (message := channel.receive()) is not None:
            self.heard(message)
        with self._lock:
            steps = list(self._steps.values())
        for step in steps:
            step.lost(channel, host)

    def _serve_srun(self, channel: Channel) -> None:
        asked = channel.receive()
        if asked is None or asked.get("type") != "run":
            raise ValueError("srun says first what to run")
        step = self._begin(channel, asked)
        while (message := channel.receive()) is not None and not step.is_over.is_set():
            if message.get("type") == "signal":
                step.order({"type": "signal", "number": int(message["number"])})
            elif message.get("type") == "stop":
                step.order({"type": "stop"})
        if not step.is_over.is_set():  # srun was killed
            step.order({"type": "stop"})

    def _begin(self, channel: Channel, asked: Message) -> _Step:
        step = self._admit_step(channel, asked)
        layout = step.layout
        changed = {name: value for name, value in asked["environ"].items() if self._environ.get(name) != value}
        removed = [name for name in self._environ if name not in asked["environ"]]
        for node, hands in enumerate(step.hands):
            if not layout.tasks[node]:
                continue
            order = {
                "type": "start",
                "step": step.number,
                "command": asked["command"],
                "directory": asked["directory"],
                "set": changed,
                "unset": removed,
                "hosts": layout.hosts,
                "tasks": layout.tasks,
                "node": node,
                "gpus": None if step.gpus is None else step.gpus[node],
                "gpus_per_task": asked.get("gpus_per_task", self._defaults.get("gpus_per_task")),
                "cpus_per_task": asked.get("cpus_per_task", self._defaults.get("cpus_per_task")),
            }
            try:
                hands.send(order)
            except OSError:
                step.lost(hands, layout.hosts[node])
        return step

    def _admit_step(self, channel: Channel, asked: Message) -> _Step:
        """Choose hosts and GPUs. If the GPUs are not free, wait until other steps have ended, or srun has."""
        with self._here:
            if self._layout is None or self._pool is None:
                raise ValueError("the script has not begun")
            while True:
                layout = choose(asked, self._layout, self._defaults.get("ntasks_per_node"), self._pool)
                wanted = wanted_gpus(asked, layout)
                taken = None if wanted is None else self._pool.take(layout.hosts, wanted)
                if wanted is None or taken is not None:
                    break
                self._here.wait(_LOOK_S)
                if channel.has_ended or self._closed:
                    raise ValueError("srun or its script is gone")
            ranks = [self._layout.hosts.index(host) for host in layout.hosts]
            number, self._next_step = self._next_step, self._next_step + 1
            hands = [self._members[rank][1] for rank in ranks]
            step = _Step(number, channel, layout, hands, gpus=taken, over=self._end_step)
            self._steps[number] = step
        return step

    def _end_step(self, step: _Step) -> None:
        with self._here:
            self._steps.pop(step.number, None)
            if step.gpus is not None and self._pool is not None:
                self._pool.put_back(step.layout.hosts, step.gpus)
            self._here.notify_all()


def _tasks(layout: Layout, node: int) -> range:
    return range(layout.first(node), layout.first(node) + layout.tasks[node])


def _try_send(channel: Channel, message: Message) -> None:
    with contextlib.suppress(OSError):
        channel.send(message)

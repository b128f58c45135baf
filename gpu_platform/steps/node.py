"""What one host does for steps: it starts their tasks, and says what they write and how they end."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Mapping

from gpu_platform.steps.environ import Layout, gpus_of, task_environ
from gpu_platform.steps.protocol import Message
from gpu_platform.steps.tasks import Task, TaskGroup

_SIGNALS = range(1, 65)


class Node:
    """The tasks of all steps on this host. It obeys what the manager orders."""

    def __init__(self, host: str, platform: Mapping[str, str]) -> None:
        """``platform``: the environment that the platform gave the rank."""
        self.host, self._platform = host, platform
        self.gpus = gpus_of(platform)
        """How many GPUs the job has here."""
        self.environ: Mapping[str, str] = {}
        """What the script's environment is on this host."""
        self.report: Callable[[Message], None] = lambda message: None
        self._lock = threading.Lock()
        self._groups: dict[int, TaskGroup] = {}
        self._open: dict[int, int] = {}

    def send(self, message: Message) -> None:
        """Carry out an order."""
        step = int(message["step"])
        if message["type"] == "start":
            self._start(step, message)
            return
        with self._lock:
            group = self._groups.get(step)
        if group is None:
            return
        if message["type"] == "stop":
            group.stop()
        elif message["type"] == "signal" and int(message["number"]) in _SIGNALS:
            group.send(int(message["number"]))

    def stop(self) -> None:
        """End all tasks."""
        with self._lock:
            groups = list(self._groups.values())
        for group in groups:
            group.stop()

    def _start(self, step: int, message: Message) -> None:
        layout, node = Layout(tuple(message["hosts"]), tuple(message["tasks"])), int(message["node"])
        base = {**self.environ, **message["set"]}
        for name in message["unset"]:
            base.pop(name, None)
        about = {name: message[name] for name in ("gpus", "gpus_per_task", "cpus_per_task")} | {"id": step}
        tasks = [
            Task(layout.first(node) + local, task_environ(base, self._platform, layout, node, local, about))
            for local in range(layout.tasks[node])
        ]

        def written(task: int, stream: int, block: bytes) -> None:
            text = base64.b64encode(block).decode("ascii")
            self._say({"type": "out", "step": step, "task": task, "stream": stream, "data": text, "host": self.host})

        def ended(task: int, code: int, why: str | None) -> None:
            with self._lock:
                self._open[step] -= 1
                if not self._open[step]:
                    del self._open[step], self._groups[step]
            self._say({"type": "exit", "step": step, "task": task, "code": code, "why": why, "host": self.host})

        group = TaskGroup([str(word) for word in message["command"]], str(message["directory"]), written, ended)
        with self._lock:
            self._groups[step], self._open[step] = group, len(tasks)
        group.start(tasks)

    def _say(self, message: Message) -> None:
        try:
            self.report(message)
        except OSError:
            self.stop()  # the manager is gone, and with it whoever waits for the tasks

"""A small network for tests: machines are network namespaces on one switch, and this thread can act as each of them."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_CLONE_NEWNET = 0x4000_0000
_libc = ctypes.CDLL(None, use_errno=True)


def _setns(fd: int) -> None:
    if _libc.setns(fd, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


class Machine:
    """One network namespace. It is gone when it is closed and nothing runs in it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._listeners: list[socket.socket] = []
        own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            if _libc.unshare(_CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "unshare")
            self.fd = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            _setns(own)
            os.close(own)
        self.run("ip", "link", "set", "lo", "up")
        # A new network namespace has the setting of the first one.
        self.run("sh", "-c", "echo 0 > /proc/sys/net/ipv4/ip_forward")

    @contextmanager
    def here(self) -> Iterator[None]:
        """Inside the block this thread is on the machine, and so is what it starts."""
        before = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        _setns(self.fd)
        try:
            yield
        finally:
            _setns(before)
            os.close(before)

    def run(self, *command: str, say: str = "") -> str:
        """Run a command on the machine."""
        with self.here():
            done = subprocess.run(command, input=say, capture_output=True, text=True, check=False, timeout=20)
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout

    def listen(self, port: int, address: str = "0.0.0.0", answer: bytes = b"") -> None:
        """Accept connections for as long as the machine is open, and say ``answer`` (default: its name) to each."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with self.here():
            listener = socket.create_server((address, port), family=family, backlog=1024)
        self._listeners.append(listener)

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(answer or self.name.encode())

        threading.Thread(target=serve, daemon=True).start()

    def links(self) -> list[str]:
        """The names of its interfaces."""
        return [line.split(":")[1].split("@")[0].strip() for line in self.run("ip", "-o", "link").splitlines()]

    def close(self) -> None:
        for listener in self._listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        os.close(self.fd)


class Lan:
    """Machines 10.1.0.1, 10.1.0.2, ... on one switch."""

    def __init__(self) -> None:
        self.machines: list[Machine] = []
        self._switch = Machine("switch")
        self._switch.run("ip", "link", "add", "br0", "up", "type", "bridge")

    def machine(self, name: str) -> Machine:
        """Add a machine. Its address is that of the next number."""
        machine = Machine(name)
        self.machines.append(machine)
        number = len(self.machines)
        with machine.here():
            subprocess.run(
                ["ip", "link", "add", "eth0", "up", "type", "veth", "peer", "name", f"p{number}",
                 "netns", f"/proc/{os.getpid()}/fd/{self._switch.fd}"],
                check=True,
            )  # fmt: skip
        machine.run("ip", "addr", "add", f"10.1.0.{number}/24", "dev", "eth0")
        self._switch.run("ip", "link", "set", f"p{number}", "up", "master", "br0")
        return machine

    def close(self) -> None:
        for machine in [*self.machines, self._switch]:
            machine.close()

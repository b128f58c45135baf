"""A small fork server: starting a rank costs a fork, not the start of a Python program.

It is single-threaded and imports little, so its forks are quick, small and safe; the node
worker (threads, Temporal, NVML) must not fork. Orders (``isolation/orders.py``) come on stdin, a socket, each a head
and JSON; answers go to stdout, one line each. Nobody else has these two: a supervisor
answers through a socket of its own. For a helper of ``jobs exec`` there is no JSON, but descriptors come with the head.

The guard (``guard``) forks it. Both are subreapers: what a killed supervisor leaves falls to the spawner, which kills
it, or to the guard if the spawner was killed, too.

A supervisor that is done with its rank may say that it is idle (``supervisor``): it gets the next order of a rank
without a jail, which saves a fork and the copies of pages after it. The spawner ends when the node worker is gone. Idle
supervisors end with it, the others when they are done; they do not need it.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import mmap
import os
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from gpu_platform.node.isolation import privileges
from gpu_platform.node.isolation.cgroups.cgroup import find_hierarchies
from gpu_platform.node.isolation.filters import seccomp
from gpu_platform.node.isolation.jail import create_jail
from gpu_platform.node.isolation.orders import BadOrder, JailOrder, parse_order
from gpu_platform.node.processes.ending import Orphans, children_of, clear_up
from gpu_platform.node.processes.supervisor import adopt_orphans, become_supervisor, name_process, supervise
from gpu_platform.node.system import lease_page
from gpu_platform.node.system.lease_page import Slot
from gpu_platform.node.system.process_tree import boot_id, read_stat

ORDERS, ANSWERS = 0, 1
HEAD_BYTES = 9
"""Before an order: its length and its number, of four bytes each, and its kind, of one."""
OTHER, PLAIN, HELPER = range(3)
"""Kinds of orders: PLAIN is one of a rank without a jail; HELPER comes with ``HELPER_FDS`` descriptors."""
HELPER_FDS = 4
"""Of a helper of ``jobs exec``: its socket, stdin, stdout, stderr."""
MAX_IDLE = 16
"""How many supervisors may wait for an order. Each has a few MiB of its own."""
IDLE_S = 5.0
"""How long one waits."""
_MESSAGE_CHARACTERS = 500
MAX_PASSED_BYTES = 64 * 1024
"""Longer orders get a new supervisor, because they may fit into no message of a socket."""
_CHANNEL, _PAGE, _CONTROL = 3, 4, 5
_WAKES = 4096
_TRIES, _AGAIN_S = 5, 0.01
_IDLE = b"idle"


def main(page_fd: int) -> None:
    """Take orders and have a process carry out each, until the node worker is gone. ``page_fd``: the host's page."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at the node worker's terminal is meant for the node worker
    name_process(b"gpu-spawner")
    adopt_orphans()
    privileges.hide_memory()
    os.chdir("/")
    boot_id()  # read once here, so that every fork knows it
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):  # no libseccomp: then ranks here are plain processes
            seccomp.program()  # for the same reason
    gc.freeze()  # objects that exist now are never collected, so forks share their pages
    _Spawner(page_fd).serve()


class _Child:
    """A process that carries out an order, or waits for one. It is gone when its end of the channel is closed."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid, self.channel = pid, channel
        self.number: int | None = None
        """Of the order that has no answer yet."""
        self.idle_since = 0.0


class _Spawner:
    def __init__(self, page_fd: int) -> None:
        self._page_fd, self._page = page_fd, mmap.mmap(page_fd, lease_page.SIZE_BYTES, prot=mmap.PROT_READ)
        self._hierarchies = find_hierarchies()
        self._children: dict[int, _Child] = {}  # by descriptor of the channel
        self._idle: list[_Child] = []  # the one that waits longest comes first
        self._orders = socket.socket(fileno=ORDERS)
        self._poll = select.poll()
        self._poll.register(ORDERS, select.POLLIN)
        self._wakes, wake = os.pipe()
        for fd in (self._wakes, wake):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._poll.register(self._wakes, select.POLLIN)

    def serve(self) -> None:
        """Return when the node worker is gone."""
        while True:
            for fd, _ in self._poll.poll(self._dismiss()):
                if fd == ORDERS:
                    if not self._take_order():
                        return
                elif fd == self._wakes:
                    os.read(fd, _WAKES)
                    self._reap_orphans()
                else:
                    self._hear(self._children[fd])

    def _take_order(self) -> bool:
        """False: the node worker is gone."""
        head, fds = self._read_head()
        body = _read_exactly(int.from_bytes(head[:4])) if head else None
        if head is None or body is None:
            return False
        number, kind = int.from_bytes(head[4:8]), head[8]
        if kind == HELPER:
            self._fork(number, lambda channel: _become_helper(channel, self._page_fd, fds))
            for fd in fds:
                os.close(fd)
            return True
        if kind == PLAIN and len(body) <= MAX_PASSED_BYTES:
            while self._idle:
                child = self._idle.pop()
                child.number = number
                with contextlib.suppress(OSError):  # it was killed; its end of the channel says so, too
                    child.channel.send(body)
                    return True
                child.number = None
        self._fork(number, lambda channel: _become_child(channel, self._page_fd, body))
        return True

    def _read_head(self) -> tuple[bytes | None, list[int]]:
        """The head of an order (None: the node worker is gone), and the descriptors that came with it."""
        head, fds = b"", list[int]()
        while len(head) < HEAD_BYTES:
            part, more, _, _ = socket.recv_fds(self._orders, HEAD_BYTES - len(head), HELPER_FDS)
            if not part:
                return None, fds
            head, fds = head + part, fds + more
        return head, fds

    def _fork(self, number: int, become: Callable[[int], NoReturn]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            become(theirs.fileno())
        theirs.close()
        child = _Child(pid, ours)
        child.number = number
        self._children[ours.fileno()] = child
        self._poll.register(ours.fileno(), select.POLLIN)

    def _hear(self, child: _Child) -> None:
        try:
            message = child.channel.recv(MAX_PASSED_BYTES)
        except ConnectionResetError:  # it was killed before it read its order
            message = b""
        if message == _IDLE:
            child.idle_since = time.monotonic()
            self._idle.append(child)
        elif message:
            self._answer(child, message)
        else:
            self._poll.unregister(child.channel)
            del self._children[child.channel.fileno()]
            child.channel.close()
            if child in self._idle:
                self._idle.remove(child)
            _, status = os.waitpid(child.pid, 0)
            if status != 0:
                self._clear_up()
            self._answer(child, b'{"status": "ended"}')

    def _clear_up(self) -> None:
        """Kill what a supervisor left that was killed. The guard does it again if something does not die."""
        orphans = Orphans([os.getpid()], self._read)
        for _ in range(_TRIES):
            left = clear_up(self._page_fd, self._read, self._hierarchies, orphans)
            self._reap_orphans()
            if not left:
                return
            time.sleep(_AGAIN_S)

    def _reap_orphans(self) -> None:
        """Reap adopted processes that have ended."""
        own = {child.pid for child in self._children.values()}
        for pid in set(children_of(os.getpid())) - own:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    def _read(self, at: int, size: int) -> bytes:
        return self._page[at : at + size]

    def _answer(self, child: _Child, answer: bytes) -> None:
        """Send the answer to the order, if it has none yet."""
        if child.number is None:
            return
        line = b'{"number": %d, %s\n' % (child.number, answer[1:])
        child.number = None
        with contextlib.suppress(BrokenPipeError):  # the node worker is gone; its successor reads the records
            os.write(ANSWERS, line)

    def _dismiss(self) -> float | None:
        """End supervisors that are too many or wait too long. Returns when to look again, in milliseconds."""
        now = time.monotonic()
        while self._idle and (len(self._idle) > MAX_IDLE or now - self._idle[0].idle_since >= IDLE_S):
            with contextlib.suppress(OSError):  # it was killed
                self._idle.pop(0).channel.shutdown(socket.SHUT_WR)
        return (self._idle[0].idle_since + IDLE_S - now) * 1000 if self._idle else None


def _read_exactly(size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = os.read(ORDERS, size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)


def _become_child(channel: int, page_fd: int, body: bytes) -> NoReturn:
    """Carry out the order, and those that come after it."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    slot = _begin([channel, page_fd, null, null, null])
    os.closerange(_PAGE + 1, 1 << 20)
    try:
        again = _carry_out(body, slot, first=True)
        del body
        while again:
            os.write(_CHANNEL, _IDLE)
            again = bool(body := os.read(_CHANNEL, MAX_PASSED_BYTES)) and _carry_out(body, slot, first=False)
        slot.free()
    finally:  # also when the spawner is gone
        os._exit(0)


def _become_helper(channel: int, page_fd: int, fds: list[int]) -> NoReturn:
    """Be a helper of ``jobs exec``."""
    from gpu_platform.node.processes import exec_helper  # the spawner stays small

    control, *standard = fds
    slot = _begin([channel, page_fd, *standard, control])
    os.closerange(_CONTROL + 1, 1 << 20)
    try:
        os.setsid()  # it is registered, see ``Orphans``
        _reply({"status": "started"})
        exec_helper.main(_CONTROL, slot)
        slot.free()
    finally:
        os._exit(0)


def _begin(fds: list[int]) -> Slot:
    """Leave the spawner behind, and take a slot. ``fds``: the channel, the page, stdin, stdout, stderr and what else
    this process has. They get fixed numbers."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    channel, page_fd, *others = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _CONTROL + 1) for fd in fds)
    for number, fd in zip((0, 1, 2, _CONTROL), others, strict=False):  # this closes the node worker's descriptors
        os.dup2(fd, number, inheritable=number < _CHANNEL)
    os.dup2(channel, _CHANNEL, inheritable=False)
    try:
        me = read_stat("self")
        assert me is not None
        return Slot.claim(page_fd, _PAGE, me.process)
    except OSError as error:
        _reply({"status": "error", "message": error.strerror})
        os._exit(1)


def _reply(answer: dict[str, Any]) -> None:
    if "failure" in answer:
        message = answer["failure"]["message"][:_MESSAGE_CHARACTERS]
        answer = {**answer, "failure": {**answer["failure"], "message": message}}
    if "message" in answer:
        answer = {**answer, "message": answer["message"][:_MESSAGE_CHARACTERS]}
    with contextlib.suppress(OSError):  # the spawner is gone
        os.write(_CHANNEL, json.dumps(answer).encode())


def _carry_out(body: bytes, slot: Slot, *, first: bool) -> bool:
    """Carry out an order. True: this process may carry out another one."""
    try:
        order = parse_order(json.loads(body))
    except BadOrder as error:
        _reply({"status": "error", "message": f"the order was refused: {error}"})
        os._exit(1)
    try:
        if isinstance(order, JailOrder):
            create_jail(order, _reply)
            return False
        if first:
            become_supervisor()
        return supervise(order, slot, _reply)
    except BaseException:
        os.umask(0o077)
        with open(os.path.join(order.attempt_dir, "supervisor-error.txt"), "a") as file:
            traceback.print_exc(file=file)
        os._exit(1)

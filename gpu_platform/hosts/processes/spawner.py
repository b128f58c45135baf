"""A small fork server: starting a rank costs a fork, not the start of a Python program.

It is single-threaded and imports little, so its forks are quick, small and safe; the node
worker (threads, Temporal, NVML) must not fork. Orders (``isolation/orders.py``) come on stdin, each a length of
four bytes and JSON; answers go to stdout, one line each, written by the supervisors themselves.
It ends when the node worker is gone. Supervisors do not need it once they run.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import sys
import traceback
from typing import Any, NoReturn

from gpu_platform.hosts.isolation import privileges
from gpu_platform.hosts.isolation.filters import seccomp
from gpu_platform.hosts.isolation.jail import create_jail
from gpu_platform.hosts.isolation.orders import BadOrder, JailOrder, RankOrder, parse_order
from gpu_platform.hosts.processes.supervisor import Reply, name_process, supervise
from gpu_platform.hosts.system.process_tree import boot_id

ORDERS, ANSWERS = 0, 1
_MESSAGE_CHARACTERS = 500
"""A character needs at most six bytes in JSON. So an answer is shorter than PIPE_BUF, and lines do not mix
(pipe(7))."""


def main() -> None:
    """Take orders and fork a process for each, until the node worker is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at the node worker's terminal is meant for the node worker
    name_process(b"gpu-spawner")
    privileges.hide_memory()
    os.chdir("/")
    boot_id()  # read once here, so that every fork knows it
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):  # no libseccomp: then ranks here are plain processes
            seccomp.program()  # for the same reason
    gc.freeze()  # objects that exist now are never collected, so forks share their pages
    poll = select.poll()
    poll.register(ORDERS, select.POLLIN)
    running: dict[int, tuple[int, int]] = {}  # pidfd -> (pid of the supervisor, number of the order)
    while True:
        for fd, _ in poll.poll():
            if fd == ORDERS:
                message = _read_message()
                if message is None:
                    return
                number, order = message
                pid = os.fork()
                if pid == 0:
                    _become_supervisor(number, order)
                pidfd = os.pidfd_open(pid)
                running[pidfd] = (pid, number)
                poll.register(pidfd, select.POLLIN)
            else:
                poll.unregister(fd)
                os.close(fd)
                pid, number = running.pop(fd)
                os.waitpid(pid, 0)
                _answer(number, {"status": "ended"})


def _read_message() -> tuple[int, object] | None:
    """The number of an order, and the order as it arrived. None if the node worker is gone."""
    head = _read_exactly(4)
    body = _read_exactly(int.from_bytes(head)) if head else None
    if not body:
        return None
    message = json.loads(body)
    return int(message["number"]), message["order"]


def _read_exactly(size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = os.read(ORDERS, size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)


def _answer(number: int, answer: dict[str, Any]) -> None:
    line = json.dumps({"number": number, **answer}).encode() + b"\n"
    with contextlib.suppress(BrokenPipeError):  # the node worker is gone; its successor reads the records
        os.write(ANSWERS, line)


def _become_supervisor(number: int, message: object) -> NoReturn:
    def reply(answer: dict[str, Any]) -> None:
        if "failure" in answer:
            answer = {
                **answer,
                "failure": {**answer["failure"], "message": answer["failure"]["message"][:_MESSAGE_CHARACTERS]},
            }
        if "message" in answer:
            answer = {**answer, "message": answer["message"][:_MESSAGE_CHARACTERS]}
        _answer(number, answer)
        for fd in (0, 1, 2):  # close the node worker's pipes
            os.dup2(null, fd)

    os.closerange(3, 1 << 20)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        order = parse_order(message)
    except BadOrder as error:
        reply({"status": "error", "message": f"the order was refused: {error}"})
        os._exit(1)
    _carry_out(order, reply)


def _carry_out(order: RankOrder | JailOrder, reply: Reply) -> NoReturn:
    try:
        if isinstance(order, JailOrder):
            create_jail(order, reply)
        else:
            supervise(order, reply)
    except BaseException:
        os.umask(0o077)
        with open(os.path.join(order.attempt_dir, "supervisor-error.txt"), "a") as file:
            traceback.print_exc(file=file)
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())

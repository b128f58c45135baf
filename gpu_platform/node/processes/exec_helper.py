"""Runs one program beside a rank (``jobs exec``): in its cgroup and namespaces, as its user, under its limits. For
``jobs forward`` it runs a :mod:`connector <gpu_platform.node.processes.connector>` there instead.

The node worker has the spawner fork it, with a socket. The order comes in on the socket, and results go out. The
program can never outlive its rank: the helper is a subreaper and kills all its descendants when the rank's process
ends, or when the node worker (the other end of the socket) is gone. In the host's page it has a slot, as a supervisor
has: if it stands still, the guard ends the program with the lease, and if it is killed, spawner or guard end what it
left. Processes of a jailed program are in the rank's cgroup, and die with it. Standard library only.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
import struct
import termios
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from gpu_platform.node.environments.modules import with_modules_of
from gpu_platform.node.isolation import privileges
from gpu_platform.node.isolation.jail import RankJail
from gpu_platform.node.isolation.orders import BadOrder, ExecOrder, RankOrder
from gpu_platform.node.processes.connector import become_connector
from gpu_platform.node.processes.descendants import Descendants
from gpu_platform.node.processes.starting import execute, explain
from gpu_platform.node.processes.supervisor import become_subreaper, exit_code, name_process
from gpu_platform.node.system import records
from gpu_platform.node.system.lease_page import LEASED, RELAXED, Slot, attempt_mark
from gpu_platform.node.system.process_tree import FoundProcess, boot_id, open_process, read_stat

_TIOCSPTLCK, _TIOCGPTPEER = 0x4004_5431, 0x5441
"""ioctl_tty(2): unlock a terminal, and open the slave of a master, whatever mounts there are."""
MESSAGE_BYTES = 512 * 1024


def main(control_fd: int, slot: Slot) -> None:
    """Take one order from the socket ``control_fd``, run its program, and send what happens. ``slot``: of this
    process."""
    become_subreaper()
    name_process(b"gpu-exec")
    privileges.hide_memory()
    control = socket.socket(fileno=control_fd)
    control.set_inheritable(False)
    message = json.loads(control.recv(MESSAGE_BYTES))
    try:
        order = ExecOrder.parse(message)
    except BadOrder as error:
        _send(control, {"status": "error", "message": f"the order was refused: {error}"})
        return
    name = f"{records.EXEC_PREFIX}{order.id}"
    lock = records.take_lock(order.rank_dir, name)
    me = read_stat(os.getpid())
    assert me is not None
    if lock is None:
        _send(control, {"status": "ended"})
        return
    records.write_lock_owner(lock, {**me.process._asdict(), "boot_id": boot_id()})
    try:
        _run(order, control, slot)
    except OSError as error:  # no more processes, or the jail was removed while we entered it
        _send(control, {"status": "error", "message": error.strerror or str(error)})
    except BadOrder as error:
        _send(control, {"status": "error", "message": f"the record of the rank's order is refused: {error}"})
    except Exception:
        with open(os.path.join(order.attempt_dir, "supervisor-error.txt"), "a") as file:
            traceback.print_exc(file=file)
        _send(control, {"status": "error", "message": "its helper broke; see supervisor-error.txt on the host"})
    # Another program may hold a copy of the lock's descriptor, and with it the lock. So the file itself is removed.
    if Descendants().kill():
        os.unlink(os.path.join(order.rank_dir, name))


class _ExecProgram(NamedTuple):
    pid: int
    fd: int
    """pidfd"""
    start_error: tuple[str, int] | None
    """The step and errno at which it failed to execute."""


def _run(order: ExecOrder, control: socket.socket, slot: Slot) -> None:
    rank_dir = order.rank_dir
    started = records.read_record(os.path.join(rank_dir, records.STARTED))
    rank = None
    if started is not None and started["boot_id"] == boot_id() and started.get("pid_known", True):
        rank = open_process(FoundProcess(started["pid"], started["started"]))
    of_rank = records.read_record(os.path.join(rank_dir, records.ORDER))
    # Checked after the lock was taken, as a supervisor does: either stop sees the lock, or we see that it closed.
    closed = os.path.exists(os.path.join(order.attempt_dir, records.CLOSED))
    if started is None or rank is None or of_rank is None or closed:
        _send(control, {"status": "ended"})
        return
    rank_order = _trusted(RankOrder.read(of_rank), order, rank_pid=started["pid"])
    env = {**rank_order.env, **({"TERM": order.term} if order.term else {})}
    wanted = rank_order._replace(argv=with_modules_of(rank_order.argv, order.argv), env=env)
    jail = None if wanted.jail is None else RankJail(wanted.attempt_dir, wanted.jail, join=True)
    state = LEASED if wanted.lease is not None and wanted.lease.ends_rank else RELAXED
    slot.hold(state, records.boot_clock_s(), attempt_mark(order.attempt_dir), "")  # the cgroup is in the rank's slot
    terminal = _open_terminal(jail, order.rows, order.columns) if order.tty else None
    if order.port is None:
        program = _fork(jail, lambda error_fd: _become_program(wanted, jail, terminal, error_fd))
        handed = None if terminal is None else terminal.master
    else:
        port, (ours, theirs) = order.port, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = _fork(jail, lambda error_fd: become_connector(port, jail, theirs, error_fd))
        theirs.close()
        handed = ours.detach()
    if program.start_error is not None:
        message = explain(wanted, *program.start_error)["message"]
        _send(control, {"status": "failed", "message": message, "exit_code": _wait(program)})
        return
    if (found := read_stat(program.pid)) is not None:
        slot.started(found.process)
    _send(control, {"status": "started", "pid": program.pid}, handed)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in (0, 1, 2):  # from here on only the program holds these, so they close with it
        os.dup2(null, fd)
    if handed is not None:
        os.close(handed)
    if terminal is not None:
        os.close(terminal.slave)
    reason = _watch(program, rank, control)
    if reason is not None:
        Descendants().kill()
        _send(control, {"status": "exited", "exit_code": 128 + 9, "reason": reason})
        return
    code = _wait(program)
    Descendants().kill()
    _send(control, {"status": "exited", "exit_code": code, "reason": None})


def _trusted(of_rank: RankOrder, order: ExecOrder, *, rank_pid: int) -> RankOrder:
    """What the rank was started with, as far as the order of the command and the kernel say the same.

    Raises :class:`BadOrder`. A record alone never decides that a program runs outside a jail, in another one, or as
    another account.
    """
    of_rank = of_rank._replace(rank_dir=order.rank_dir, attempt_dir=order.attempt_dir)
    if not order.jailed:
        return of_rank
    if of_rank.jail is None:
        raise BadOrder("it names no jail, and this host runs every program of a job in one; restart the job")
    if os.path.basename(order.rank_dir) != f"rank-{of_rank.jail.rank}":
        raise BadOrder(f"it names rank {of_rank.jail.rank}, not the rank of {order.rank_dir}")
    with open(f"/proc/{rank_pid}/status", errors="replace") as file:  # the rank chooses its name
        uids = {int(word) for line in file if line.startswith("Uid:") for word in line.split()[1:]}
    if uids != {of_rank.jail.uid} or 0 in uids:
        running = ", ".join(map(str, sorted(uids)))
        raise BadOrder(
            f"it names the account {of_rank.jail.uid}, and the rank runs as {running}; no program of a job runs as root"
        )
    return of_rank


class _Terminal(NamedTuple):
    master: int
    slave: int


def _open_terminal(jail: RankJail | None, rows: int, columns: int) -> _Terminal:
    """Open a terminal in the rank's own devpts, so that the program finds it under its name there."""
    multiplexer = "/dev/ptmx" if jail is None else f"{jail.root}/dev/pts/ptmx"
    master = os.open(multiplexer, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    fcntl.ioctl(master, _TIOCSPTLCK, struct.pack("i", 0))
    slave = fcntl.ioctl(master, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    if jail is not None and jail.user[0] is not None and jail.user[1] is not None:
        os.fchown(slave, jail.user[0], jail.user[1])
    return _Terminal(master, slave)


def _fork(jail: RankJail | None, become: Callable[[int], NoReturn]) -> _ExecProgram:
    read_end, error_fd = os.pipe()
    pid = os.fork() if jail is None else jail.fork()
    if pid == 0:
        become(error_fd)
    fd = os.pidfd_open(pid)
    os.close(error_fd)
    with open(read_end, "rb") as file:  # closes when the child executes, because its end is close-on-exec
        start_error = file.read()
    return _ExecProgram(pid, fd, tuple(json.loads(start_error)) if start_error else None)


def _become_program(order: RankOrder, jail: RankJail | None, terminal: _Terminal | None, error_fd: int) -> NoReturn:
    try:
        os.setsid()
        if jail is not None:
            jail.cgroup.enter()
        if terminal is not None:
            fcntl.ioctl(terminal.slave, termios.TIOCSCTTY, 0)
    except OSError as error:
        os.write(error_fd, json.dumps(["sandbox", error.errno]).encode())
        os._exit(126)
    slave = None if terminal is None else terminal.slave
    execute(order, jail, (0, 1, 2) if slave is None else (slave, slave, slave), error_fd)


def _watch(program: _ExecProgram, rank: int, control: socket.socket) -> str | None:
    """Wait until the program has ended, or must be ended. Returns why it must be ended."""
    poll = select.poll()
    for fd in (program.fd, rank, control.fileno()):
        poll.register(fd, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if program.fd in ready:
            return None
        if rank in ready:
            return "its rank has ended"
        if not control.recv(MESSAGE_BYTES):
            return "nobody listens to it any more"


def _wait(program: _ExecProgram) -> int:
    _, status = os.waitpid(program.pid, 0)
    return exit_code(status)


def _send(control: socket.socket, message: dict[str, Any], fd: int | None = None) -> None:
    try:
        data = json.dumps(message).encode()
        if fd is None:
            control.send(data)
        else:
            socket.send_fds(control, [data], [fd])
    except (BrokenPipeError, ConnectionResetError):  # the node worker is gone
        return

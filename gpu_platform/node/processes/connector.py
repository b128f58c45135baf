"""The process of ``jobs forward`` beside a rank: it connects to one port where the rank runs, and hands the connections
to the node worker.

It is in the rank's cgroup and namespaces, as the rank's user without privileges, under the rank's system call filter:
so it reaches what the rank reaches, by the loopback address only, and the request names no address. It executes no
program, so the job cannot trace it (``privileges.hide_memory``). Standard library only.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from typing import NoReturn

from gpu_platform.node.isolation.jail import RankJail
from gpu_platform.node.processes.starting import reset_signals

_LOOPBACK = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
_CONNECT_TIMEOUT_S = 5.0
_CHANNEL = 3
CONNECT = b"connect"
"""What the node worker sends for each connection. The answer is an errno as text; with 0 comes the connection."""


def become_connector(port: int, jail: RankJail | None, channel: socket.socket, error_fd: int) -> NoReturn:
    """Enter the rank's place and serve ``channel`` until its other end is closed. If it cannot be entered, write
    ``[step, errno]`` to ``error_fd``."""
    try:
        try:
            os.setsid()
            if jail is not None:
                jail.cgroup.enter()
            reset_signals()
            if jail is not None:
                jail.enter()
        except OSError as error:
            os.write(error_fd, json.dumps(["sandbox", error.errno]).encode())
            os._exit(126)
        os.dup2(channel.detach(), _CHANNEL)
        os.closerange(_CHANNEL + 1, os.sysconf("SC_OPEN_MAX"))  # the order's socket too; it tells that this succeeded
        with socket.socket(fileno=_CHANNEL) as connected:
            serve(connected, port)
    finally:
        os._exit(0)


def serve(channel: socket.socket, port: int) -> None:
    """Open a connection for each message, one after the other."""
    while channel.recv(len(CONNECT)):
        try:
            connection = _connect(port)
        except OSError as error:
            channel.send(b"%d" % (error.errno or errno.ETIMEDOUT))
            continue
        with connection:
            socket.send_fds(channel, [b"0"], [connection.fileno()])


def _connect(port: int) -> socket.socket:
    """A connection to the port by IPv4, or else by IPv6."""
    first: OSError | None = None
    for family, address in _LOOPBACK:
        try:
            connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        except OSError as error:  # this kernel or this jail has no IPv6
            first = first or error
            continue
        try:
            connection.settimeout(_CONNECT_TIMEOUT_S)
            connection.connect((address, port))
            return connection
        except OSError as error:
            connection.close()
            first = first or error
    assert first is not None
    raise first

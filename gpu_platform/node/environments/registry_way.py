"""The only way from a pull to a registry: ``python -m gpu_platform.node.environments.registry_way``, orders on stdin.

podman runs in an empty network. In it there is nothing but an HTTP proxy, which is this process. It connects where
:func:`gpu_platform.outgoing.connect` does: so neither a redirect, nor what a registry says about others, nor a name
that changes its address leads inside.

It is a process of its own: gigabytes pass through it, and what keeps a host's lease shares no interpreter with that.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from gpu_platform import outgoing
from gpu_platform.domain.hosts.network import parse_target
from gpu_platform.inherited import inherited
from gpu_platform.outgoing import OutgoingReach, Unreachable

DOCKER = "docker.io"
_CLONE_NEWNET = 0x4000_0000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1
_CONNECT_S = 10.0
_IDLE_S = 120.0
_BEGIN_S = 20.0
_AT_ONCE = 64
"""Connections. podman has about six for each image."""
_PIECE = 256 * 1024
_AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9][A-Za-z0-9.-]{0,253}):(?P<port>[0-9]{1,5})")
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?")
_PROXIES = ("https_proxy", "http_proxy", "all_proxy", "no_proxy")
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Registries:
    """Where images may come from."""

    names: tuple[str, ...]
    """``HOST[:PORT][/REPOSITORY]``."""
    allow: tuple[str, ...]
    """As ``node.network.allow``."""

    def have(self, image: str) -> bool:
        """True if the image, without ``docker://``, is in one of them."""
        host, path = _parts(image)
        if not _HOST.fullmatch(host):
            return False
        for name in self.names:
            listed, _, repository = name.partition("/")
            wanted = repository.split("/") if repository else []
            if listed == host and path[: len(wanted)] == wanted:
                return True
        return False


def _parts(image: str) -> tuple[str, list[str]]:
    """The registry and the parts of the repository, as podman reads them: a name without a registry is one of
    Docker's."""
    first, slash, rest = image.partition("@")[0].partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        first, rest = DOCKER, image.partition("@")[0]
    path = rest.split("/")
    path[-1] = path[-1].partition(":")[0]
    return first, ["library", *path] if first == DOCKER and len(path) == 1 else path


@dataclass(frozen=True)
class Way:
    """What starts a program with this way as its only network."""

    command: list[str]
    environ: dict[str, str]


@contextlib.contextmanager
def opened(registries: Registries) -> Iterator[Way]:
    """The way, until the end of the block. Raises ``OSError`` if this host cannot open it."""
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, "-P", "-m", __spec__.name],
        env=inherited(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    late = threading.Timer(_BEGIN_S, process.kill)
    late.daemon = True
    late.start()
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"names": registries.names, "allow": registries.allow}).encode() + b"\n")
        process.stdin.flush()
        said = process.stdout.readline()
        late.cancel()
        if not said:
            raise OSError("no network namespace can be made here for pulls")
        found = json.loads(said)
        proxy = f"http://127.0.0.1:{found['port']}"
        kept = {name: value for name, value in inherited().items() if name.lower() not in _PROXIES}
        proxies = {name: proxy for one in _PROXIES[:2] for name in (one, one.upper())}
        yield Way(["nsenter", f"--net={found['net']}", "--"], kept | proxies)
    finally:
        late.cancel()
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        process.wait()


class Proxy:
    """Connects for pulls. What it refuses and what does not answer look alike to whoever asks."""

    def __init__(self, registries: Registries) -> None:
        listed = {_with_port(name.partition("/")[0]) for name in registries.names}
        here = {("127.0.0.1", port) for host, port in listed if host in outgoing.LOOPBACK}
        # The operator's own entry with an address means this address. A name in an entry may be inside if an entry of
        # node.network.allow says so.
        self._reach = OutgoingReach(
            trusted=frozenset(here | {one for one in listed if outgoing.is_address(one[0])}),
            listed=frozenset(listed),
            targets=tuple(parse_target(entry) for entry in registries.allow),
        )
        self._free = threading.BoundedSemaphore(_AT_ONCE)

    @property
    def loopback(self) -> list[int]:
        """Ports of listed registries on this host."""
        return sorted({port for host, port in self._reach.trusted if host == "127.0.0.1"})

    def serve(self, listener: socket.socket, port: int | None) -> None:
        """Answer for ever. ``port``: of a registry on this host, whose connections are passed on as they are."""
        while True:
            client, _ = listener.accept()
            if not self._free.acquire(blocking=False):
                client.close()
                continue
            threading.Thread(target=self._answer, args=(client, port), daemon=True).start()

    def connect(self, host: str, port: int) -> socket.socket:
        """A connection to the name or the address. Raises :class:`gpu_platform.outgoing.Unreachable`."""
        return outgoing.connect(host, port, self._reach, within_s=_CONNECT_S)

    def _answer(self, client: socket.socket, port: int | None) -> None:
        try:
            with client:
                client.settimeout(_IDLE_S)
                if port is not None:
                    _pass_on(client, self.connect("127.0.0.1", port), b"")
                else:
                    self._proxied(client)
        except (OSError, ValueError):
            pass
        finally:
            self._free.release()

    def _proxied(self, client: socket.socket) -> None:
        head, rest = outgoing.read_head(client)
        method, target, _ = head.split(b"\r\n", 1)[0].decode("ascii").split(" ")
        first = b""
        if method == "CONNECT":
            host, port = _authority(target)
        else:  # a registry without TLS: registries.conf, insecure
            parts = urlsplit(target)
            if parts.scheme != "http":
                raise Unreachable
            host, port = _authority(parts.netloc if ":" in parts.netloc else f"{parts.netloc}:80")
            lines = [one for one in head.split(b"\r\n")[1:] if not one.lower().startswith((b"connection:", b"proxy-"))]
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            first = b"\r\n".join([f"{method} {path} HTTP/1.1".encode(), b"Connection: close", *lines]) + rest
        try:
            there = self.connect(host, port)
        except OSError:
            client.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return
        if method == "CONNECT":
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        _pass_on(client, there, first or rest)


def _authority(text: str) -> tuple[str, int]:
    found = _AUTHORITY.fullmatch(text)
    if found is None or not 0 < int(found["port"]) < 65536:
        raise Unreachable
    return found["host"].strip("[]").lower().rstrip("."), int(found["port"])


def _pass_on(client: socket.socket, there: socket.socket, first: bytes) -> None:
    """Carry bytes both ways until both have ended, or nothing has come for long."""
    with there:
        there.settimeout(_IDLE_S)
        there.sendall(first)
        other = threading.Thread(target=_carry, args=(client, there), daemon=True)
        other.start()
        _carry(there, client)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
        other.join()


def _carry(source: socket.socket, to: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(_PIECE):
            to.sendall(piece)
        to.shutdown(socket.SHUT_WR)


def _with_port(host: str) -> tuple[str, int]:
    name, colon, port = host.rpartition(":")
    return (name, int(port)) if colon else (host, outgoing.HTTPS)


def main() -> None:
    """Open the way, say where it is (JSON: ``net``, ``port``), and serve until stdin ends."""
    said = json.loads(sys.stdin.readline())
    proxy = Proxy(Registries(tuple(said["names"]), tuple(said["allow"])))
    own, made = os.open("/proc/self/ns/net", os.O_RDONLY), -1
    _call("unshare", _CLONE_NEWNET)
    made = os.open("/proc/self/ns/net", os.O_RDONLY)
    listeners: list[tuple[socket.socket, int | None]] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
    for port in (*proxy.loopback, None):
        listeners.append((socket.create_server(("127.0.0.1", port or 0)), port))
    _call("setns", own, _CLONE_NEWNET)
    for listener, port in listeners:
        threading.Thread(target=proxy.serve, args=(listener, port), daemon=True).start()
    answer = {"net": f"/proc/{os.getpid()}/fd/{made}", "port": listeners[-1][0].getsockname()[1]}
    print(json.dumps(answer), flush=True)
    sys.stdin.read()


def _call(name: str, *arguments: int) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{name}(2)")


if __name__ == "__main__":
    main()

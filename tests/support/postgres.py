"""A PostgreSQL server of one's own, for tests and benchmarks: in a temporary directory, on a free port."""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from gpu_platform.node.system.ports import free_port

START_TIMEOUT_S = 30
_PREFIX = "gpu-platform-pg-"
MEMORY_BYTES = 2 << 30
"""Free room that a directory in memory must have; a test run takes a tenth of it."""


def find_binaries() -> Path | None:
    """The newest PostgreSQL on this machine: on PATH or where Debian puts it."""
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(on_path).resolve().parent
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    return max(found, key=lambda path: int(path.parent.name.split(".")[0]), default=None)


@contextmanager
def running_postgres(binaries: Path, *, durable: bool = False) -> Iterator[str]:
    """Start a server and yield the URL of its empty database ``postgres``; stop it and remove its files.

    ``durable`` False turns fsync off and keeps the files in memory, where that has room: right for tests, wrong for
    benchmarks.
    """
    user = "postgres" if os.geteuid() == 0 and _exists("postgres") else "nobody" if os.geteuid() == 0 else None
    # Not pytest's tmp_path: that is closed to the unprivileged user that the server insists on.
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=None if durable else _memory()))
    lock = _lock(directory)
    try:
        if user is not None:
            shutil.chown(directory, user)
        data = directory / "data"
        _run(user, binaries / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
        port = free_port()
        options = {
            "listen_addresses": "127.0.0.1",
            "port": port,
            "unix_socket_directories": directory,
            "max_connections": 400,
            "fsync": "on" if durable else "off",
            "synchronous_commit": "on" if durable else "off",
            "log_min_messages": "fatal",
        }
        arguments = [argument for name, value in options.items() for argument in ("-c", f"{name}={value}")]
        with open(directory / "log", "wb") as log:
            server = subprocess.Popen(
                [*die_with_parent(), str(binaries / "postgres"), "-D", str(data), *arguments],
                stdout=log,
                stderr=log,
                cwd=directory,
                **_as_user(user),
            )
        try:
            url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
            _wait_until_up(url, server, directory / "log")
            yield url
        finally:
            server.send_signal(signal.SIGQUIT)  # immediate: nothing here is worth a checkpoint
            server.wait()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        if lock is not None:
            os.close(lock)


class Databases:
    """Databases on one server, cheap because each is a copy of a template."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._count = 0

    def url(self, name: str) -> str:
        return self._url.rsplit("/", 1)[0] + f"/{name}"

    def create(self, template: str | None = None) -> str:
        """A new database; returns its name."""
        self._count += 1
        name = f"test_{os.getpid()}_{self._count}"
        self._execute(f"CREATE DATABASE {name}" + (f" TEMPLATE {template} STRATEGY file_copy" if template else ""))
        return name

    def drop(self, name: str) -> None:
        self._execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[arg-type]


def _memory() -> Path | None:
    """A directory of files in memory. None: there is none with enough room.

    A test begins with a copy of a database, which is hundreds of files: 180 ms of CPU on a disk, 15 ms here.
    """
    directory = Path("/dev/shm")
    _remove_what_killed_runs_left(directory)
    if os.access(directory, os.W_OK) and shutil.disk_usage(directory).free > MEMORY_BYTES:
        return directory
    return None


def _remove_what_killed_runs_left(directory: Path) -> None:
    """A run that is killed cannot remove its files. Those of runs that go on are locked."""
    for left in directory.glob(f"{_PREFIX}*"):
        # A directory without a lock that is so young may be one whose run locks it in a moment.
        is_old = time.time() - left.lstat().st_mtime > START_TIMEOUT_S
        lock = _lock(left) if is_old else None
        if lock is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(lock)


def _lock(directory: Path) -> int | None:
    """Lock a directory until the descriptor is closed, or this process ends. None: it is somebody else's, or locked."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _run(user: str | None, *command: object) -> None:
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd="/", **_as_user(user))
    if result.returncode:
        raise RuntimeError(f"{command[0]} failed: {result.stderr}")


def _as_user(user: str | None) -> dict[str, Any]:
    return {} if user is None else {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


def die_with_parent() -> list[str]:
    """The command that ends the server with its parent: a killed test run must not leave a server behind."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "QUIT"] if setpriv else []


def _wait_until_up(url: str, server: subprocess.Popen[Any], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        if server.poll() is not None:
            raise RuntimeError(f"PostgreSQL ended while it started: {log.read_text()}")
        try:
            psycopg.connect(url, connect_timeout=2).close()
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True

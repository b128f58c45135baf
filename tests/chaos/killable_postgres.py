"""A PostgreSQL server that dies and comes back with everything it had committed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_platform.node.system.ports import free_port
from tests.support import postgres


class Server:
    """A PostgreSQL server that can be killed and started again on its files."""

    def __init__(self, binaries: Path, directory: Path, user: str | None, *, durable: bool) -> None:
        port = free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        self._binaries, self._directory, self._user = binaries, directory, user
        # Commits are synchronous: what was answered must survive the kill. The machine survives: no fsync, for speed.
        self._options = (
            f"-p {port} -c listen_addresses=127.0.0.1 -c fsync={'on' if durable else 'off'} -c max_connections=400"
            f" -c unix_socket_directories={directory}"
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(self._directory / "log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    *postgres.die_with_parent(),
                    str(self._binaries / "postgres"),
                    *("-D", str(self._directory / "data")),
                    *self._options.split(),
                ],
                stdout=log,
                stderr=log,
                cwd=self._directory,
                **postgres._as_user(self._user),
            )
        postgres._wait_until_up(self.url, self._process, self._directory / "log")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait()

    def copy(self) -> None:
        """Keep its files as they are now. Its clients see it die and come back."""
        self.kill(signal.SIGINT)
        shutil.rmtree(self._kept, ignore_errors=True)
        subprocess.run(["cp", "-a", self._directory / "data", self._kept], check=True)
        self.restart()

    def put_back(self) -> None:
        """The files that :meth:`copy` kept."""
        self.kill(signal.SIGINT)
        shutil.rmtree(self._directory / "data")
        self._kept.rename(self._directory / "data")
        self.restart()

    @property
    def _kept(self) -> Path:
        return self._directory / "kept"

    def restart(self) -> None:
        """Its last children go once they see that their parent died; only then may a new server take the files."""
        while True:
            try:
                return self.start()
            except RuntimeError as error:
                if "still in use" not in str(error):
                    raise


@contextmanager
def new_server(*, durable: bool = False) -> Iterator[Server]:
    """``durable``: with fsync, as benchmarks need it."""
    binaries = postgres.find_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    # The server refuses to run as root.
    user = None if os.geteuid() else "postgres" if postgres._exists("postgres") else "nobody"
    directory = Path(tempfile.mkdtemp(prefix="gpu-platform-pg-"))
    try:
        if user is not None:
            shutil.chown(directory, user)
        data = directory / "data"
        postgres._run(user, binaries / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "-N")
        server = Server(binaries, directory, user, durable=durable)
        server.start()
        try:
            yield server
        finally:
            server.kill(signal.SIGQUIT)
    finally:
        shutil.rmtree(directory, ignore_errors=True)

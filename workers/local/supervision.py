"""Child processes of ``up``: started, restarted when they die, stopped in order."""

from __future__ import annotations

import asyncio
import ctypes
import os
import queue
import signal
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from workers.local.forked.client import SERVER, Process
from workers.local.log_ends import error_in

log = structlog.get_logger()

STOP_GRACE_S = 8.0
FIRST_BACKOFF_S = 0.2
LONGEST_BACKOFF_S = 5.0
SAY_EVERY_S = 60.0
"""A process that ends again and again for one reason says so this often."""
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def _die_with_parent() -> None:
    """Let the kernel end the child when ``up`` is killed, so that nothing is left behind (prctl(2)).

    The child gets a session of its own, so that Ctrl-C in the terminal does not reach it and ``up`` stops things in
    order.
    """
    os.setsid()
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


async def spawn(argv: list[str], env: dict[str, str], output: int) -> asyncio.subprocess.Process | Process:
    """Start a child with this environment. Its output goes to the file descriptor ``output``.

    The platform's own programs are forked from a process that has imported them.
    """
    try:
        if SERVER.can_fork(argv, env):
            return SERVER.start(argv, env, stdout=output, stderr=output, dies_with_parent=True)
    except (OSError, queue.Empty) as error:  # the server was killed just now
        log.warning("process.not_forked", argv=argv, error=str(error))
    return await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=env,
        preexec_fn=_die_with_parent,
    )


@dataclass
class ChildProcess:
    """One process, kept running until :meth:`stop`."""

    name: str
    argv: list[str]
    log_file: Path
    env: dict[str, str] = field(default_factory=dict)
    restarts: int = 0
    ended: str = ""
    """How it ended the last time, for people. Empty: it never ended by itself."""
    _log_began: int = 0
    """Where in its log this run of it begins, in bytes."""
    _process: asyncio.subprocess.Process | Process | None = None
    _keeper: asyncio.Task[None] | None = None
    _stopping: bool = False

    @property
    def pid(self) -> int | None:
        """Its pid, or None while it does not run."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def start(self) -> None:
        """Start it, and restart it whenever it dies."""
        self._stopping = False
        await self._spawn()
        self._keeper = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """Send SIGTERM, wait, then SIGKILL."""
        self._stopping = True
        await self._stop_keeper()
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(STOP_GRACE_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def kill(self) -> None:
        """Send SIGKILL. It is not restarted before :meth:`start`."""
        self._stopping = True
        await self._stop_keeper()
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def last_lines(self, count: int = 15) -> str:
        """The end of its log, for people."""
        try:
            lines = self.log_file.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return "(it wrote no log)"
        return "\n".join(lines[-count:])

    def story(self) -> str:
        """What is known of a process that ended, for people: how often, why, and where its log is."""
        if not self.ended:
            return f"{self.name}: see its log {self.log_file}\n{self.last_lines()}"
        times = "again and again" if self.restarts > 1 else "and is started again"
        return f"{self.name} ended {times} ({self.ended}); its log: {self.log_file}"

    async def _stop_keeper(self) -> None:
        """It may be starting the process just now: wait until it is known what it did."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)

    async def _spawn(self) -> None:
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab") as output:
            self._log_began = output.tell()
            self._process = await spawn(self.argv, {**os.environ, **self.env}, output.fileno())

    async def _keep(self) -> None:
        backoff, said, say_at = FIRST_BACKOFF_S, "", 0.0
        loop = asyncio.get_running_loop()
        while not self._stopping:
            assert self._process is not None
            born = loop.time()
            code = await self._process.wait()
            if self._stopping:
                return
            if loop.time() - born > 10:
                backoff = FIRST_BACKOFF_S
            error = error_in(self.log_file, self._log_began)
            self.ended = f"code {code}: {error}" if error else f"code {code}, and its log tells no error"
            if self.ended != said or loop.time() >= say_at:
                said, say_at = self.ended, loop.time() + SAY_EVERY_S
                log.warning(
                    "process.died",
                    name=self.name,
                    code=code,
                    error=error,
                    path=str(self.log_file),
                    restart_in_s=backoff,
                )
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, LONGEST_BACKOFF_S)
            self.restarts += 1
            try:
                await self._spawn()
            except OSError as error:  # no room for its log, or no more processes: it is tried again as after a death
                log.warning("process.not_started", name=self.name, error=str(error))

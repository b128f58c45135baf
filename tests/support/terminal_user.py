"""A user at a real terminal: a command on a pty, keys, a screen, and a window that changes its size."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress

from tests.support.waiting import eventually


class TerminalUser:
    """Somebody who runs ``gpu-platform`` with these words at a terminal of 30 rows and 100 columns."""

    def __init__(self, *words: str, url: str) -> None:
        self._ours, theirs = pty.openpty()
        self.resize(30, 100)
        self.screen = b""
        env = {**os.environ, "GPU_PLATFORM_API_URL": url, "GPU_PLATFORM_USER": "ada", "PS1": "> ", "TERM": "xterm"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gpu_platform.cli.main", *words],
            env=env,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        os.set_blocking(self._ours, False)

    def type(self, keys: str) -> None:
        """Type these keys."""
        os.write(self._ours, keys.encode())

    def resize(self, rows: int, columns: int) -> None:
        """Give the window another size."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def sees(self, pattern: str) -> re.Match[str]:
        """Wait until the screen shows this, and forget what was shown up to its end."""

        def found() -> re.Match[str] | None:
            self._read()
            return re.search(pattern, self.screen.decode("utf-8", "replace"))

        match = await eventually(found, f"{pattern!r} on the screen: {self.screen[-2000:]!r}")
        self.screen = self.screen.decode("utf-8", "replace")[match.end() :].encode()
        return match

    async def ends(self) -> int:
        """Wait for the end of the command; its exit code."""

        def ended() -> bool:
            self._read()
            return self.process.poll() is not None

        await eventually(ended, f"the command's end: {self.screen[-2000:]!r}")
        self._read()
        return self.process.returncode

    def close(self) -> None:
        """Close the terminal, and kill the command if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)

    def _read(self) -> None:
        with suppress(OSError):
            while data := os.read(self._ours, 65_536):
                self.screen += data

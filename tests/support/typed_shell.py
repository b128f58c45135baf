"""Shell as a reader types it: bash, in which ``gpu-platform`` is forked from the fork server of the test process.

So a page with twenty commands takes seconds. A command that reads from a pipe or a file is a process of its own.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from tests.support.forking import SERVER
from workers.local.forked.client import COMMAND

_STAND_IN = """#!{python} -IS
import json, os, socket, stat, sys
if not stat.S_ISCHR(os.fstat(0).st_mode):
    os.execv({command!r}, [{command!r}, *sys.argv[1:]])
asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
asked.connect({address!r})
request = {{"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd()}}
socket.send_fds(asked, [json.dumps(request).encode()], [1, 2])
code = int(asked.recv(16))
sys.exit(code if code >= 0 else 128 - code)
"""
_LARGEST_REQUEST = 1 << 20


class TypedCommands:
    """``with TypedCommands(directory)``: ``directory`` has a ``gpu-platform`` for ``PATH``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = f"{directory}:{Path(COMMAND).parent}:{os.environ['PATH']}"
        self._address = str(directory / "asked")
        stand_in = directory / "gpu-platform"
        stand_in.write_text(_STAND_IN.format(python=sys.executable, command=COMMAND, address=self._address))
        stand_in.chmod(0o755)
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def __enter__(self) -> TypedCommands:
        self._listening.bind(self._address)
        self._listening.listen(16)
        threading.Thread(target=self._accept, name="typed-commands", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def run(self, script: str, env: Mapping[str, str], cwd: Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Run a script to its end, with nothing on its standard input."""
        return subprocess.run(
            ["bash", "-c", script],
            cwd=cwd,
            env={**os.environ, **env, "PATH": self.path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def _accept(self) -> None:
        while True:
            try:
                asking, _ = self._listening.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._answer, args=(asking,), daemon=True).start()

    def _answer(self, asking: socket.socket) -> None:
        with asking:
            message, descriptors, _, _ = socket.recv_fds(asking, _LARGEST_REQUEST, 2)
            request = json.loads(message)
            argv = [COMMAND, *request["argv"]]
            try:
                assert SERVER.can_fork(argv, request["env"])
                out, err = descriptors
                process = SERVER.start(argv, request["env"], stdout=out, stderr=err, cwd=Path(request["cwd"]))
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
            asking.send(str(process.ended.result()).encode())

"""Stand-ins for NVIDIA's programs, as real executables: what is started, runs; what they set, is in files.

``nvidia-cuda-mps-control`` is a real daemon with a socket and a server of its own, which can be killed. ``nvidia-smi``
appends what it was asked to do to a file, and does to the fake NVML (``tests.fake_nvml``) what a reset does.
"""

from __future__ import annotations

import sys
from pathlib import Path

_MPS = """#!{python}
import os, socket, subprocess, sys
pipes, logs = os.environ["CUDA_MPS_PIPE_DIRECTORY"], os.environ["CUDA_MPS_LOG_DIRECTORY"]
control = pipes + "/control"
if sys.argv[1:] != ["-d"]:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(control)
        client.sendall(sys.stdin.buffer.read())
    sys.exit()
if os.path.exists({flags!r} + "/broken"):
    sys.exit("cannot start: the driver says no")
listener = socket.socket(socket.AF_UNIX)
try:
    listener.bind(control)
except OSError as error:
    sys.exit(f"An instance of this daemon is already running: {{error}}")
listener.listen()
with open(logs + "/control.log", "a") as log:
    log.write("Start\\n")
if os.path.exists({flags!r} + "/mortal"):
    sys.exit()
if os.fork():
    sys.exit()
os.setsid()
server = subprocess.Popen(["sleep", "600"])
while True:
    connection, _ = listener.accept()
    command = connection.recv(100).decode()
    if command.startswith("quit") and not os.path.exists({flags!r} + "/stubborn"):
        server.kill()
        server.wait()
        sys.exit()
"""

_SMI = """#!{python}
import os, sys
arguments = sys.argv[1:]
with open({flags!r} + "/nvidia-smi", "a") as file:
    file.write(" ".join(arguments) + "\\n")
if os.path.exists({flags!r} + "/broken"):
    sys.exit("Insufficient Permissions")
state = os.environ.get("FAKE_NVML_STATE")
if arguments[0] == "--gpu-reset" and state:
    uuid = arguments[arguments.index("-i") + 1]
    values = {{}}
    for path in (state, state + ".driver"):
        if os.path.exists(path):
            values |= dict(line.rstrip("\\n").split(" ", 1) for line in open(path))
    [gpu] = [key.rsplit(".", 1)[0] for key, value in values.items() if value == uuid]
    with open(state + ".driver", "a") as file:
        file.write(f"{{gpu}}.mig " + values.get(f"{{gpu}}.mig_pending", "0") + "\\n")
        for key in values:
            if key.startswith(f"{{gpu}}.gi."):
                file.write(f"{{key}} -\\n")
"""


class FakeNvidia:
    """Executables in ``directory / "bin"``, to be put first on ``PATH``. Anybody may run them."""

    def __init__(self, directory: Path) -> None:
        self.bin, self._flags = directory / "bin", directory
        self.bin.mkdir(parents=True)
        for name, text in (("nvidia-cuda-mps-control", _MPS), ("nvidia-smi", _SMI)):
            program = self.bin / name
            program.write_text(text.format(python=sys.executable, flags=str(directory)))
            program.chmod(0o755)

    def become(self, flag: str) -> None:
        """``broken``: programs fail; ``mortal``: the daemon ends at once; ``stubborn``: it does not quit."""
        (self._flags / flag).touch()

    @property
    def smi_calls(self) -> list[str]:
        path = self._flags / "nvidia-smi"
        return path.read_text().splitlines() if path.exists() else []

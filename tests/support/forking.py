"""The fork server of a test process: it forks the command line, too."""

from __future__ import annotations

from gpu_platform.cli.commands import COMMANDS
from workers.local.forked.client import MODULES, ForkServer

COMMAND_LINE = (
    "gpu_platform.cli.main",
    "gpu_platform.cli.app",
    *dict.fromkeys(COMMANDS.values()),
    "gpu_platform.client.sync",
)
SERVER = ForkServer((*MODULES, "workers.gateway.server", *COMMAND_LINE, "pynvml", "rich.markdown"))
"""It starts when it is first used, and ends with the session (``conftest.py``)."""

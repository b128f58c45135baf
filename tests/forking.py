"""The fork server of a test process: it forks the command line, too."""

from __future__ import annotations

from workers.local.forked.client import MODULES, ForkServer

SERVER = ForkServer((*MODULES, "workers.gateway.server", "service.cli.main", "pynvml", "rich.markdown"))
"""It starts when it is first used, and ends with the session (``conftest.py``)."""

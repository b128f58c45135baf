"""What a whole platform writes on one machine belongs to its own account alone."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.security.test_state_on_disk import open_to_others


@pytest.mark.long
@pytest.mark.timeout(180)
async def test_the_databases_and_logs_of_a_whole_platform_are_its_own(tmp_path: Path) -> None:
    """Temporal's database has everybody's orders, the platform's everybody's jobs."""
    state = tmp_path / "state"
    state.mkdir(0o755)
    ports = ("--port", "0", "--temporal-port", "0", "--ui-port", "0")
    command = [sys.executable, "-m", "workers.local.up", "--state-dir", str(state), *ports, "--simulate", "a=dgx-h100"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        while b"Ctrl-C" not in (line := await process.stdout.readline()):
            assert line, "it ended"
        files = {path.name for path in state.iterdir()}
        assert {"platform.db", "temporal.db", "logs", "nodes"} <= files
        assert [one for one in open_to_others(state) if "/checkpoints" not in one] == []
    finally:
        process.terminate()
        await process.wait()

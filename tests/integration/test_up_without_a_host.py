"""``gpu-platform up`` where a host cannot start: the rest runs, and the terminal says why the host does not."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import httpx
import pytest


@pytest.mark.long
@pytest.mark.timeout(120)
async def test_the_reason_is_on_the_terminal_and_the_control_plane_goes_on(tmp_path: Path) -> None:
    missing = tmp_path / "policy.yaml"
    ports = ("--port", "0", "--temporal-port", "0", "--ui-port", "0")
    command = [sys.executable, "-m", "workers.local.up", "--state-dir", str(tmp_path / "state"), *ports]
    process = await asyncio.create_subprocess_exec(
        *command, "--simulate", "a=dgx-h100",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "GPU_PLATFORM_NODE__FAULT_POLICY": str(missing), "COLUMNS": "200"},
    )  # fmt: skip
    assert process.stdout is not None
    told = ""
    try:
        while "Ctrl-C" not in told:
            line = await asyncio.wait_for(process.stdout.readline(), 60)
            assert line, f"it ended: {told}"
            told += line.decode()
        log = tmp_path / "state" / "logs" / "node-a.log"
        died, *more = [line for line in told.splitlines() if "process.died" in line]
        assert not more, "it is said again and again"
        [host] = [line for line in told.splitlines() if "has not registered" in line]
        for said in (died, host):
            assert str(missing) in said
            assert str(log) in said
        address = re.search(r"REST (http://127.0.0.1:\d+)/docs", told)
        assert address is not None
        async with httpx.AsyncClient() as http:
            assert (await http.get(f"{address[1]}/readyz")).is_success
    finally:
        process.send_signal(signal.SIGINT)
        await process.communicate()
    assert process.returncode == 0

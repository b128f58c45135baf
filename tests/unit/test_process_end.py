"""Errors that only a restart mends end the process, whatever hangs in it, and a log that nobody reads ends nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from gpu_platform.process_end import RESTART_CODE

pytestmark = pytest.mark.processes

RUN = """
import asyncio, sys, threading, time
from gpu_platform import process_end
from gpu_platform.observability import configure_logging
from workers.process import run_process
process_end.RESTARTS_WITHIN_S = 1.0
process_end.STOPS_WITHIN_S = 1.0
configure_logging("test", cluster="c")
async def main():
    {body}
run_process(main())
"""
BODIES = {
    "a thread dies": """
    threading.Thread(target=lambda: 1 / 0, name="vital").start()
    await asyncio.sleep(60)""",
    "a task dies": """
    async def work(): raise ValueError("boom")
    process_end.must_run(asyncio.create_task(work()), "the feed")
    await asyncio.sleep(60)""",
    "it is said, and a thread hangs": """
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 600)
    process_end.end_for_restart("the disk did not keep it")
    await asyncio.sleep(60)""",
    "it is said, and the loop stands still": """
    threading.Timer(0.1, process_end.end_for_restart, ["the disk did not keep it"]).start()
    time.sleep(600)""",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_what_only_a_restart_mends_ends_the_process(body: str) -> None:
    program = RUN.replace("{body}", body.strip())
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == RESTART_CODE, ran.stderr
    assert "process.must_restart" in ran.stderr


def test_a_thread_that_hangs_does_not_keep_a_process_that_was_told_to_stop() -> None:
    body = """
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 600)
    print("ready", flush=True)
    await asyncio.sleep(60)"""
    program = RUN.replace("{body}", body.strip())
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    assert "process.ends_at_once" in err


def test_a_log_that_nobody_reads_blocks_nobody() -> None:
    """A pipe takes 64 KiB. A process writes 20 MiB, goes on, and says how much was lost once the reader reads."""
    program = """
import logging, sys, time
from gpu_platform.observability import configure_logging
configure_logging("test", cluster="c")
began = time.monotonic()
for number in range(20_000):
    logging.getLogger("x").warning("y" * 1000)
print(time.monotonic() - began, flush=True)
sys.stdin.read()
logging.getLogger("x").warning("the end")
"""
    reading, writing = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=writing
    ) as process:
        os.close(writing)
        assert process.stdout is not None
        assert process.stdin is not None
        assert float(process.stdout.readline()) < 60
        log = b""
        began = time.monotonic()
        while b"log.lines_lost" not in log and time.monotonic() - began < 30:
            log += os.read(reading, 65536)
        process.stdin.close()
        while data := os.read(reading, 65536):
            log += data
    os.close(reading)
    lines = log.decode().splitlines()
    assert all(line.startswith("{") and line.endswith("}") for line in lines), "no line is cut"
    assert '"event": "the end"' in lines[-1]
    assert len(log) < 8 << 20

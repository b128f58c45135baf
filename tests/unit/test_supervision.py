"""A process of a local cluster that dies is named with its reason and its log, and is started again."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from structlog.testing import capture_logs

from tests.support.waiting import eventually
from workers.local.supervision import ChildProcess


async def test_a_process_that_dies_at_each_start_says_why_once(tmp_path: Path) -> None:
    """Its log is that of a process before it, too."""
    log = tmp_path / "logs" / "child.log"
    log.parent.mkdir()
    log.write_text("RuntimeError: of another day\n")
    child = ChildProcess("child", [sys.executable, "-S", "-c", "raise OSError('the disk is full')"], log)
    with capture_logs() as told:
        await child.start()
        try:
            await eventually(lambda: child.restarts >= 2, "it was started again")
        finally:
            await child.stop()
    [line] = told
    assert (line["event"], line["name"], line["code"]) == ("process.died", "child", 1)
    assert (line["error"], line["path"]) == ("OSError: the disk is full", str(log))
    assert child.story() == f"child ended again and again (code 1: OSError: the disk is full); its log: {log}"


async def test_a_process_that_dies_without_a_word_is_said_to_tell_nothing(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    log.write_text("RuntimeError: of another day\n")
    child = ChildProcess("child", ["/bin/sh", "-c", "kill -9 $$"], log)
    with capture_logs() as told:
        await child.start()
        try:
            await eventually(lambda: child.restarts >= 1, "it was started again")
        finally:
            await child.stop()
    assert [(line["code"], line["error"]) for line in told] == [(-9, "")]
    assert child.story().startswith("child ended and is started again (code -9, and its log tells no error)")


async def test_a_process_whose_log_cannot_be_opened_is_started_when_it_can(tmp_path: Path) -> None:
    log, runs, go = tmp_path / "child.log", tmp_path / "runs", tmp_path / "go"
    os.mkfifo(go)
    child = ChildProcess("child", ["/bin/sh", "-c", f"echo one >> {runs}; read x < {go}"], log)
    with capture_logs() as told:
        await child.start()
        try:
            await eventually(runs.exists, "it runs")
            log.unlink()
            log.mkdir()
            await asyncio.to_thread(go.write_text, "end\n")
            await eventually(lambda: [one for one in told if one["event"] == "process.not_started"], "it is said")
            log.rmdir()
            await eventually(lambda: len(runs.read_text().split()) == 2, "it runs again")
        finally:
            await child.stop()

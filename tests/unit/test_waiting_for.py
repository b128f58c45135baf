"""What a process says of what it waits for."""

from __future__ import annotations

from structlog.testing import capture_logs

from workers.starting import Waiting


def test_the_end_of_each_wait_is_said_once() -> None:
    waiting = Waiting("temporal", address="localhost:7233")
    with capture_logs() as lines:
        waiting.over()
        for _ in range(2):
            waiting.still("connection refused")
            waiting.still("connection refused")
            waiting.over()
            waiting.over()
    assert [line["event"] for line in lines] == ["process.waits", "process.goes_on"] * 2

"""One JSON object per line, with everything that is bound, from our own code and from libraries."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import urllib.request

from prometheus_client import Counter

from gpu_platform.observability import serve_metrics

PROGRAM = """
import logging
from gpu_platform.observability import bound, configure_logging, get_logger
configure_logging("node/dgx-a", cluster="research-2", level="info", json=True, host="dgx-a")
log = get_logger("test")
with bound(job="j-1", attempt=2):
    log.info("rank started", rank=0)
    logging.getLogger("library").warning("careful with %s", "this")
    secret = "hunter2"
    try:
        raise ValueError("boom")
    except ValueError:
        log.exception("failed")
log.debug("not shown")
logging.getLogger("httpx").info("not shown")
log.info("after", host="dgx-b")
"""


def test_every_line_is_json_with_its_context() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert ran.stdout == ""
    lines = [json.loads(line) for line in ran.stderr.splitlines()]
    assert [line["event"] for line in lines] == ["rank started", "careful with this", "failed", "after"]
    assert [line.get("job") for line in lines] == ["j-1", "j-1", "j-1", None]
    assert {(line["cluster"], line["process"]) for line in lines} == {("research-2", "node/dgx-a")}
    assert [line["host"] for line in lines] == ["dgx-a", "dgx-a", "dgx-a", "dgx-b"]
    assert [line["level"] for line in lines] == ["info", "warning", "error", "info"]
    assert "ValueError: boom" in lines[2]["exception"]
    assert "hunter2" not in ran.stderr.replace('secret = "hunter2"', "")
    assert all(line["timestamp"].endswith("Z") for line in lines)


def test_a_log_for_people_has_no_line_and_no_character_that_somebody_else_chose() -> None:
    program = """
import logging
from gpu_platform.observability import configure_logging, get_logger
configure_logging("node", cluster="c", level="info", json=False)
log = get_logger("test")
for text in ("\\x1b]0;t\\x07", "\\n2026-01-01 [error] forged", "\\u202e", "\\x9b31m", "\\u2028", "\\r", "\\ud800"):
    log.warning(text, value=text, several=[text], by_name={text: text}, error=ValueError(text))
    logging.getLogger(text).warning("%s", text)
    try:
        raise ValueError(text)
    except ValueError:
        log.exception("failed", stack_info=True)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not [one for one in ran.stderr if one != "\n" and not one.isprintable()]
    lines = [line for line in ran.stderr.splitlines() if line.strip("=") and not line.startswith("  ")]
    assert len(lines) == 7 * 3
    assert all(re.match(r"[0-9T:.-]{26}Z \[(warning|error)", line) for line in lines)


def test_lines_of_workflows_and_activities_are_events_too() -> None:
    """The SDK adds what it knows of the workflow to the text of a line. Ours are names, and it is a field of them."""
    program = """
import asyncio, logging
from temporalio import activity, workflow
from gpu_platform.settings import Settings
from workers.process import observe
observe("control", Settings())
workflow.logger.log_during_replay = True  # else it asks the workflow that this is not
workflow.logger.warning("pipeline.output_not_read", extra={"host": "a"})
loop = asyncio.new_event_loop()
loop.call_exception_handler({"message": "a task failed", "exception": ValueError("boom")})
logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
logging.getLogger("temporalio.worker").warning("Completing activity as failed", extra={"temporal_activity": {"a": 1}})
print(workflow.logger.workflow_info_on_message, activity.logger.activity_info_on_message)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in ran.stderr.splitlines()]
    assert lines[0]["event"] == "pipeline.output_not_read"
    assert lines[0]["host"] == "a"
    assert [line["logger"] for line in lines[1:]] == ["asyncio", "uvicorn.error", "temporalio.worker"]
    assert lines[3]["temporal_activity"] == {"a": 1}
    assert ran.stdout.split() == ["False", "False"]


def test_no_traceback_shows_local_variables() -> None:
    """They may be a user's environment or a token. Also true of what people read in a terminal."""
    local = f'class Environment:\n    def __repr__(self): return "hun" + "ter2"\n{PROGRAM}'.replace(
        '"hunter2"', "Environment()"
    )
    for program in (local, local.replace("json=True", "json=False")):
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert "ValueError: boom" in ran.stderr
        assert "hunter2" not in ran.stderr


def test_metrics_are_served_on_a_free_port() -> None:
    Counter("tested_here", "A metric of this process.").inc()
    port = serve_metrics(0)
    assert b"tested_here_total 1.0" in scraped(port)


def test_a_port_that_is_taken_does_not_keep_metrics_from_being_served() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        port = serve_metrics(taken)
        assert port not in (None, taken)
        assert b"python_info" in scraped(port)


def test_an_address_that_this_machine_does_not_have_keeps_no_process_from_its_work() -> None:
    assert serve_metrics(0, "192.0.2.1") is None


def scraped(port: int | None) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return answer.read()

"""Errors that nobody foresaw: whose fault they are, and whether the same request may be sent again."""

from __future__ import annotations

import errno
import threading

import httpx
import pytest
from fastapi import FastAPI

from gpu_platform.client.wire import PROBLEM_JSON
from gpu_platform.domain.errors import NotFound
from service.http import problems


@pytest.mark.parametrize(
    ("error", "missing"),
    [
        (MemoryError(), "memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory"),
        (OSError(errno.EMFILE, "Too many open files"), "file descriptors"),
        (OSError(errno.ENFILE, "Too many open files in system"), "file descriptors"),
        (RuntimeError("can't start new thread"), "threads"),
        (ExceptionGroup("both", [ValueError("no"), MemoryError()]), "memory"),
        (RuntimeError("another one"), None),
        (OSError(errno.EIO, "Input/output error"), None),
    ],
)
async def test_a_process_without_memory_threads_or_files_says_that_the_request_may_be_sent_again(
    error: Exception, missing: str | None
) -> None:
    app = FastAPI()
    problems.install(app)

    @app.get("/fails")
    async def fails() -> None:
        raise error

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        answer = await client.get("/fails")
    assert answer.headers["content-type"] == PROBLEM_JSON
    problem = answer.json()
    if missing is None:
        assert (answer.status_code, problem["code"]) == (500, "internal")
        return
    assert (answer.status_code, problem["code"]) == (503, "unavailable")
    assert answer.headers["retry-after"] == "1"
    assert f"no {missing} left" in problem["detail"]


async def test_an_error_is_answered_by_a_process_that_can_start_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    app = FastAPI()
    problems.install(app)

    @app.get("/threads")
    def threads() -> None:
        """FastAPI calls this in a thread."""

    @app.get("/memory")
    async def memory() -> None:
        raise MemoryError

    @app.get("/none")
    async def none() -> None:
        raise NotFound("no such thing")

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        monkeypatch.setattr(threading.Thread, "start", start)
        answers = [await client.get(path) for path in ("/threads", "/memory", "/none", "/nowhere")]
    assert [answer.json()["code"] for answer in answers] == ["unavailable", "unavailable", "not_found", "not_found"]

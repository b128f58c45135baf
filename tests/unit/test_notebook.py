"""What a notebook shows of jobs, hosts and GPUs, and that nobody's text becomes HTML or controls a terminal there."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_platform.client import progress
from gpu_platform.client.listing import Listing
from gpu_platform.domain.hosts.gpu import Host
from gpu_platform.domain.jobs.array import Array, ArrayShape
from gpu_platform.domain.jobs.job import Failure, Job
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import ArrayState, HostState, JobState
from gpu_platform.pages.notebook import progress_bar, rows_table
from tests.support.examples import few

NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)
HOSTILE = "<img src=x onerror=alert(1)>\"'&\x1b[31m\n<script>"
OURS = {"table", "thead", "tbody", "tr", "th", "td", "p", "i", "div", "span"}


class Tags(HTMLParser):
    """Collects tags and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def job(**fields: Any) -> Job:
    spec = JobSpec(command=["x"], name="train")
    return Job.model_construct(**{"id": "j-1", "spec": spec, "state": JobState.RUNNING, "created_at": NOW, **fields})


def failed(message: str) -> Job:
    return job(state=JobState.FAILED, failure=Failure(kind="user", message=message))  # type: ignore[arg-type]


def array(**counts: int) -> Array:
    spec, shape = JobSpec(command=["x"], name="sweep"), ArrayShape(indices="0-19")
    return Array(id="a-1", spec=spec, array=shape, state=ArrayState.RUNNING, size=20, counts=counts, created_at=NOW)  # type: ignore[arg-type]


def test_a_job_is_a_table_with_its_state_and_why() -> None:
    html = failed("exit code 3")._repr_html_()
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", html)
    assert cells == ["j-1", "train", "anonymous", "FAILED", "0", "2026-07-01 12:00:00 UTC", "exit code 3"]


@settings(max_examples=few(40))
@given(st.text() | st.just(HOSTILE))
def test_no_text_of_others_becomes_html(text: str) -> None:
    host = Host.model_construct(name=text, state=HostState.READY, machine=text, reason=text, isolation=text)
    host.gpus_free = host.gpus_total = 8
    for html in (failed(text)._repr_html_(), host._repr_html_(), progress_bar(text, 0.5), rows_table([text])):
        tags = Tags(html)
        assert tags.tags <= OURS | {"pre"}
        assert tags.attributes <= {"style", "class"}


def test_a_list_that_was_looked_at_still_gives_all_its_items() -> None:
    fetched: list[int] = []

    def items() -> Iterator[Job]:
        for number in range(150):
            fetched.append(number)
            yield job(id=f"j-{number}")

    listing = Listing(items())
    assert next(listing).id == "j-0"
    html = listing._repr_html_()
    assert html.count("<tr>") == 101
    assert "there are more" in html
    assert len(fetched) == 102, "no more is fetched than is shown"
    assert listing._repr_html_() == html
    assert [one.id for one in listing] == [f"j-{number}" for number in range(1, 150)]
    assert Listing(iter([]))._repr_html_() == "<i>nothing</i>"


class Notebook:
    """What a kernel shows."""

    def __init__(self) -> None:
        self.html: list[str] = []

    def display(self, content: str, *, display_id: bool) -> Notebook:
        self.html.append(content)
        return self

    def update(self, content: str) -> None:
        self.html[-1] = content


def test_in_a_kernel_one_bar_is_drawn_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Notebook()
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))  # type: ignore[arg-type]
    shown = types.SimpleNamespace(HTML=str, display=cell.display)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)  # type: ignore[arg-type]
    with progress.Progress() as bar:
        for counts in ({"PENDING": 20}, {"COMPLETED": 10, "RUNNING": 4, "FAILED": 1, "PENDING": 5}):
            bar.show(array(**counts))
    [html] = cell.html
    assert "11 of 20 done, 4 running, 1 failed" in html
    assert "width:55.0%" in html


def test_in_a_file_each_change_is_a_line_and_time_alone_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    started = datetime.now(UTC) - timedelta(minutes=30)
    with progress.Progress() as bar:
        bar.show(job(state=JobState.QUEUED))
        for _ in range(3):
            bar.show(job(started_at=started))
        bar.show(failed(HOSTILE))
    err = capsys.readouterr().err
    lines = err.splitlines()
    assert lines[:2] == ["j-1 train: QUEUED", "j-1 train: RUNNING for 30m00s"]
    assert len(lines) == 3
    assert "\x1b" not in err


def test_in_a_terminal_the_bar_shows_how_much_of_the_time_limit_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    spec = JobSpec(command=["x"], name="train", time_limit_s=3600)
    with progress.Progress() as bar:
        bar.show(job(spec=spec, started_at=datetime.now(UTC) - timedelta(minutes=30)))
        [task] = bar._shown._bar.tasks  # type: ignore[attr-defined]
        assert "RUNNING for 30m00s of at most 1h00m" in task.description
        assert task.completed == pytest.approx(0.5, abs=0.01)

"""The page stands alone, is well-formed, and says what the reports say."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from gpu_platform.pages.plots import HEIGHT, AxisUnit, Bars, LineSeries, bars, distribution, duration, image, over_time
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.simulator.records import Timeline
from gpu_platform.scheduling.simulator.reports.page import best_of, html_page, metrics_of
from gpu_platform.scheduling.simulator.reports.report import SimulationReport, report_on
from tests.support.simulations import came, hosts, trace


def reports() -> list[SimulationReport]:
    jobs = trace(
        came("a", at=0, gpus=8, runs=100, namespace="<b>vision"),
        came("b", at=1, gpus=8, runs=500, namespace="speech"),
        came("c", at=2, gpus=1, runs=10, priority=1),
    ).on(hosts(1))
    return [report_on(jobs.under(Policy(order=order)).run(), order) for order in ("priority", "fcfs")]


class _Addresses(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.found += [value or "" for name, value in attrs if name in ("src", "href", "data")]


def test_the_page_needs_nothing_from_anywhere_and_escapes_what_users_wrote() -> None:
    page = html_page("<i>trace", "cluster", ["a & b"], reports())
    parser = _Addresses()
    parser.feed(page)
    assert parser.found == []
    assert not {"script", "link", "img", "iframe"} & set(parser.tags)
    assert "url(" not in page
    assert "@import" not in page
    assert "&lt;b&gt;vision" in page
    assert "&lt;i&gt;trace" in page
    assert "a &amp; b" in page


def test_every_plot_is_well_formed_and_inside_its_frame() -> None:
    page = html_page("t", "c", [], reports())
    plots = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(plots) == 6
    for plot in plots:
        root = ElementTree.fromstring(plot)
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        for line in root.iter("polyline"):
            for x, y in (point.split(",") for point in line.attrib["points"].split()):
                assert 0 <= float(x) <= width
                assert 0 <= float(y) <= height
        for bar in root.iter("rect"):
            assert float(bar.attrib["height"]) >= 0


@pytest.mark.parametrize("highest", [0.0, 0.003, 0.3, 1.0, 1.2, 3.0, 7.0, 49.0, 240.0, 12_345.0])
def test_an_axis_of_jobs_has_different_whole_numbers_and_says_what_they_are(highest: float) -> None:
    plot = over_time("t", [LineSeries("a", [0.0, 60.0], [0.0, highest])], AxisUnit("jobs", str, whole=True))
    texts = ["".join(text.itertext()) for text in ElementTree.fromstring(plot).iter("text")]
    marks = [float(text) for text in texts if re.fullmatch(r"[\d.]+", text)]
    assert marks == sorted(set(marks))
    assert all(mark == int(mark) for mark in marks)
    assert marks[0] == 0
    assert marks[-1] >= highest
    assert 2 <= len(marks) <= 6
    assert "jobs" in texts
    assert "virtual time" in texts


def test_every_axis_of_the_page_has_a_unit() -> None:
    """In the texts of its marks, or beside it. No mark is there twice."""
    page = html_page("t", "c", [], reports())
    for plot in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        root = ElementTree.fromstring(plot)
        texts = [(text.attrib.get("text-anchor"), "".join(text.itertext())) for text in root.iter("text")]
        marks = [text for anchor, text in texts if anchor == "end"][:-1]
        assert len(set(marks)) == len(marks) > 1
        assert texts[-1][1]  # what is to the right
        assert texts[-2][1] or all(re.search(r" (s|min|h|d)$", mark) for mark in marks)


def test_promises_and_estimates_are_a_table_by_size_and_namespace() -> None:
    page = html_page("t", "c", [], reports())
    assert "Promised and estimated starts" not in page  # nothing has a time limit, so nothing was promised
    jobs = trace(
        came("a", at=0, gpus=8, runs=100, limit=200, namespace="vision"),
        came("b", at=1, gpus=8, runs=10, limit=20, namespace="<i>speech"),
    ).on(hosts(1))
    page = html_page("t", "c", [], [report_on(jobs.run(), "priority")])
    section = page[page.index("Promised and estimated starts") :]
    for row in ("all jobs", "2-8 GPUs", "vision", "&lt;i&gt;speech"):
        assert f"<th>{row}</th>" in section
    assert "<td>1</td><td>100.0%</td>" in section


def test_the_better_of_two_policies_is_marked() -> None:
    both = reports()
    figures = {figure.name: figure for figure in metrics_of(both)}
    assert best_of(figures["Waiting, mean"], both) == {0}  # the small job goes first
    assert best_of(figures["Jobs completed"], both) == set()
    assert "Preemptions" not in figures


def test_who_has_no_number_gets_no_bar() -> None:
    """A part of a trace may have no job of a size. All of its bars may be missing."""
    some = bars("p95", ["a", "b"], [Bars("one", [math.nan, 60.0], 0), Bars("two", [30.0, 45.0], 1)], duration)
    assert some.count("<rect") == 3
    assert "nan" not in some
    assert "<rect" not in bars("p95", ["a"], [Bars("one", [math.nan], 0)], duration)


def test_plots_of_nothing_are_empty_not_broken() -> None:
    for plot in (
        over_time("t", [LineSeries("a", [0.0], [0.0])], AxisUnit("x", str)),
        distribution("t", [LineSeries("a", [0.0], [1.0])]),
        bars("t", ["1"], [Bars("a", [0.0])], duration),
    ):
        ElementTree.fromstring(plot)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (2.5, "2.5 s"), (59.9, "59.9 s"), (2400, "40 min"), (5400, "1.5 h"), (1036800, "12 d")],
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_timeline_integrates_steps() -> None:
    line = Timeline("a")
    line.record(10, a=2)
    line.record(20, a=9)
    line.record(20, a=4)  # replaces
    assert line.integral("a", 10, 30) == 20 + 40
    assert line.integral("a", 15, 25) == 10 + 20
    assert line.means("a", 0, 40, 4).tolist() == [0, 2, 4, 4]
    assert line.means("a", 5, 5, 2).tolist() == [0, 0]


def test_charts_are_an_image_of_their_own() -> None:
    series = [Bars("first come", [60.0, 7200.0], 0), Bars("shortest", [30.0, 3600.0], 1)]
    chart = bars("mean wait", ["a", "b & c"], series, duration)
    drawn = ElementTree.fromstring(image([chart, chart], ["first come", "shortest < 1"]))
    inner = drawn.findall("{http://www.w3.org/2000/svg}svg")
    assert [one.get("y") for one in inner] == ["0", str(HEIGHT)]
    assert "shortest < 1" in [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert ".c1{color:" in (drawn.findtext("{http://www.w3.org/2000/svg}style") or "")

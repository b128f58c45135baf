"""Charts as inline SVG, drawn here, so that a page needs nothing else.

Colours come from the page's style sheet: classes ``c0``, ``c1``, … set ``color``, and shapes use ``currentColor``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 560, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 26, 44
COLORS = 8
_IMAGE_COLORS = ("#8a8f98", "#2f6fdb", "#d9822b", "#2e9e6b")
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_TIME_STEPS = (
    *(step * unit for unit in (1, _MINUTE) for step in (1, 2, 5, 10, 20, 30)),
    *(step * _HOUR for step in (1, 2, 4, 6, 12)),
    *(step * 10**power * _DAY for power in range(5) for step in (1, 2, 5)),
)
_LOG_TIMES = (1, 10, _MINUTE, 10 * _MINUTE, _HOUR, _DAY, 10 * _DAY, 100 * _DAY, 1000 * _DAY)


@dataclass(frozen=True)
class LineSeries:
    """One line of a chart."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    color: int = 0
    dashed: bool = False
    width: float = 1.6


@dataclass(frozen=True)
class Bars:
    """One series of bars, one value per group."""

    label: str
    values: Sequence[float]
    color: int = 0


@dataclass(frozen=True)
class AxisUnit:
    """What an axis counts, and how a value is written there."""

    name: str
    number: Callable[[float], str]
    whole: bool = False
    """There are no fractions of it, so marks are whole numbers."""


def over_time(
    title: str, lines: Sequence[LineSeries], unit: AxisUnit, top: float = 0.0, x_title: str = "virtual time"
) -> str:
    """Draw lines over seconds, from zero up. ``top``: the axis reaches at least this value."""
    begin, end = min(line.x[0] for line in lines), max(line.x[-1] for line in lines)
    marks = _marks(max(top, *(max(line.y) for line in lines)), unit.whole)
    step = next((step for step in _TIME_STEPS if (end - begin) / step <= 7), _TIME_STEPS[-1])
    first = math.ceil(begin / step)
    ticks = [(n * step, duration(n * step)) for n in range(first, math.floor(end / step) + 1)]
    frame = _Frame((begin, max(end, begin + 1e-9)), (0.0, marks[-1]))
    axes = _Axes(ticks, [(mark, unit.number(mark)) for mark in marks], x_title, unit.name)
    return frame.draw(title, axes, "".join(map(frame.line, lines)))


def distribution(title: str, lines: Sequence[LineSeries], x_title: str = "time") -> str:
    """Draw which fraction of the jobs has at most x seconds. ``line.x`` are quantiles, ``line.y`` is 0 to 1.
    Logarithmic.
    """
    end = max(10.0, *(line.x[-1] for line in lines))
    last = next((time for time in _LOG_TIMES if time >= end), end)
    frame = _Frame((0.0, math.log10(last)), (0.0, 1.0))
    ticks = [(math.log10(time), "≤ 1 s" if time == 1 else duration(time)) for time in _LOG_TIMES if time <= last]
    logarithmic = (
        LineSeries(line.label, [math.log10(max(1.0, x)) for x in line.x], line.y, line.color, width=line.width)
        for line in lines
    )
    marks = [(mark, f"{mark * 100:.0f} %") for mark in (0.0, 0.25, 0.5, 0.75, 1.0)]
    axes = _Axes(ticks, marks, f"{x_title}, logarithmic", "of the jobs")
    return frame.draw(title, axes, "".join(map(frame.line, logarithmic)))


def bars(
    title: str, groups: Sequence[str], series: Sequence[Bars], number: Callable[[float], str], x_title: str = ""
) -> str:
    """Draw bars side by side for each of ``groups``. A value that is no number (NaN) gets no bar."""
    highest = max((value for one in series for value in one.values if not math.isnan(value)), default=0.0)
    marks = _time_marks(highest) if number is duration else _marks(highest)
    frame = _Frame((0.0, len(groups)), (0.0, marks[-1]))
    wide = 0.72 / len(series)
    shapes = []
    for place, one in enumerate(series):
        for group, value in enumerate(one.values):
            if math.isnan(value):
                continue
            x, y = frame.x(group + 0.14 + place * wide), frame.y(value)
            shapes.append(
                f'<rect class="c{one.color % COLORS}" x="{x:.1f}" y="{y:.1f}" fill="currentColor" rx="1.5"'
                f' width="{max(1.0, frame.x(wide) - frame.x(0) - 2):.1f}" height="{frame.y(0) - y:.1f}">'
                f"<title>{escape(one.label)}, {escape(groups[group])}: {escape(number(value))}</title></rect>"
            )
    ticks = [(place + 0.5, name) for place, name in enumerate(groups)]
    axes = _Axes(ticks, [(mark, number(mark)) for mark in marks], x_title, "", grid=False)
    return frame.draw(title, axes, "".join(shapes))


def image(charts: Sequence[str], labels: Sequence[str]) -> str:
    """Return charts, one below the other, as an SVG file with its own colours. ``labels``: the legend, by colour."""
    height = HEIGHT * len(charts) + 24
    style = "".join(f".c{color}{{color:{value}}}" for color, value in enumerate(_IMAGE_COLORS))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
        f"<style>text{{font:11px sans-serif;fill:#444}}.axis{{stroke:#444}}.grid{{stroke:#ddd}}{style}</style>"
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>'
    ]
    for place, chart in enumerate(charts):
        parts.append(chart.replace("<svg ", f'<svg y="{place * HEIGHT}" height="{HEIGHT}" ', 1))
    for color, label in enumerate(labels):
        x, y = _LEFT + 125 * color, height - 18
        parts.append(f'<rect class="c{color}" x="{x}" y="{y}" width="10" height="10" fill="currentColor"/>')
        parts.append(f'<text x="{x + 15}" y="{y + 9}">{escape(label)}</text>')
    return "".join((*parts, "</svg>\n"))


def duration(seconds: float) -> str:
    """Write a duration, e.g. ``0 s``, ``2.5 s``, ``40 min``, ``1.5 h``, ``12 d``."""
    for unit, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= unit:
            return f"{_short(seconds / unit)} {name}"
    return f"{_short(seconds)} s"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


@dataclass(frozen=True)
class _Axes:
    """The labels of both axes."""

    ticks: Sequence[tuple[float, str]]
    """Values and texts of the axis to the right."""
    marks: Sequence[tuple[float, str]]
    """Values and texts of the axis up."""
    x_title: str
    y_title: str
    grid: bool = True
    """Small lines at the ticks."""


@dataclass(frozen=True)
class _Frame:
    """The area of a chart. It turns data into pixels."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]

    def x(self, value: float) -> float:
        low, high = self.x_range
        return _LEFT + (value - low) / (high - low) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM)

    def line(self, line: LineSeries) -> str:
        points = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in zip(line.x, line.y, strict=True))
        dashes = ' stroke-dasharray="5 4"' if line.dashed else ""
        return (
            f'<polyline class="c{line.color % COLORS}" points="{points}" fill="none" stroke="currentColor"'
            f' stroke-width="{line.width:.1f}" stroke-linejoin="round"{dashes}>'
            f"<title>{escape(line.label)}</title></polyline>"
        )

    def draw(self, title: str, labels: _Axes, shapes: str) -> str:
        bottom, axes = HEIGHT - _BOTTOM, []
        for value, text in labels.marks:
            y = self.y(value)
            axes.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            axes.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>')
        for value, text in labels.ticks:
            x = self.x(value)
            if labels.grid:
                axes.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>')
            anchor = "end" if x > WIDTH - 2 * _RIGHT else "middle"
            axes.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="{anchor}">{escape(text)}</text>')
        axes.append(f'<text x="2" y="12">{escape(labels.y_title)}</text>')
        axes.append(f'<text x="{WIDTH - _RIGHT}" y="{bottom + 36}" text-anchor="end">{escape(labels.x_title)}</text>')
        axis = f'<line class="axis" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{bottom}" y2="{bottom}"/>'
        return (
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
            f"{''.join(axes)}{shapes}{axis}</svg>"
        )


def _marks(highest: float, whole: bool = False) -> list[float]:
    """Return round numbers from 0 to at least ``highest``, at most six of them. ``whole``: no fractions."""
    if highest <= 0:
        return [0.0, 1.0]
    highest = max(highest, 1.0) if whole else highest
    power = 10.0 ** math.floor(math.log10(highest / 4))
    steps = (factor * power for factor in (1, 2, 2.5, 5, 10, 20, 25, 50, 100))
    step = next(step for step in steps if highest / step <= 5 and (not whole or step == int(step)))
    return [number * step for number in range(math.ceil(highest / step - 1e-9) + 1)]


def _time_marks(highest: float) -> list[float]:
    step = next((step for step in _TIME_STEPS if highest / step <= 5), _TIME_STEPS[-1])
    return [float(number * step) for number in range(max(1, math.ceil(highest / step)) + 1)]

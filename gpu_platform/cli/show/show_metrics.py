"""How the metrics of GPUs look in a terminal: a table of figures, and one line of bars for each measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from gpu_platform.cli.show import tables, times
from gpu_platform.domain.hosts.samples import DAY_S, Figures, MetricsHistory
from gpu_platform.domain.texts import counted

_BARS = "▁▂▃▄▅▆▇█"
_GIB_MIB = 1024
_NARROWEST = 8


class Sparkline:
    """Values as bars from 0 to ``top``. It takes as much of the line as there is, up to one column for each value; if
    there is less, values next to each other are averaged. A gap is a space."""

    def __init__(self, values: Sequence[float | None], top: float) -> None:
        self._values = values
        self._top = top

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """See rich: the least and the most columns that it can use."""
        return Measurement(min(_NARROWEST, len(self._values)), len(self._values))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """See rich."""
        yield Text("".join(map(self._bar, _narrowed(self._values, options.max_width))), no_wrap=True)

    def _bar(self, value: float | None) -> str:
        if value is None:
            return " "
        height = int(value / self._top * len(_BARS)) if self._top > 0 else 0
        return _BARS[min(max(height, 0), len(_BARS) - 1)]


class _Row(NamedTuple):
    label: str
    figures: Figures
    shown: Callable[[float], str]
    top: float | None = None
    """The value of the highest bar. None: the largest mean of a point."""


def history(target: str, found: MetricsHistory) -> RenderableType:
    """The figures and the course of each measurement."""
    rows = [
        _Row("utilisation", found.utilization_percent, "{:.0f} %".format, 100.0),
        _Row("memory", found.memory_used_mib, lambda mib: f"{mib / _GIB_MIB:.1f} GiB"),
        _Row("temperature", found.temperature_c, "{:.0f} °C".format),
        _Row("power", found.power_w, "{:.0f} W".format),
    ]
    measured = [row for row in rows if row.figures.count]
    parts: list[RenderableType] = [_head(target, found)]
    if measured:
        parts += ["", _figures(measured), "", _courses(measured)]
    else:
        parts.append("nothing was measured in this time")
    parts += [f"not measured: {host}: {why}" for host, why in found.unmeasured_hosts.items()]
    window_s = (found.until - found.since).total_seconds()
    if found.retention_days is not None and window_s > found.retention_days * DAY_S:
        parts.append(f"samples are kept for {counted(found.retention_days, 'day')} (node.metrics_retention_days)")
    if found.prometheus_url is not None:
        parts += ["", found.prometheus_url]
    return Group(*parts)


def _head(target: str, found: MetricsHistory) -> str:
    what = f"{target}: {counted(found.gpus, 'GPU')}"
    if len(found.hosts) > 1:
        what += f" on {counted(len(found.hosts), 'host')}"
    return f"{what}, {times.local(found.since)} to {times.local(found.until)}, samples of {found.sample_s} s"


def _figures(rows: Sequence[_Row]) -> Table:
    table = tables.plain_table("", "MEAN", "P50", "P90", "P99", "MAX", "SAMPLES")
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for label, figures, shown, _ in rows:
        values = (figures.mean, figures.p50, figures.p90, figures.p99, figures.max)
        table.add_row(label, *("-" if value is None else shown(value) for value in values), str(figures.count))
    return table


def _courses(rows: Sequence[_Row]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_column(no_wrap=True)
    for label, figures, shown, top in rows:
        values = [point.mean for point in figures.points]
        highest = top or max((value for value in values if value is not None), default=0.0)
        table.add_row(label, Sparkline(values, highest), f"0 to {shown(highest)}")
    return table


def _narrowed(values: Sequence[float | None], width: int) -> list[float | None]:
    if len(values) <= width:
        return [*values]
    groups = [values[len(values) * n // width : len(values) * (n + 1) // width] for n in range(width)]
    known = [[value for value in group if value is not None] for group in groups]
    return [sum(group) / len(group) if group else None for group in known]

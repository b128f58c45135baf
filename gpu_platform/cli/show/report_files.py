"""The report of the cluster as files: CSV for a spreadsheet, and an HTML page with plots that stands alone."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from html import escape

from pydantic import BaseModel

from gpu_platform.cli.show import show_report
from gpu_platform.cli.show.listing import no_formula
from gpu_platform.domain.cluster_report import ClusterReport, PeriodPart, Spread
from gpu_platform.pages.plots import AxisUnit, LineSeries, over_time
from gpu_platform.pages.style import STYLE

_HOUR_S = 3600.0
COLUMNS = ("table", "name", "figure", "value")


def as_csv(report: ClusterReport) -> str:
    """All figures as CSV with the columns of :data:`COLUMNS`; an unknown value is empty."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(COLUMNS)
    lines.writerows(_lines(report))
    return text.getvalue()


def rows_of(report: ClusterReport) -> list[dict[str, str]]:
    """The lines of :func:`as_csv`, by the names of their columns."""
    return [dict(zip(COLUMNS, line, strict=True)) for line in _lines(report)]


def _lines(report: ClusterReport) -> Iterator[tuple[str, str, str, str]]:
    period = f"{report.since.isoformat()}/{report.until.isoformat()}"
    for table in (report.gpu_time, report.jobs, report.failures):
        for name, value in _figures_of(table):
            yield "cluster", period, name, value
    for kind, rows, keys in (
        ("host", report.hosts, ("host",)),
        ("gpu_model", report.gpu_models, ("model",)),
        ("user", report.users, ("namespace", "user")),
        ("period", report.parts, ("begin",)),
    ):
        for row in rows:
            values = row.model_dump(mode="json")
            of = no_formula("/".join(values.pop(key) for key in keys))
            for figure, value in values.items():
                yield kind, of, figure, _written(value)


def as_page(report: ClusterReport) -> str:
    """A page with the plots and all tables. It loads nothing from anywhere."""
    return _PAGE.format(
        period=escape(show_report.period(report)),
        style=STYLE,
        charts="".join(_charts(report)),
        figures=_table(("", ""), show_report.figures(report)),
        hosts=_table(show_report.HOST_HEADS, show_report.host_rows(report)),
        models=_table(show_report.MODEL_HEADS, show_report.model_rows(report)),
        users=_table(show_report.USER_HEADS, show_report.user_rows(report)),
    )


def _figures_of(table: BaseModel) -> Iterator[tuple[str, str]]:
    for name, value in table:
        if isinstance(value, Spread):
            yield from ((f"{name}_{figure}", _written(one)) for figure, one in value)
        elif isinstance(value, dict):
            yield from ((f"{name}_{kind}", _written(number)) for kind, number in value.items())
        else:
            yield name, _written(value)


def _written(value: object) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _charts(report: ClusterReport) -> Iterator[str]:
    parts = report.parts
    title = "GPUs held (dashed: GPUs that there were)"
    lines = [
        _line("held", parts, [_per_hour(part.allocated_gpu_hours, part) for part in parts], 0),
        _line("there", parts, [_per_hour(part.gpu_hours, part) for part in parts], 7, dashed=True),
    ]
    yield _chart(title, report, lines, "GPUs")
    title = "Jobs an hour (dashed: submitted)"
    lines = [
        _line("submitted", parts, [_per_hour(part.submitted, part) for part in parts], 7, dashed=True),
        _line("completed", parts, [_per_hour(part.completed, part) for part in parts], 2),
        _line("failed", parts, [_per_hour(part.failed, part) for part in parts], 1),
    ]
    yield _chart(title, report, lines, "jobs an hour")


def _per_hour(value: float, part: PeriodPart) -> float:
    return value / part.hours


def _line(
    label: str, parts: Sequence[PeriodPart], values: Sequence[float], color: int, dashed: bool = False
) -> LineSeries:
    """Steps: each value lasts from the begin of its part to the end."""
    begins = [(part.begin - parts[0].begin).total_seconds() for part in parts]
    ends = [begin + part.hours * _HOUR_S for begin, part in zip(begins, parts, strict=True)]
    x = [at for pair in zip(begins, ends, strict=True) for at in pair]
    return LineSeries(label, x, [value for value in values for _ in range(2)], color, dashed)


def _chart(title: str, report: ClusterReport, lines: Sequence[LineSeries], unit: str) -> str:
    labels = " ".join(f'<span class="c{line.color}"><i></i><b>{escape(line.label)}</b></span>' for line in lines)
    since = f"since {report.since:%Y-%m-%d %H:%M} UTC"
    drawn = over_time(title, lines, AxisUnit(unit, "{:,.4g}".format), x_title=since)
    return f'<figure><figcaption>{escape(title)}</figcaption><p class="legend">{labels}</p>{drawn}</figure>'


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(text.capitalize())}</th>" for text in heads)
    body = "".join(
        f"<tr><th>{escape(first)}</th>{''.join(f'<td>{escape(text)}</td>' for text in rest)}</tr>"
        for first, *rest in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>Report of the cluster, {period}</title><style>{style}</style></head><body>
<h1>Report of the cluster</h1><p class="faint">{period}</p>
<div class="charts">{charts}</div>
<section><h2>Figures</h2>{figures}</section>
<section><h2>Users</h2>{users}</section>
<section><h2>GPU models</h2>{models}</section>
<section><h2>Hosts</h2>{hosts}</section>
</body></html>
"""

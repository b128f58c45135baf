"""Reports as one HTML file that stands alone: no script, no font, no image from anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from gpu_platform.pages.plots import (
    COLORS,
    AxisUnit,
    Bars,
    LineSeries,
    bars,
    distribution,
    duration,
    over_time,
)
from gpu_platform.pages.style import STYLE
from gpu_platform.scheduling.simulator.records import JobOutcome
from gpu_platform.scheduling.simulator.reports.dates_section import dates_section
from gpu_platform.scheduling.simulator.reports.report import SimulationReport

MAX_NAMESPACES = 20


@dataclass(frozen=True)
class ReportMetric:
    """A line of the comparison: how to read it from a report, how to write it, and whether more or less is better."""

    name: str
    meaning: str
    value: Callable[[SimulationReport], float]
    text: Callable[[float], str]
    better: int = 0
    """1: more is better. -1: less is better. 0: neither."""
    shown_if: Callable[[SimulationReport], float] = lambda report: 1
    """The line is left out if this is 0 for all reports."""


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _count(value: float) -> str:
    return f"{value:,.0f}".replace(",", "\u202f")


def _figures3(value: float) -> str:
    return _count(value) if value >= 100 else f"{value:.3g}"


def _three(value: float) -> str:
    return f"{value:.3f}"


def _if_any(
    name: str,
    meaning: str,
    value: Callable[[SimulationReport], float],
    text: Callable[[float], str],
    better: int = 0,
) -> ReportMetric:
    """Return a line that is shown only if the value is not 0."""
    return ReportMetric(name, meaning, value, text, better, shown_if=value)


REPORT_METRICS = (
    ReportMetric("Jobs completed", "", lambda r: r.jobs[JobOutcome.COMPLETED], _count, 1),
    _if_any("Jobs not finished", "waiting or running at the end", lambda r: r.jobs_left, _count, -1),
    _if_any("Jobs refused", "larger than the cluster", lambda r: r.jobs[JobOutcome.REFUSED], _count),
    _if_any("Jobs failed", "time limit, or too many failures", lambda r: r.jobs_failed, _count, -1),
    ReportMetric("Makespan", "first submission to last end", lambda r: r.end_s - r.begin_s, duration, -1),
    ReportMetric("Utilisation", "work that was kept, of all GPU time", lambda r: r.utilisation, _percent, 1),
    ReportMetric("Allocation", "GPU time held, of that in working order", lambda r: r.allocation_ratio, _percent, 1),
    ReportMetric(
        "Fragmentation", "free GPUs of no use to a job, while jobs wait", lambda r: r.fragmentation, _percent, -1
    ),
    ReportMetric("Waiting, mean", "submission to first start", lambda r: r.waiting_s.mean, duration, -1),
    ReportMetric("Waiting, median", "", lambda r: r.waiting_s.p50, duration, -1),
    ReportMetric("Waiting, 90 %", "", lambda r: r.waiting_s.p90, duration, -1),
    ReportMetric("Waiting, 99 %", "", lambda r: r.waiting_s.p99, duration, -1),
    ReportMetric("Waiting, longest", "", lambda r: r.waiting_s.max, duration, -1),
    ReportMetric("Completion, mean", "submission to end", lambda r: r.completion_s.mean, duration, -1),
    ReportMetric("Completion, 90 %", "", lambda r: r.completion_s.p90, duration, -1),
    ReportMetric("Completion, 99 %", "", lambda r: r.completion_s.p99, duration, -1),
    ReportMetric("Slowdown", "completion over run time, mean", lambda r: r.slowdown, _figures3, -1),
    ReportMetric("Fairness", "Jain's index over namespaces", lambda r: r.fairness, _three, 1),
    ReportMetric(
        "Promises", "jobs that were promised a start", lambda r: r.promises.given, _count, 0, lambda r: r.promises.given
    ),
    ReportMetric(
        "Promises broken", "started after the promise", lambda r: r.promises.broken, _count, -1,
        lambda r: r.promises.given,
    ),
    _if_any("Broken by, median", "", lambda r: r.promises.late_s.p50, duration, -1),
    _if_any("Broken by, longest", "", lambda r: r.promises.late_s.max, duration, -1),
    ReportMetric(
        "Estimates", "jobs with an estimated start when they came", lambda r: r.estimates.started, _count, 0,
        lambda r: r.estimates.asked,
    ),
    ReportMetric(
        "Estimate error, median", "estimated against real start", lambda r: r.estimates.error_s.p50, duration, -1,
        lambda r: r.estimates.started,
    ),
    ReportMetric(
        "Estimates near", "error within 10 % of the wait", lambda r: r.estimates.near, _percent, 1,
        lambda r: r.estimates.started,
    ),
    ReportMetric(
        "Estimates held", "started within the 80 % interval", lambda r: r.estimates.within, _percent, 1,
        lambda r: r.estimates.started,
    ),
    _if_any("Preemptions", "", lambda r: r.preemptions, _count, -1),
    _if_any("Moves", "of jobs, to join free GPUs or after a loss", lambda r: r.moves, _count, -1),
    _if_any("Failures", "of GPUs and hosts", lambda r: r.failures, _count),
    _if_any("Restarts", "of jobs after failures", lambda r: r.restarts, _count, -1),
    _if_any("Recovery, 90 %", "from a failure until the job runs again", lambda r: r.recovery_s.p90, duration, -1),
    _if_any("Work lost", "GPU-hours done twice", lambda r: r.lost_gpu_hours, lambda v: f"{_count(v)} GPU-h", -1),
)  # fmt: skip
"""The comparison, top to bottom; the command line shows the same."""

DECISION_METRICS = (
    ReportMetric(
        "Decision, median", "wall clock", lambda r: r.decision_ms.p50 if r.decision_ms else 0, "{:.2f} ms".format
    ),
    ReportMetric("Decision, 99 %", "", lambda r: r.decision_ms.p99 if r.decision_ms else 0, "{:.2f} ms".format),
)


def metrics_of(reports: Sequence[SimulationReport]) -> list[ReportMetric]:
    """Return the metrics that say something about these reports."""
    timed = DECISION_METRICS if any(report.decision_ms for report in reports) else ()
    return [metric for metric in (*REPORT_METRICS, *timed) if any(metric.shown_if(report) for report in reports)]


def best_of(metric: ReportMetric, reports: Sequence[SimulationReport]) -> set[int]:
    """Return which of several reports are best at the metric. Empty if all are equal."""
    texts = [metric.text(metric.value(report)) for report in reports]
    if not metric.better or len(set(texts)) < 2:
        return set()
    best = max(range(len(reports)), key=lambda i: metric.better * metric.value(reports[i]))
    return {i for i, text in enumerate(texts) if text == texts[best]}


def html_page(trace: str, cluster: str, notes: Iterable[str], reports: Sequence[SimulationReport]) -> str:
    """Return a page that shows reports on one trace and cluster side by side."""
    title = f"{trace} on {cluster}"
    jobs = sum(reports[0].jobs.values())
    return _PAGE.format(
        title=escape(title),
        style=STYLE,
        lead=f"{_count(jobs)} jobs, {_count(reports[0].gpus)} GPUs, {duration(reports[0].end_s - reports[0].begin_s)}",
        notes="".join(f"<li>{escape(note)}</li>" for note in notes),
        legend=_legend(reports),
        comparison=_comparison(reports),
        charts="".join(_charts(reports)),
        dates=dates_section(reports),
        namespaces=_namespaces(reports),
    )


def _legend(reports: Sequence[SimulationReport]) -> str:
    entries = (f'<span class="c{i % COLORS}"><i></i><b>{escape(r.policy)}</b></span>' for i, r in enumerate(reports))
    return f'<p class="legend">{"".join(entries)}</p>'


def _comparison(reports: Sequence[SimulationReport]) -> str:
    rows = []
    for metric in metrics_of(reports):
        best = best_of(metric, reports)
        cells = "".join(
            f'<td class="best">{escape(metric.text(metric.value(report)))}</td>'
            if i in best
            else f"<td>{escape(metric.text(metric.value(report)))}</td>"
            for i, report in enumerate(reports)
        )
        rows.append(f"<tr><th>{escape(metric.name)}<small>{escape(metric.meaning)}</small></th>{cells}</tr>")
    heads = "".join(f"<th>{escape(report.policy)}</th>" for report in reports)
    return f"<table><thead><tr><th></th>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _percent0(value: float) -> str:
    return f"{value * 100:.3g} %"


_GPUS, _JOBS = AxisUnit("GPUs", _count, whole=True), AxisUnit("jobs", _count, whole=True)


def _charts(reports: Sequence[SimulationReport]) -> Iterable[str]:
    def line(i: int, x: Sequence[float], y: Sequence[float]) -> LineSeries:
        # The first lines are the widest, so that lines at the same place are all seen.
        return LineSeries(reports[i].policy, x, y, i, width=1.6 + 1.3 * (len(reports) - 1 - i))

    def series(pick: Callable[[SimulationReport], Sequence[float]]) -> list[LineSeries]:
        return [line(i, report.series.at_s, pick(report)) for i, report in enumerate(reports)]

    gpus = reports[0].gpus
    working = LineSeries(
        "in working order",
        reports[0].series.at_s,
        [gpus - down for down in reports[0].series.down_gpus],
        COLORS - 1,
        dashed=True,
    )
    held = [*series(lambda r: r.series.held_gpus), working]
    yield _chart(
        "GPUs held (dashed: in working order)", lambda t: over_time(t, held, AxisUnit("GPUs", _count, whole=True), gpus)
    )
    waiting, stranded = series(lambda r: r.series.waiting_jobs), series(lambda r: r.series.stranded)
    yield _chart("Jobs waiting", lambda t: over_time(t, waiting, _JOBS))
    for title, x_title, pick in (
        ("Waiting time: part of the jobs that started within", "waiting time", lambda r: r.waiting_quantiles_s),
        (
            "Completion time: part of the jobs that ended within",
            "submission to end",
            lambda r: r.completion_quantiles_s,
        ),
    ):
        steps = [line(i, pick(r), [n / 100 for n in range(101)]) for i, r in enumerate(reports) if pick(r)]
        if steps:
            yield _chart(title, lambda t, steps=steps, x=x_title: distribution(t, steps, x))
    sizes = [size.gpus for size in reports[0].by_size if size.jobs]
    waits = [Bars(r.policy, [s.waiting_s.mean for s in r.by_size if s.jobs], i) for i, r in enumerate(reports)]
    yield _chart("Mean waiting time by size of job", lambda t: bars(t, sizes, waits, duration, "GPUs of the job"))
    yield _chart(
        "Fragmentation: free GPUs that a job could not use",
        lambda t: over_time(t, stranded, AxisUnit("of the free GPUs", _percent0), 0.01),
    )


def _chart(title: str, draw: Callable[[str], str]) -> str:
    return f"<figure><figcaption>{escape(title)}</figcaption>{draw(title)}</figure>"


def _namespaces(reports: Sequence[SimulationReport]) -> str:
    """Show how long each namespace waited under each policy, the largest namespaces first."""
    if len(reports[0].namespaces) < 2:
        return ""
    shown = sorted(reports[0].namespaces, key=lambda share: (-share.gpu_hours, share.namespace))[:MAX_NAMESPACES]
    rows = []
    for share in shown:
        same = [next(s for s in report.namespaces if s.namespace == share.namespace) for report in reports]
        cells = "".join(f"<td>{duration(s.waiting_s.mean)}</td><td>{s.served:.0%}</td>" for s in same)
        rows.append(
            f"<tr><th>{escape(share.namespace)}</th><td>{_count(share.jobs)}</td>"
            f"<td>{_count(share.gpu_hours)}</td>{cells}</tr>"
        )
    heads = "".join(f'<th colspan="2">{escape(report.policy)}</th>' for report in reports)
    under = "<th>waiting</th><th>served</th>" * len(reports)
    more = len(reports[0].namespaces) - len(shown)
    rest = f"<p>… and {more} smaller ones.</p>" if more else ""
    return (
        "<section><h2>Namespaces</h2><p>Mean waiting time, and the part of their jobs' time that they ran.</p>"
        f'<div class="scroll"><table><thead><tr><th></th><th></th><th></th>{heads}</tr>'
        f"<tr><th></th><th>jobs</th><th>GPU-hours</th>{under}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>{rest}</section>"
    )


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>{title}</title><style>{style}</style></head><body>
<h1>{title}</h1><p class="faint">{lead}</p><ul>{notes}</ul>
{legend}
<div class="charts">{charts}</div>
<section><h2>Figures</h2><div class="scroll">{comparison}</div></section>
{dates}
{namespaces}
</body></html>
"""

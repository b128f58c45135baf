"""The part of the page about promised and estimated starts: all jobs, then by size and by namespace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from gpu_platform.pages.plots import duration
from gpu_platform.scheduling.simulator.reports.report import SimulationReport
from gpu_platform.scheduling.simulator.reports.told import EstimateFigures, PromiseFigures

MAX_NAMESPACES = 20
_Figures = tuple[PromiseFigures, EstimateFigures]
_COLUMNS = (
    ("promised", "jobs that were promised a start"),
    ("kept", "of these, the part that started by then"),
    ("withdrawn", "of these, how many were taken back with a reason"),
    ("broken", "how many were neither kept nor taken back"),
    ("late", "the latest start after its promise"),
    ("estimated", "jobs whose estimated start was noted when they came, and that started"),
    ("error", "median difference between estimated and real start"),
    ("near", "the part with an error of at most a tenth of the wait"),
)


def dates_section(reports: Sequence[SimulationReport]) -> str:
    """Return the section as HTML. Empty if no policy promised or estimated anything."""
    if not any(report.promises.given or report.estimates.asked for report in reports):
        return ""
    heads = "".join(f'<th colspan="{len(_COLUMNS)}">{escape(report.policy)}</th>' for report in reports)
    under = "".join(f'<th title="{escape(meaning)}">{name}</th>' for name, meaning in _COLUMNS) * len(reports)
    rows = "".join(
        f"<tr><th>{escape(name)}</th>{''.join(map(_cells, figures))}</tr>" for name, figures in _rows(reports)
    )
    return (
        "<section><h2>Promised and estimated starts</h2>"
        "<p>Kept: started by the promised time. Near: the error is at most a tenth of the wait.</p>"
        f'<div class="scroll"><table><thead><tr><th></th>{heads}</tr><tr><th></th>{under}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div></section>"
    )


def _rows(reports: Sequence[SimulationReport]) -> Iterator[tuple[str, list[_Figures]]]:
    yield "all jobs", [(report.promises, report.estimates) for report in reports]
    for place, size in enumerate(reports[0].by_size):
        if size.jobs:
            yield (
                f"{size.gpus} GPU{'' if size.gpus == '1' else 's'}",
                [(report.by_size[place].promises, report.by_size[place].estimates) for report in reports],
            )
    if len(reports[0].namespaces) < 2:
        return
    for share in sorted(reports[0].namespaces, key=lambda one: (-one.gpu_hours, one.namespace))[:MAX_NAMESPACES]:
        same = [next(s for s in report.namespaces if s.namespace == share.namespace) for report in reports]
        yield share.namespace, [(one.promises, one.estimates) for one in same]


def _cells(figures: _Figures) -> str:
    promises, estimates = figures
    decided = promises.kept + promises.withdrawn + promises.broken
    texts = (
        f"{promises.given}",
        f"{promises.kept / decided:.1%}" if decided else "",
        f"{promises.withdrawn}" if decided else "",
        f"{promises.broken}" if decided else "",
        duration(promises.late_s.max) if promises.withdrawn or promises.broken else "",
        f"{estimates.started}",
        duration(estimates.error_s.p50) if estimates.started else "",
        f"{estimates.near:.0%}" if estimates.started else "",
    )
    return "".join(f"<td>{text}</td>" for text in texts)

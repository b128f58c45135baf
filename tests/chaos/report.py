"""What a chaos run did and found, as a table: ``python -m tests.chaos.report FILE…`` sums up what runs have written.

Runs append one JSON line each to the file that ``GPU_PLATFORM_CHAOS_REPORT`` names. ``--page`` adds them to the sums by
seed in ``docs/explanation/faults.md``: a run that stands there already is not counted twice.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from tests.chaos.facts import RECOVERY_S, Facts, Kind, Violation
from tests.chaos.faults import Fault
from tests.chaos.together import seconds_together

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "faults.md"
SUMS_BEGIN, SUMS_END = "<!-- sums by seed -->", "<!-- end of the sums -->"
_RUN = re.compile(r"\| \d+ \| ")


@dataclass
class Row:
    """One kind of fault."""

    times: int = 0
    twice_s: float = 0.0
    """The longest that two attempts of a job ran at once while it lasted, or soon after."""
    recovery_s: list[float] = field(default_factory=list)
    """Of hosts, GPUs and jobs: until the next attempt of each job that it cost one. Of the control plane: until a job
    runs that was submitted after it began."""


@dataclass
class Report:
    database: str
    jobs: int = 0
    runs: int = 0
    settled_s: float = 0.0
    violations: dict[str, int] = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)
    seed: int = 0
    """Of the one run; 0: of several."""

    @property
    def faults(self) -> int:
        return sum(row.times for row in self.rows.values())

    def add(self, other: Report) -> None:
        self.jobs += other.jobs
        self.runs += other.runs
        self.settled_s = max(self.settled_s, other.settled_s)
        self.violations = dict(Counter(self.violations) + Counter(other.violations))
        for kind, row in other.rows.items():
            ours = self.rows.setdefault(kind, Row())
            ours.times += row.times
            ours.twice_s = max(ours.twice_s, row.twice_s)
            ours.recovery_s += row.recovery_s

    def text(self) -> str:
        found = ", ".join(f"{count} × {kind}" for kind, count in self.violations.items()) or "none"
        lines = [
            f"{self.database}: {self.runs} runs, {self.jobs} jobs, {self.faults} faults, violations: {found}",
            "",
            "| fault | times | two attempts at once, s | recovery p50, s | longest, s |",
            "|---|---:|---:|---:|---:|",
        ]
        for kind, row in sorted(self.rows.items()):
            times = (f"{median(row.recovery_s):.1f}", f"{max(row.recovery_s):.1f}") if row.recovery_s else ("–", "–")
            lines.append(f"| {kind} | {row.times} | {row.twice_s:.1f} | {times[0]} | {times[1]} |")
        return "\n".join([*lines, "", f"settled {self.settled_s:.0f} s after the last fault at the latest"])


def report_of(database: str, facts: Facts, violations: Sequence[Violation], settled_s: float, seed: int = 0) -> Report:
    rows: dict[str, Row] = defaultdict(Row)
    twice = [pair for pair in seconds_together(facts) if pair.seconds > 0]
    for fault in facts.faults:
        row = rows[_name(fault)]
        row.times += 1
        near = [pair.seconds for pair in twice if fault.overlaps(pair.begin, pair.end, aftermath_s=RECOVERY_S)]
        row.twice_s = max([row.twice_s, *near])
        row.recovery_s += _next_start(facts, fault) if fault.of_the_cluster else _recoveries(facts, fault)
    kinds = Counter(violation.kind.value for violation in violations)
    return Report(database, len(facts.plans), 1, settled_s, dict(kinds), dict(rows), seed)


def append(path: Path, report: Report) -> None:
    with path.open("a") as file:
        file.write(json.dumps(asdict(report)) + "\n")


def read(paths: Iterable[Path]) -> list[Report]:
    """One of each database."""
    found: dict[str, Report] = {}
    for report in runs_of(paths):
        found.setdefault(report.database, Report(report.database)).add(report)
    return list(found.values())


def runs_of(paths: Iterable[Path]) -> Iterator[Report]:
    """One of each run."""
    for path in paths:
        for line in path.read_text().splitlines():
            fields = json.loads(line)
            fields["rows"] = {kind: Row(**row) for kind, row in fields["rows"].items()}
            yield Report(**fields)


def with_sums(page: str, runs: Iterable[Report]) -> str:
    """The page with these runs in its table of sums by seed, and the sum of each database below them."""
    before, rest = page.split(SUMS_BEGIN)
    table, after = rest.split(SUMS_END)
    rows = {tuple(line.split(" | ")[:2]): line for line in table.splitlines() if _RUN.match(line)}
    for run in runs:
        found = ", ".join(f"{count} × {kind}" for kind, count in run.violations.items()) or "none"
        line = f"| {run.seed} | {run.database} | {run.jobs} | {run.faults} | {found} | {run.settled_s:.0f} s |"
        rows[tuple(line.split(" | ")[:2])] = line
    lines = [
        "| seed | database | jobs | faults | violations | settled after |",
        "|---:|---|---:|---:|---|---:|",
        *rows.values(),
    ]
    for database in sorted({key[1] for key in rows}):
        cells = [line.split(" | ") for key, line in rows.items() if key[1] == database]
        bad = sum(cell[4] != "none" for cell in cells)
        sums = [f"{sum(int(cell[place]) for cell in cells):,}" for place in (2, 3)]
        lines.append(f"| all {len(cells)} | {database} | {sums[0]} | {sums[1]} | in {bad} runs | |")
    return "\n".join([before + SUMS_BEGIN, "", *lines, "", SUMS_END + after])


def _name(fault: Fault) -> str:
    """Killed and frozen processes by what they are: ``kill_process service``."""
    if fault.kind not in ("kill_process", "freeze_process", "freeze_long"):
        return fault.kind
    return f"{fault.kind} {'node' if fault.hosts else fault.target.split('-')[0]}"


def _recoveries(facts: Facts, fault: Fault) -> list[float]:
    begins: dict[tuple[str, int], float] = {}
    for run in facts.truth.runs:
        key = (run.job, run.attempt)
        begins[key] = min(run.begin, begins.get(key, run.begin))
    return [
        begins[hold.job, hold.attempt + 1] - fault.begin
        for hold in facts.holds
        if fault.may_restart(hold.job, hold.hosts, hold.gpus)
        and hold.reserved[0] < fault.begin < hold.released[1]
        and (hold.job, hold.attempt + 1) in begins
    ]


def _next_start(facts: Facts, fault: Fault) -> list[float]:
    """Until a job runs that was submitted after the fault began."""
    submitted = {seen.event.job_id: seen.before for seen in facts.events if seen.event.kind == "job.submitted"}
    begins = [run.begin for run in facts.truth.runs if submitted.get(run.job, 0.0) > fault.begin]
    return [min(begins) - fault.begin] if begins else []


if __name__ == "__main__":
    files = [Path(name) for name in sys.argv[1:] if name != "--page"]
    if "--page" in sys.argv:
        PAGE.write_text(with_sums(PAGE.read_text(), runs_of(files)))
    for report in read(files):
        print(report.text(), end="\n\n")
    print("kinds of violations looked for: " + ", ".join(kind.value for kind in Kind))

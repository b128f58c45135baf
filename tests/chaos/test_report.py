"""What a run did is summed up, and sums of several runs are one table."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.facts import Kind, Violation
from tests.chaos.report import SUMS_BEGIN, SUMS_END, append, read, report_of, runs_of, with_sums
from tests.chaos.test_planted import change_run, right


def test_runs_are_summed_up_per_database(tmp_path: Path) -> None:
    facts = right()
    append(tmp_path / "report", report_of("sqlite", facts, [], 3.0))
    change_run(0, end=36.5)(facts)
    append(tmp_path / "report", report_of("sqlite", facts, [Violation(Kind.TWO_ATTEMPTS, "j", 2.5)], 5.0))
    append(tmp_path / "report", report_of("postgresql", right(), [], 1.0))
    sqlite, postgresql = read([tmp_path / "report"])
    assert (sqlite.runs, sqlite.jobs, sqlite.faults, sqlite.settled_s) == (2, 2, 4, 5.0)
    assert (postgresql.runs, postgresql.violations) == (1, {})
    assert sqlite.violations == {"two attempts at once": 1}
    assert sqlite.rows["partition"].recovery_s == [6.0, 6.0], "from the cut at 28 s to the next attempt at 34 s"
    assert sqlite.rows["partition"].twice_s == 2.5
    assert "| partition | 2 | 2.5 | 6.0 | 6.0 |" in sqlite.text()


def test_sums_by_seed_are_kept_on_the_page_and_no_run_counts_twice(tmp_path: Path) -> None:
    page = f"# Faults\n\n{SUMS_BEGIN}\n{SUMS_END}\n\nmore\n"
    bad = [Violation(Kind.TWO_ATTEMPTS, "j", 2.5)]
    append(tmp_path / "one", report_of("sqlite", right(), [], 3.0, seed=11))
    append(tmp_path / "two", report_of("sqlite", right(), bad, 4.0, seed=12))
    once = with_sums(page, runs_of([tmp_path / "one"]))
    both = with_sums(once, runs_of([tmp_path / "one", tmp_path / "two"]))
    assert with_sums(both, []) == both
    assert "| 11 | sqlite | 1 | 2 | none | 3 s |\n| 12 | sqlite | 1 | 2 | 1 × two attempts at once | 4 s |" in both
    assert "| all 2 | sqlite | 2 | 4 | in 1 runs | |" in both
    assert both.endswith("\nmore\n")

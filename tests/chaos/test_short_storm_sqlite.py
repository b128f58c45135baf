"""A short storm on SQLite: ``make test`` runs the one on PostgreSQL. See ``test_random_kills``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.survival import short_storm


@pytest.mark.storm
@pytest.mark.chaos
@pytest.mark.timeout(400)
async def test_after_a_short_storm_every_job_has_ended_as_it_should(tmp_path: Path) -> None:
    survival = await short_storm(tmp_path, "sqlite", 58)
    assert survival.violations == [], survival
    assert survival.unfinished == []
    assert len(survival.facts.plans) == survival.submissions, "a submission was never acknowledged"
    assert len(survival.facts.truth.runs) > len(survival.facts.plans) / 2, "the ranks' own account is missing"
    assert len(survival.facts.faults) > survival.disruptions / 2, "most disruptions found nothing to disrupt"

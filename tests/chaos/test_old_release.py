"""Half of the control plane is of the last release, as while an upgrade rolls: jobs do not notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.plan import PROCESSES, WORK, make_plan
from tests.chaos.releases import previous_release
from tests.chaos.storm import storm
from workers.local.cluster import LocalCluster
from workers.local.supervision import ChildProcess

SECONDS = 30.0


@pytest.mark.chaos
@pytest.mark.timeout(900)
async def test_half_of_the_control_plane_is_of_the_last_release(tmp_path: Path) -> None:
    old_release = previous_release(tmp_path)
    old: list[ChildProcess] = []

    def keep_half_old(cluster: LocalCluster) -> None:
        old.extend([cluster.controls[1], cluster.schedulers[1]])
        for child in old:
            child.env |= old_release

    disruptions = {verb: weight for verb, weight in (PROCESSES | WORK).items() if "long" not in verb}
    plan = make_plan(1, SECONDS, jobs_per_s=2, disruptions_per_s=0.5, disruptions=disruptions)
    outcome = await storm(tmp_path / "run", plan, prepare=keep_half_old, control_workers=2)
    assert list(map(str, outcome.violations)) == []
    killed = [fault.target for fault in outcome.facts.faults if fault.kind == "kill_process"]
    for child in old:
        assert child.restarts <= killed.count(child.name), f"{child.name} died by itself:\n{child.last_lines()}"

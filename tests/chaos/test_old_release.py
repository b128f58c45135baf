"""Half of the control plane is of the last release, as while an upgrade rolls: jobs do not notice.

The last release is the newest tag, or what ``GPU_PLATFORM_CHAOS_RELEASE`` names (any commit).
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.chaos.plan import PROCESSES, WORK, make_plan
from tests.chaos.storm import storm
from workers.cluster import LocalCluster

ROOT = Path(__file__).parents[2]
SECONDS = 30.0


@pytest.fixture
def old_release(tmp_path: Path) -> Path:
    """A directory with its code."""
    name = os.environ.get("GPU_PLATFORM_CHAOS_RELEASE") or _git("describe", "--tags", "--abbrev=0")
    if not name:
        pytest.skip("this is no git checkout, or it has no tag: GPU_PLATFORM_CHAOS_RELEASE names a commit")
    directory = tmp_path / "old-release"
    directory.mkdir()
    archive = subprocess.run(["git", "-C", ROOT, "archive", name], capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", directory], input=archive, check=True)
    return directory


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip()


@pytest.mark.chaos
@pytest.mark.timeout(900)
async def test_half_of_the_control_plane_is_of_the_last_release(tmp_path: Path, old_release: Path) -> None:
    def keep_half_old(cluster: LocalCluster) -> None:
        for child in (cluster.controls[1], cluster.schedulers[1]):
            child.env |= {"PYTHONPATH": str(old_release), "PYTHONSAFEPATH": "1"}

    disruptions = {verb: weight for verb, weight in (PROCESSES | WORK).items() if "long" not in verb}
    plan = make_plan(1, SECONDS, jobs_per_s=2, disruptions_per_s=0.5, disruptions=disruptions)
    outcome = await storm(tmp_path / "run", plan, prepare=keep_half_old, control_workers=2)
    assert list(map(str, outcome.violations)) == []

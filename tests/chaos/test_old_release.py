"""Half of the control plane is of the last release, as while an upgrade rolls: jobs do not notice.

The last release is the newest tag before this commit, or what ``GPU_PLATFORM_CHAOS_RELEASE`` names (any commit). It
must be one that starts on a newer schema (see ``gpu_platform/store/migrate.py``).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_platform.store import Store
from tests.chaos.plan import PROCESSES, WORK, make_plan
from tests.chaos.storm import storm
from workers.local.cluster import LocalCluster
from workers.local.supervision import ChildProcess

ROOT = Path(__file__).parents[2]
SECONDS = 30.0


MIGRATE = (
    "import inspect, sys, gpu_platform; from gpu_platform.store import Store; store = Store(sys.argv[1]); "
    # Releases before this setting accept a newer schema always.
    "accepts = 'accept_newer' in inspect.signature(store.migrate).parameters; "
    "store.migrate(**({'accept_newer': True} if accepts else {})); print(gpu_platform.__file__)"
)


@pytest.fixture
def old_release(tmp_path: Path) -> dict[str, str]:
    """The environment in which a process is of that release."""
    name = os.environ.get("GPU_PLATFORM_CHAOS_RELEASE") or _git("describe", "--tags", "--abbrev=0", "HEAD^")
    if not name:
        pytest.skip("there is no older release here (no git checkout, or no tag): GPU_PLATFORM_CHAOS_RELEASE=COMMIT")
    directory = tmp_path / "old-release"
    directory.mkdir()
    archive = subprocess.run(["git", "-C", ROOT, "archive", name], capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", directory], input=archive, check=True)
    environment = {"PYTHONPATH": str(directory), "PYTHONSAFEPATH": "1", "GPU_PLATFORM_NEWER_SCHEMA": "accept"}
    _check(name, directory, environment, f"sqlite:///{tmp_path / 'newer.db'}")
    return environment


def _check(name: str, directory: Path, environment: dict[str, str], url: str) -> None:
    """Its code is what runs, and it starts on the schema of this release."""
    store = Store(url)
    store.migrate()
    store.close()
    done = subprocess.run(
        [sys.executable, "-c", MIGRATE, url], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"release {name} does not start on this schema: {done.stderr.strip().splitlines()[-1]}")
    assert done.stdout.strip().splitlines()[-1].startswith(str(directory)), done.stdout


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip()


@pytest.mark.chaos
@pytest.mark.timeout(900)
async def test_half_of_the_control_plane_is_of_the_last_release(tmp_path: Path, old_release: dict[str, str]) -> None:
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

"""The release before this one, as a directory from which processes can be started.

It is the newest tag before this commit; before the first release (0.1.0) is tagged, this commit itself.
``GPU_PLATFORM_CHAOS_RELEASE`` names another commit. It must be one that starts on the schema of this release (see
``gpu_platform/store/migrate.py``).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_platform.store import Store
from tests.chaos.storm import HOSTS
from workers.local.cluster import LocalCluster

ROOT = Path(__file__).parents[2]
_MIGRATE = (
    "import sys, gpu_platform; from gpu_platform.store import Store; "
    "Store(sys.argv[1]).migrate(accept_newer=True); print(gpu_platform.__file__)"
)
_PREPARE = (
    "import sys; from pathlib import Path; from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec; "
    "nodes = tuple(NodeSpec(name, 'dgx-h100') for name in sys.argv[2:]); "
    "LocalCluster(ClusterConfig(state_dir=Path(sys.argv[1]), nodes=nodes)).prepare()"
)


def previous_release(directory: Path) -> dict[str, str]:
    """Unpack it below ``directory``. Returns the environment in which a process is of that release.

    Skips the test if it is not here, or does not start on this schema.
    """
    name, unpacked = unpack_release(directory)
    environment = {"PYTHONPATH": str(unpacked), "PYTHONSAFEPATH": "1", "GPU_PLATFORM_NEWER_SCHEMA": "accept"}
    _check(name, unpacked, environment, f"sqlite:///{directory / 'newer.db'}")
    return environment


def unpack_release(directory: Path, *paths: str) -> tuple[str, Path]:
    """Unpack it, or only these paths of it, below ``directory``. Returns its name and where it is.

    Skips the test if it is not here.
    """
    name = os.environ.get("GPU_PLATFORM_CHAOS_RELEASE") or _git("describe", "--tags", "--abbrev=0", "HEAD^") or "HEAD"
    if not _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"):
        pytest.skip(
            f"commit {name} is not here (a shallow clone, or no git checkout): GPU_PLATFORM_CHAOS_RELEASE=COMMIT"
        )
    unpacked = directory / "old-release"
    unpacked.mkdir()
    archive = subprocess.run(["git", "-C", ROOT, "archive", name, *paths], capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", unpacked], input=archive, check=True)
    return name, unpacked


def prepare_as(cluster: LocalCluster, environment: dict[str, str]) -> None:
    """Make the state directory of the cluster as that release does: with its schema."""
    argv = [sys.executable, "-c", _PREPARE, str(cluster.config.state_dir), *(host.name for host in HOSTS)]
    subprocess.run(argv, env=os.environ | environment, check=True)


def _check(name: str, directory: Path, environment: dict[str, str], url: str) -> None:
    """Its code is what runs, and it starts on the schema of this release."""
    store = Store(url)
    store.migrate()
    store.close()
    done = subprocess.run(
        [sys.executable, "-c", _MIGRATE, url], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"release {name} does not start on this schema: {done.stderr.strip().splitlines()[-1]}")
    assert done.stdout.strip().splitlines()[-1].startswith(str(directory)), done.stdout


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip()

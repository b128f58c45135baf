"""After a power cut everything that was acknowledged is there. The disk is simulated: see ``tests/power_cut``."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.domain.errors import NotFound
from gpu_platform.store import Store
from gpu_platform.store.access import tokens
from gpu_platform.store.jobs import jobs
from tests.power_cut import PowerCut, why_not
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"no power cuts here: {why_not()}")


AT_LEAST = 10
"""Acknowledged submissions before a cut; far fewer than SQLite's own checkpoints, which sync, are apart."""


@pytest.fixture
def power(tmp_path: Path) -> PowerCut:
    (tmp_path / "state").mkdir()
    return PowerCut(tmp_path / "state", tmp_path / "disk")


@pytest.fixture
def database(power: PowerCut, sqlite_template: Path) -> PowerCut:
    shutil.copy(sqlite_template, power.root / "platform.db")
    power.keep_everything()
    return power


def test_what_was_synced_stays_and_the_rest_goes(power: PowerCut) -> None:
    program = """
import os
def write(name, data, sync):
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.write(fd, data)
    if sync:
        os.fsync(fd)
write("synced", b"stays", True)
write("synced", b" goes", False)
write("never-synced", b"goes", False)
write("old-name", b"stays", True)
os.rename("old-name", "new-name")
write("replacement", b"stays too", True)
os.rename("replacement", "replaced")
os.fsync(os.open(".", os.O_RDONLY))
write("late", b"stays", True)
os.rename("late", "later")
"""
    subprocess.run(power.argv([sys.executable, "-c", program]), cwd=power.root, check=True)
    power.freeze()
    power.cut()
    found = {path.name: path.read_text() for path in power.root.iterdir()}
    assert found == {
        "synced": "stays",
        "never-synced": "",  # its name was listed when the directory was synced
        "new-name": "stays",
        "replaced": "stays too",
        "late": "stays",  # nobody synced the directory after this rename
    }


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_acknowledged_submissions_survive(database: PowerCut, seed: int) -> None:
    chance = random.Random(seed)
    acknowledged: set[str] = set()
    for _ in range(2):  # the second cut hits what the first one left
        acknowledged |= submit_until_the_cut(database, "synced", chance)
        assert lost(database, acknowledged) == set()


def test_without_the_sync_they_are_lost(database: PowerCut) -> None:
    """Otherwise the test above would prove nothing."""
    acknowledged = submit_until_the_cut(database, "unsynced", chance=None)
    assert len(lost(database, acknowledged)) >= AT_LEAST


@pytest.mark.long
def test_keys_and_tokens_of_a_new_cluster_survive(power: PowerCut) -> None:
    cluster = LocalCluster(ClusterConfig(power.root, nodes=(NodeSpec("a"),), tls=True, gateway=True))
    power.prepare(cluster)
    before = secret_files(power.root)
    assert {path.name for path in before} > {"token", "ring.json", "orders.key", "orders.pub", "node-a.json", "ca.pem"}
    power.freeze()
    power.cut()
    assert secret_files(power.root) == before
    store = Store(cluster.database_url)
    found = tokens.find_token(store, cluster.headers["Authorization"].removeprefix("Bearer "))
    store.close()
    assert found is not None
    assert found.principal().has(Role.ADMIN, CLUSTER)


def secret_files(state: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in state.rglob("*") if path.is_file() and ".db" not in path.name}


def submit_until_the_cut(power: PowerCut, mode: str, chance: random.Random | None) -> set[str]:
    """The ids that were acknowledged before the power went."""
    url = f"sqlite:///{power.root / 'platform.db'}"
    argv = power.argv([sys.executable, "-m", "tests.power_cut.submitter", url, mode])
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as submitter:
        assert submitter.stdout is not None
        first = {submitter.stdout.readline().strip() for _ in range(AT_LEAST)}
        if chance is not None:
            time.sleep(chance.uniform(0, 0.4))
        power.freeze()
        os.set_blocking(submitter.stdout.fileno(), False)
        submitter.kill()
        submitter.wait()
        said = submitter.stdout.read() or ""
    power.cut(chance)
    return first | {line for line in said.split("\n")[:-1] if line}


def lost(power: PowerCut, acknowledged: set[str]) -> set[str]:
    """Of those, the ones that the database does not know."""
    assert acknowledged
    path = power.root / "platform.db"
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
    store = Store(f"sqlite:///{path}")
    gone = {job_id for job_id in acknowledged if not _knows(store, job_id)}
    store.close()
    power.keep_everything()  # this process wrote as well: it moved the write-ahead log into the database
    return gone


def _knows(store: Store, job_id: str) -> bool:
    try:
        return jobs.get_job(store, job_id).id == job_id
    except NotFound:
        return False

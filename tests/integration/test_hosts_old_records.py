"""An upgrade while ranks run: what an earlier release wrote is understood, and what a later one wrote is said."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.hosts.system import records
from gpu_platform.hosts.system.process_tree import boot_id, read_stat
from tests.support.hosts_rig import HostRig, is_running

ENDED, ALIVE = AttemptKey(job_id="j-ended", attempt=1), AttemptKey(job_id="j-alive", attempt=2)


def write_old(directory: Path, key: AttemptKey, pid: int, exit_code: int | None) -> None:
    """As the first release wrote it (0.1): no format, no shares or limits in the plan, a log that the rank wrote."""
    attempt = directory / "jobs" / key.job_id / str(key.attempt)
    rank = attempt / "rank-0"
    rank.mkdir(parents=True)
    stat = read_stat(pid)
    started = 0 if stat is None else stat.process.started
    plan = {
        "key": {"job_id": key.job_id, "attempt": key.attempt}, "host": "box", "node_rank": 0, "world_size": 1,
        "user": "ada", "namespace": "default", "command": ["sleep", "1000"], "env": {}, "workdir": None,
        "ranks": [{"rank": 0, "local_rank": 0, "gpu_uuids": []}], "gpu_uuids": [], "resume_from_attempt": None,
    }  # fmt: skip
    prepared = {"host": "box", "address": "127.0.0.1", "rendezvous_port": 20001, "resume_from": None}
    (attempt / "plan.json").write_text(json.dumps(plan))
    (attempt / "prepared.json").write_text(json.dumps(prepared))
    claim = {"pid": 1, "started": 0, "boot_id": boot_id()}
    (rank / "claim").write_text(json.dumps(claim).ljust(200))
    record = {"pid": pid, "started": started, "boot_id": boot_id(), "started_at_ms": 1_767_225_600_000}
    (rank / "started.json").write_text(json.dumps(record))
    (rank / "output.log").write_bytes(b"from an earlier release\n")
    if exit_code is not None:
        end = {"exit_code": exit_code, "ended_at_ms": 1_767_225_700_000, "failure": None, "alone": True}
        (rank / "exit.json").write_text(json.dumps(end))


@pytest.fixture
def rank() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
async def host(tmp_path: Path, rank: subprocess.Popen[bytes]) -> AsyncIterator[HostRig]:
    home = tmp_path / "state" / "nodes" / "box"
    write_old(home, ENDED, 999_999_999, exit_code=3)
    write_old(home, ALIVE, rank.pid, exit_code=None)
    rig = HostRig(tmp_path / "state")
    yield rig
    await rig.aclose()


async def test_ranks_of_an_earlier_release_are_found_watched_read_and_stopped(
    host: HostRig, rank: subprocess.Popen[bytes]
) -> None:
    assert host.worker.attempts() == [ALIVE, ENDED]
    exits = await host.watch(host.plan("sleep", "1000", key=ENDED))
    assert [(one.exit_code, one.vanished) for one in exits.exits] == [(3, False)]
    assert host.worker.read_log(ENDED, 0).data == b"from an earlier release\n"
    assert is_running(rank.pid)
    stopping = await host.stop(ALIVE)
    assert stopping.killed_processes == 1
    assert not is_running(rank.pid)
    await host.stop(ENDED)
    assert host.worker.attempts() == []


def test_records_of_a_later_release_are_not_guessed_at(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    records.write_record(str(path), {"a": 1}, durable=False)
    assert records.read_record(str(path)) == {"a": 1}
    path.write_text(json.dumps({"format": records.FORMAT + 1, "a": 1}))
    with pytest.raises(RuntimeError, match="was written by a newer release"):
        records.read_record(str(path))

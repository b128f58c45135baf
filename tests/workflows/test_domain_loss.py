"""Many hosts are lost at once: one event, and every job that still fits runs again soon. ``-s`` prints the times."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from temporalio.client import Client

from gpu_platform.domain.events import Event
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import HostState, JobState
from gpu_platform.store import Store
from gpu_platform.store.events import read_events
from gpu_platform.store.hosts import hosts
from tests.support.harness import Platform
from tests.support.waiting import eventually

LIGHT = {"health_interval_s": 5.0, "accounting_interval_s": 10.0}
"""So that many hosts in one process leave its CPUs to what is measured."""


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    """Each host keeps some open; the usual limit of 1,024 is that of one process for one host."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("leaves", "per_leaf"),
    [pytest.param(5, 2), pytest.param(8, 16, marks=pytest.mark.scale)],
    ids=["10-hosts", "128-hosts"],
)
async def test_two_lost_leaves(
    temporal: Client, sqlite_store: Store, tmp_path: Path, leaves: int, per_leaf: int
) -> None:
    """All leaves but two work, in gangs of a quarter leaf (one host at least). Two that work are lost."""
    names = [f"l{leaf}-{number:02d}" for leaf in range(leaves) for number in range(per_leaf)]
    size = max(1, per_leaf // 4)

    def told(name: str) -> dict[str, Any]:
        return {**LIGHT, "leaf": name.partition("-")[0], "spine": "s1"}

    machines = dict.fromkeys(names, "dgx-h100")
    async with Platform.start(temporal, sqlite_store, tmp_path, machines, node_fields=told) as platform:
        specs = [_gang(size, priority) for priority in range((leaves - 2) * per_leaf // size)]
        ids = await asyncio.gather(*[platform.submit(spec) for spec in specs])
        began = {job_id: await platform.reaches(job_id, JobState.RUNNING, within_s=300) for job_id in ids}
        busy = {leaf: {job_id for job_id, job in began.items() if leaf in _leaves(job)} for leaf in _all_leaves(names)}
        dead = sorted(busy, key=lambda leaf: -len(busy[leaf]))[:2]
        struck = busy[dead[0]] | busy[dead[1]]
        lost_at = time.monotonic()
        await asyncio.gather(*[node.lose() for name, node in platform.nodes.items() if name.partition("-")[0] in dead])
        verdict_s = time.monotonic() - lost_at
        times = await asyncio.gather(*[_runs_again(platform, job_id, lost_at) for job_id in struck])

        def recognised() -> list[Event] | None:
            found = [event for event in read_events(platform.store, 0, 100_000) if event.kind == "domain.lost"]
            return found if len(found) >= len(dead) else None

        events = await eventually(recognised, "the leaves to be recognised")
        print(
            f"{len(dead) * per_leaf} of {len(names)} hosts lost, {len(struck)} gangs: declared and told after "
            f"{verdict_s:.2f} s; running again p50 {median(times):.1f} s, max {max(times):.1f} s"
        )
        assert sorted(event.data["name"] for event in events) == sorted(f"{leaf} of s1" for leaf in dead)
        assert {job_id for event in events for job_id in event.data["jobs"]} == struck
        assert max(times) < 30.0
        for job_id in set(ids) - struck:
            assert platform.job(job_id).attempt == 1, "a job that lost nothing goes on"
        states = {row.name: row.state for row in hosts.read_hosts(platform.store)}
        for job_id in struck:
            placement = platform.job(job_id).placement
            assert placement is not None
            assert all(states[name] is HostState.READY for name in placement.hosts)
        await asyncio.gather(*[platform.signal(job_id, "kill") for job_id in ids])
        await asyncio.gather(*[platform.ends(job_id, JobState.CANCELLED, within_s=120) for job_id in ids])


def _gang(size: int, priority: int) -> JobSpec:
    shape = {"gpus_per_host": 8, "hosts": size}
    command = ["sleep", "600"]
    return JobSpec.model_validate({"command": command, "gpus": shape, "priority": priority, "grace_s": 1})


def _leaves(job: Job) -> set[str]:
    assert job.placement is not None
    return {name.partition("-")[0] for name in job.placement.hosts}


def _all_leaves(names: list[str]) -> list[str]:
    return sorted({name.partition("-")[0] for name in names})


async def _runs_again(platform: Platform, job_id: str, since: float) -> float:
    def again() -> bool:
        job = platform.job(job_id)
        return job.state is JobState.RUNNING and job.attempt == 2

    await eventually(again, f"{job_id} to run again", within_s=120)
    return time.monotonic() - since

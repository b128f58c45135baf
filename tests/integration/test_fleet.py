"""A fleet: many simulated hosts in one process, with the real protocol, real steps and real control-plane processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import text

from gpu_platform.client import AsyncClient
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import GpuState, HostState, JobState
from gpu_platform.node.fleet.register import fleet_hosts, select_hosts
from gpu_platform.node.nvml.fault_injection import inject_fault, switch_power
from gpu_platform.node.system.paths import control_dir, node_dir
from gpu_platform.store import Store
from gpu_platform.store.leadership import membership
from tests.support.waiting import eventually
from workers.fleet.spec import FleetSpec
from workers.local.cluster import ClusterConfig, LocalCluster

pytestmark = pytest.mark.timeout(240)

LONG = ("simulated:sleep", "3600")


@asynccontextmanager
async def fleet(state_dir: Path, hosts: int) -> AsyncIterator[tuple[LocalCluster, AsyncClient]]:
    config = ClusterConfig(
        state_dir=state_dir,
        nodes=(),
        fleets=(FleetSpec.parse(f"rack*=dgx-h100:{hosts}"),),
        ui=False,
        schedulers=1,
    )
    async with LocalCluster(config) as cluster, AsyncClient(cluster.api_url, retry_for_s=30) as client:
        yield cluster, client


def job(*command: str, gpus: int = 8, **more: object) -> JobSpec:
    return JobSpec(command=list(command), gpus=ResourceRequest(gpus_per_host=gpus), grace_s=1, **more)  # type: ignore[arg-type]


def host_of(found: Job) -> str:
    assert found.placement is not None
    return found.placement.hosts[0]


async def running(client: AsyncClient, ids: Sequence[str], attempt: int = 1, within_s: float = 90) -> list[Job]:
    async def all_run() -> bool:
        found = [await client.get(one) for one in ids]
        return all(one.state is JobState.RUNNING and one.attempt >= attempt for one in found)

    await eventually(all_run, f"attempt {attempt} of all jobs to run", within_s)
    return [await client.get(one) for one in ids]


def switch(state_dir: Path, names: Sequence[str], *, on: bool) -> None:
    for name in names:
        switch_power(control_dir(node_dir(state_dir, name)), on=on)


async def all_know_all_members(cluster: LocalCluster) -> None:
    """A host that knew only the first racks when it fell silent is not declared LOST with them: it may count votes by
    that list."""
    store = Store(cluster.database_url)
    try:
        with store.write() as session:
            newest = membership.current_version(session)

        def know() -> bool:
            with store.write() as session:
                return session.scalar(text("SELECT min(members_known) FROM host")) >= newest

        await eventually(know, "all hosts to know all members", within_s=60)
    finally:
        store.close()


@pytest.mark.scale
async def test_a_lost_rack_returns_after_its_jobs_went_elsewhere(tmp_path: Path) -> None:
    async with fleet(tmp_path, 90) as (cluster, client):
        leaves = fleet_hosts(tmp_path)
        assert len(leaves) == 90
        before = await running(client, [(await client.submit(job(*LONG))).id for _ in range(6)])
        await all_know_all_members(cluster)
        lost_leaf = leaves[host_of(before[0])]
        lost = select_hosts(tmp_path, [], [lost_leaf])
        switch(tmp_path, lost, on=False)
        struck = [one.id for one in before if host_of(one) in lost]
        after = await running(client, struck, attempt=2)
        assert not {host_of(one) for one in after} & set(lost)
        spared = await running(client, [one.id for one in before if one.id not in struck])
        assert all(one.attempt == 1 for one in spared)
        assert (await client.host(lost[0])).state is HostState.LOST
        switch(tmp_path, lost, on=True)

        async def are_back() -> bool:
            return all([host.state is HostState.READY async for host in client.hosts()])

        await eventually(are_back, "the rack to be back", within_s=60)


@pytest.mark.long
async def test_ranks_of_a_fleet_are_simulated_or_real_and_gpus_break(tmp_path: Path) -> None:
    async with fleet(tmp_path, 4) as (_, client):
        short, failing, wrong, real, gang = [
            await client.submit(spec)
            for spec in (
                job("simulated:sleep", "0.2-0.5"),
                job("simulated:exit", "3", "after", "0.5"),
                job("simulated:dance"),
                job("sh", "-c", "echo $RANK of $WORLD_SIZE", gpus=1),
                JobSpec(command=["simulated:sleep", "1"], gpus=ResourceRequest(hosts=2, gpus_per_host=8), grace_s=1),
            )
        ]
        ended = {one.id: await client.wait(one.id, timeout_s=60) for one in (short, failing, wrong, real, gang)}
        assert ended[short.id].state is JobState.COMPLETED
        assert (ended[failing.id].state, ended[failing.id].exit_code) == (JobState.FAILED, 3)
        assert ended[wrong.id].state is JobState.FAILED
        why = ended[wrong.id].failure
        assert why is not None
        assert "simulated:sleep SECONDS" in why.message
        assert ended[gang.id].state is JobState.COMPLETED
        assert await client.logs(real.id) == "0 of 1\n"

        [found] = await running(client, [(await client.submit(job(*LONG, gpus=1))).id])
        assert found.placement is not None
        [part] = found.placement.slices
        inject_fault(control_dir(node_dir(tmp_path, part.host)), part.gpu_indices[0], xid=31)
        await running(client, [found.id], attempt=2)

        async def healed() -> bool:
            return {gpu.state async for gpu in client.gpus()} <= {GpuState.AVAILABLE, GpuState.IN_USE}

        await eventually(healed, "the GPU to be reset", within_s=60)
        await client.kill(found.id)
        assert (await client.wait(found.id, timeout_s=30)).state is JobState.CANCELLED


@pytest.mark.scale
@pytest.mark.timeout(1200)
async def test_a_thousand_hosts_register_and_run_jobs(tmp_path: Path) -> None:
    async with fleet(tmp_path, 1000) as (_, client):
        ids = [(await client.submit(job(*LONG))).id for _ in range(200)]
        before = await running(client, ids, within_s=300)
        leaves = fleet_hosts(tmp_path)
        lost = select_hosts(tmp_path, [], [leaves[host_of(before[0])]])
        switch(tmp_path, lost, on=False)
        struck = [one.id for one in before if host_of(one) in lost]
        after = await running(client, struck, attempt=2, within_s=300)
        assert not {host_of(one) for one in after} & set(lost)

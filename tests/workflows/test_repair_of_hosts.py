"""A GPU that cannot be healed alone: all GPUs of the host are reset, the host is rebooted, a service case is opened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from temporalio.client import Client

from gpu_platform.client.calls import USER_HEADER
from gpu_platform.domain.contracts import remediation_id
from gpu_platform.domain.hosts.gpu import Gpu
from gpu_platform.domain.hosts.remediation import RemediationStatus, RepairStep
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import GpuState, HostState, JobState
from gpu_platform.settings import RemediationSettings
from gpu_platform.store import Store, events
from gpu_platform.store.hosts import gpus, hosts
from service.context import ServiceContext
from service.operations import hosts_and_gpus
from service.temporal import JobWorkflows
from tests.support.api_server import application, in_process
from tests.support.harness import Platform, SimulatedNode
from tests.support.store_cluster import NOW
from tests.support.waiting import eventually

BY_ITSELF = RemediationSettings(approve=[])


@asynccontextmanager
async def started(
    temporal: Client, store: Store, tmp_path: Path, settings: RemediationSettings = BY_ITSELF
) -> AsyncIterator[Platform]:
    """One host, whose node worker reports as a real one does."""
    async with Platform.start(temporal, store, tmp_path, {"a": "dgx-h100"}, remediation=settings) as platform:

        async def report() -> None:
            while True:
                await platform.nodes["a"].report()
                await asyncio.sleep(0.1)

        reporting = asyncio.create_task(report())
        try:
            yield platform
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)


def gpu(platform: Platform, index: int) -> Gpu:
    return gpus.get_gpu(platform.store, f"a:{index}")


def host_state(platform: Platform) -> HostState:
    return hosts.get_host(platform.store, "a", NOW).state


def kinds(platform: Platform, index: int) -> list[str]:
    return [event.kind for event in events.read_gpu_events(platform.store, gpu(platform, index).info.uuid)]


async def is_(platform: Platform, index: int, state: GpuState, within_s: float = 30) -> None:
    await eventually(lambda: gpu(platform, index).state is state, f"GPU {index} to be {state}", within_s)


async def repaired(platform: Platform, index: int) -> None:
    await eventually(lambda: "host.repaired" in kinds(platform, index), "the host to be repaired", 30)
    await is_(platform, index, GpuState.AVAILABLE)
    await eventually(lambda: host_state(platform) is HostState.READY, "the host to be in service again")


def service(platform: Platform) -> ServiceContext:
    """What the REST API's handlers get, as far as remediation needs it."""

    async def connected() -> Client:
        return platform.client

    missing: Any = None
    return ServiceContext(platform.settings, platform.store, JobWorkflows(connected), missing, missing)


@asynccontextmanager
async def rest(platform: Platform) -> AsyncIterator[httpx.AsyncClient]:
    """The REST API, beside the platform's own processes."""
    address = platform.client.service_client.config.target_host
    async with in_process(application(platform.store, address, namespace=platform.client.namespace)) as http:
        yield http


async def waiting(platform: Platform, index: int) -> RemediationStatus:
    workflow = platform.workflow(remediation_id(gpu(platform, index).info.uuid))

    async def waits() -> RemediationStatus | None:
        status = await workflow.query("status", result_type=RemediationStatus)
        return status if status.waits_for_approval else None

    await is_(platform, index, GpuState.OFFLINE)
    return await eventually(waits, "remediation to wait for an operator")


async def test_gpus_that_nvlink_connects_are_reset_together_once_the_host_is_drained(
    temporal: Client, sqlite_store: Store, tmp_path: Path
) -> None:
    async with started(temporal, sqlite_store, tmp_path) as platform:
        go = tmp_path / "go"
        command = ["/bin/sh", "-c", f"until [ -e {go} ]; do sleep 0.05; done"]
        job_id = await platform.submit(JobSpec(command=command, gpus=ResourceRequest(gpus_per_host=1)))
        job = await platform.reaches(job_id, JobState.RUNNING)
        assert job.placement is not None
        [used] = job.placement.slices[0].gpu_indices
        broken = (used + 1) % 8
        platform.nodes["a"].strike(broken, resets_with_peers=True, xid=74)
        await eventually(lambda: host_state(platform) is HostState.DRAINING, "the host to be drained")
        assert platform.job(job_id).state is JobState.RUNNING
        assert gpu(platform, broken).state is GpuState.OFFLINE
        go.touch()
        job = await platform.ends(job_id, JobState.COMPLETED)
        assert job.attempt == 1
        await repaired(platform, broken)


async def test_a_gpu_that_fell_off_the_bus_comes_back_by_a_reboot_that_is_proved(
    temporal: Client, sqlite_store: Store, tmp_path: Path
) -> None:
    async with started(temporal, sqlite_store, tmp_path) as platform:
        before = platform.nodes["a"].made_report().boot_id
        platform.nodes["a"].strike(2, xid=79)
        await repaired(platform, 2)
        assert platform.nodes["a"].made_report().boot_id != before
        assert {"host.repair", "host.reboot", "host.repaired"} <= set(kinds(platform, 2))


async def test_a_reboot_waits_for_an_operators_word(temporal: Client, sqlite_store: Store, tmp_path: Path) -> None:
    async with started(temporal, sqlite_store, tmp_path, RemediationSettings()) as platform:
        before = platform.nodes["a"].made_report().boot_id
        platform.nodes["a"].strike(2, xid=79)
        status = await waiting(platform, 2)
        assert status.step is RepairStep.REBOOT
        assert "gpu-platform remediation approve a:2" in (gpu(platform, 2).reason or "")
        assert (platform.nodes["a"].made_report().boot_id, host_state(platform)) == (before, HostState.READY)
        async with rest(platform) as http:
            nothing = await http.post("/v1/gpus/a:3/remediation/approve")
            assert (nothing.status_code, "nothing is being done about GPU a:3" in nothing.text) == (404, True)
            assert (await http.get("/v1/gpus/a:2/remediation")).json()["waits_for_approval"]
            approved = await http.post("/v1/gpus/a:2/remediation/approve", json={"reason": "it is night"})
            assert approved.status_code == 200, approved.text
            await repaired(platform, 2)
            again = await http.post("/v1/gpus/a:2/remediation/veto")
            assert again.status_code in (404, 409), "it ends, or has ended"
            assert "cannot become" not in again.text
        assert "host.reboot" in kinds(platform, 2)


async def test_a_veto_ends_in_a_service_case_and_the_host_stays_in_service(
    temporal: Client, sqlite_store: Store, tmp_path: Path
) -> None:
    async with started(temporal, sqlite_store, tmp_path, RemediationSettings()) as platform:
        platform.nodes["a"].strike(2, xid=79)
        await waiting(platform, 2)
        async with rest(platform) as http:
            headers = {USER_HEADER: "op"}
            answer = await http.post("/v1/gpus/a:2/remediation/veto", json={"reason": "asked"}, headers=headers)
            assert answer.status_code == 200, answer.text
        await eventually(lambda: "gpu.service_case" in kinds(platform, 2), "a service case")
        assert (gpu(platform, 2).state, host_state(platform)) == (GpuState.OFFLINE, HostState.READY)
        reason = gpu(platform, 2).reason or ""
        assert "vetoed by op asked" in reason
        assert "gpu-platform service-case a:2" in reason


async def test_what_a_reboot_does_not_heal_is_a_service_case(
    temporal: Client, sqlite_store: Store, tmp_path: Path
) -> None:
    async with started(temporal, sqlite_store, tmp_path) as platform:
        platform.nodes["a"].strike(2, xid=79, survives_reboots=5)
        await eventually(lambda: "gpu.service_case" in kinds(platform, 2), "a service case", 40)
        assert gpu(platform, 2).state is GpuState.OFFLINE
        assert "reboot of the host: GPU" in (gpu(platform, 2).reason or "")
        await eventually(lambda: host_state(platform) is HostState.READY, "the host to be in service again")


async def test_an_operator_who_puts_the_gpu_online_ends_it(
    temporal: Client, sqlite_store: Store, tmp_path: Path
) -> None:
    async with started(temporal, sqlite_store, tmp_path, RemediationSettings()) as platform:
        platform.nodes["a"].strike(2, xid=79)
        await waiting(platform, 2)
        platform.nodes["a"].strike(2, clear=True)
        assert (await hosts_and_gpus.put_gpu_online(service(platform), "a:2", "op", "")).host == "a"
        workflow = platform.workflow(remediation_id(gpu(platform, 2).info.uuid))
        assert await workflow.result() is None
        assert host_state(platform) is HostState.READY


async def stays_away(node: SimulatedNode, of_boot: str | None) -> None:
    """A host that does not come back from a reboot."""


async def removed(platform: Platform) -> None:
    """As an operator does it, once the host is LOST and its lease has ended."""
    await platform.nodes["a"].lose()
    await hosts_and_gpus.remove_host(service(platform), "a", "op")


@pytest.fixture
def leases_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts_and_gpus, "now", lambda: datetime.now(UTC) + timedelta(days=1))


async def test_a_host_that_is_removed_while_it_reboots_ends_its_repair(
    temporal: Client, sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimulatedNode, "reboot", stays_away)
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100"}, remediation=BY_ITSELF) as platform:
        platform.nodes["a"].strike(2, xid=79)
        await eventually(lambda: "host.reboot" in kinds(platform, 2), "the host to be told to reboot")
        workflow = platform.workflow(remediation_id(gpu(platform, 2).info.uuid))
        await platform.nodes["a"].lose()
        later = datetime.now(UTC) + timedelta(days=1)
        hosts.remove_host(sqlite_store, "a", reason=None, actor="op", now=later)  # and nobody tells the workflow
        assert await asyncio.wait_for(workflow.result(), 30) is None
        notes = await workflow.query("notes", result_type=list[str])
        assert "an operator removed host a: nothing more is done" in notes[-1]


@pytest.mark.usefixtures("leases_ended")
async def test_a_host_that_is_removed_while_an_operator_is_asked_ends_its_repair(
    temporal: Client, sqlite_store: Store, tmp_path: Path
) -> None:
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100"}) as platform:
        platform.nodes["a"].strike(2, xid=79)
        await waiting(platform, 2)
        workflow = platform.workflow(remediation_id(gpu(platform, 2).info.uuid))
        await removed(platform)
        assert await asyncio.wait_for(workflow.result(), 30) is None


@pytest.mark.long
@pytest.mark.usefixtures("leases_ended")
async def test_a_host_that_is_removed_while_a_reset_waits_for_it_ends_that(
    temporal: Client, sqlite_store: Store, tmp_path: Path
) -> None:
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100"}, silent={"a"}) as platform:
        platform.nodes["a"].strike(2, xid=119)
        await is_(platform, 2, GpuState.RESETTING)
        workflow = platform.workflow(remediation_id(gpu(platform, 2).info.uuid))

        async def reset_asked() -> bool:
            return bool((await workflow.describe()).raw_description.pending_activities)

        await eventually(reset_asked, "the reset to wait for its host")
        await removed(platform)
        assert await asyncio.wait_for(workflow.result(), 30) is None
        await platform.nodes["a"].report()  # it comes back as a new host
        async with platform.listening("a"):
            platform.nodes["a"].strike(2, xid=95)
            await eventually(lambda: gpu(platform, 2).reset_count == 1, "a later fault of the same GPU to be healed")
            await is_(platform, 2, GpuState.AVAILABLE)

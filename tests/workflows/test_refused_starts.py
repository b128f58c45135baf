"""A GPU that a check refuses before the start costs the job nothing: it runs on another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.node.system import ports
from gpu_platform.store import Store
from tests.support.harness import Platform


@pytest.fixture
async def platform(temporal: Client, sqlite_store: Store, tmp_path: Path) -> AsyncIterator[Platform]:
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100"}) as running:
        yield running


async def test_a_gpu_in_a_strangers_hands_costs_no_try(platform: Platform) -> None:
    """Not even of a job that may not be tried again."""
    spec = JobSpec(command=["true"], gpus=ResourceRequest(gpus_per_host=1), max_hardware_retries=0)
    probe = await platform.ends(await platform.submit(spec), JobState.COMPLETED)
    assert probe.placement is not None
    [first_choice] = probe.placement.gpu_uuids
    stranger = await asyncio.create_subprocess_exec("sleep", "600")
    try:
        platform.nodes["a"].nvml.add_process(first_choice, stranger.pid)
        job = await platform.ends(await platform.submit(spec), JobState.COMPLETED)
    finally:
        stranger.kill()
        await stranger.wait()
    assert (job.attempt, job.hardware_retries, job.user_retries) == (2, 0, 0)
    assert job.placement is not None
    assert first_choice not in job.placement.gpu_uuids
    await platform.nothing_leaked()


@pytest.mark.long
async def test_a_host_whose_ports_others_hold_costs_no_try(
    temporal: Client, sqlite_store: Store, tmp_path: Path
) -> None:
    """The job goes elsewhere. One job can hold all ports of its host."""
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100", "b": "dgx-h100"}) as platform:
        spec = JobSpec(command=["true"], gpus=ResourceRequest(gpus_per_host=1), max_hardware_retries=0)
        probe = await platform.ends(await platform.submit(spec), JobState.COMPLETED)
        assert probe.placement is not None
        [full] = probe.placement.hosts
        platform.nodes[full].worker.local.take_ports = no_ports  # type: ignore[method-assign]
        job = await platform.ends(await platform.submit(spec), JobState.COMPLETED)
        assert (job.attempt, job.hardware_retries, job.user_retries) == (2, 0, 0)
        assert job.placement is not None
        assert job.placement.hosts != [full]
        await platform.nothing_leaked()


def no_ports(key: AttemptKey) -> range:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ports, "PORTS", range(0))
        return ports.free_ports()

"""A reboot on real processes: the node worker of a simulated host restarts, in another boot, and finds its GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_platform.client import AsyncClient
from gpu_platform.domain.states import GpuState, HostState
from gpu_platform.node.health.boot import boot_id
from gpu_platform.node.nvml.fault_injection import inject_fault
from gpu_platform.node.system.paths import control_dir, node_dir
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec


@pytest.mark.long
@pytest.mark.timeout(180)
async def test_a_lost_gpu_comes_back_by_a_reboot(tmp_path: Path) -> None:
    config = ClusterConfig(
        state_dir=tmp_path / "state",
        nodes=(NodeSpec("a", "dgx-h100"),),
        ui=False,
        schedulers=1,
        settings={"GPU_PLATFORM_REMEDIATION__APPROVE": "[]", "GPU_PLATFORM_NODE__LEASE_INTERVAL_S": "0.5"},
    )
    async with LocalCluster(config) as cluster, AsyncClient(cluster.api_url, retry_for_s=60) as client:
        home = node_dir(config.state_dir, "a")
        before = boot_id(home, simulated=True)
        inject_fault(control_dir(home), 2, xid=79)

        async def repaired() -> bool:
            kinds = [event.kind for event in await client.gpu_events("a:2")]
            back = "host.repaired" in kinds and (await client.gpu("a:2")).state is GpuState.AVAILABLE
            return back and (await client.host("a")).state is HostState.READY

        await eventually(repaired, "the GPU to be back after a reboot", within_s=60)
        assert boot_id(home, simulated=True) != before

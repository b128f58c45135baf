"""What a host measures now, from its NVML to a person's terminal: a GPU's health, and what a running job uses."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpu_platform.client import AsyncClient
from gpu_platform.domain.hosts.share import ShareGrant, ShareMode
from gpu_platform.domain.jobs.placement import HostSlice, Placement, TopologyLevel
from gpu_platform.node.accounting.accounting import Accountant
from gpu_platform.node.accounting.counters import ProcessTable
from gpu_platform.node.health.health import HealthMonitor
from gpu_platform.node.system import paths
from gpu_platform.store import Store
from gpu_platform.store.reservations import attempts, reserving
from tests.support.api_server import application, served
from tests.support.command_line import run
from tests.support.hosts_rig import HostRig
from tests.support.store_cluster import NOW, Cluster, key
from workers.node.http import node_app
from workers.node.readings import reading_routes

NO_TEMPORAL = "127.0.0.1:1"


@dataclass
class Measured:
    url: str
    store: Store
    rig: HostRig
    monitor: HealthMonitor
    accountant: Accountant
    worker_url: str

    def report(self, url: str | None = None) -> None:
        self.monitor.poll_once()
        Cluster(self.store).report(
            "box",
            inventory=self.rig.inventory,
            url=url or self.worker_url,
            telemetry=self.monitor.telemetry(),
        )

    def running(self, job_id: str, grant: ShareGrant | None = None, gpu: int = 0) -> None:
        uuid = self.rig.inventory.gpus[gpu].uuid
        shares = [] if grant is None else [grant]
        part = HostSlice(host="box", gpu_uuids=[uuid], gpu_indices=[gpu], shares=shares)
        placed = Placement(slices=[part], level=TopologyLevel.NVLINK_NUMA, bandwidth_gb_s=1, score=1, why="for a test")
        Cluster(self.store).queued(job_id)
        reserving.reserve_gang(self.store, key(job_id), placed, now=NOW)
        attempts.mark_running(self.store, key(job_id), NOW)


@pytest.fixture
async def host(sqlite_store: Store, tmp_path: Path) -> AsyncIterator[Measured]:
    accountant = Accountant(paths.node_dir((tmp_path / "state").resolve(), "box"))
    rig = HostRig(tmp_path / "state", stages=[accountant])
    monitor = rig.monitor(lambda fault: None)
    monitor.observe_with(accountant)
    async with (
        served(node_app(rig.worker, "secret", None, reading_routes(monitor, accountant))) as worker,
        served(application(sqlite_store, NO_TEMPORAL)) as url,
    ):
        found = Measured(
            url, sqlite_store, rig, monitor, accountant, worker.replace("http://", "http://service:secret@")
        )
        found.report()
        yield found
        await rig.aclose()


async def test_a_running_job_shows_what_its_gpus_do(host: Measured) -> None:
    host.running("j-1")
    host.rig.launch(host.rig.plan("sleep", "600", key=key("j-1")))
    host.rig.strike(0, utilization_percent=37)
    for _ in range(2):
        host.report()
    for attempt in host.accountant.live():
        attempt.sample(ProcessTable())
    async with AsyncClient(host.url) as client:
        running = (await client.job_usage("j-1")).running
        assert running is not None
        [gpu] = running.gpus
        assert (gpu.host, gpu.index, gpu.utilization_percent, gpu.share) == ("box", 0, 37, None)
        assert gpu.memory_used_mib
        [rank] = running.ranks
        assert (rank.rank, rank.peak_utilization_percent) == (0, 37)
    for command in (("jobs", "describe", "j-1"), ("usage", "j-1")):
        assert re.search(r"box:0 +all of it +37 % ", (await run(*command, url=host.url)).out), command
    host.report(url="http://127.0.0.1:1")
    out = (await run("jobs", "describe", "j-1", url=host.url)).out
    assert "37 %" in out
    assert "not measured: box (no answer)" in out


async def test_one_gpus_health_is_told_in_detail(host: Measured) -> None:
    host.rig.strike(0, corrected_ecc=3, nvlinks_down=2, clock_reasons=0x40, remap_pending=True)
    host.report()
    info = host.rig.inventory.gpus[0]
    out = (await run("health", "--gpu-id", "box:0", url=host.url)).out
    assert info.pci_bus_id is not None
    wanted = (
        info.uuid,
        info.pci_bus_id,
        "NUMA node 0",
        "3 corrected, 0 uncorrected",
        "16 up",
        "hw_thermal",
    )
    for told in (*wanted, "0, pending", "x16 of x16", "of 700 W"):
        assert told in out, told
    async with AsyncClient(host.url) as client:
        measured = await client.gpu_health(info.uuid)
        assert (measured.corrected_ecc, measured.nvlinks_up, measured.throttled_by) == (3, 16, ["hw_thermal"])
    host.report(url="http://127.0.0.1:1")
    ran = await run("health", "--gpu-id", "box:0", url=host.url)
    assert ran.code == 0
    assert "host box does not answer" in ran.out


async def test_shared_gpus_show_all_holders_and_how_full_they_are(host: Measured) -> None:
    for job_id, start in (("j-1", 0), ("j-2", 4)):
        grant = ShareGrant(
            mode=ShareMode.MIG, percent=42, memory_mib=40448, mig_profile="3g.40gb", mig_start=start, mig_size=4
        )
        host.running(job_id, grant)
    host.running("j-3", ShareGrant(mode=ShareMode.MPS, percent=30, memory_mib=20480), gpu=1)
    out = (await run("status", "--all", "--wide", url=host.url)).out
    for told in (
        "j-1 (MIG 3g.40gb)",
        "j-2 (MIG 3g.40gb)",
        "84 %, 79/80 GiB",
        "j-3 (MPS 30 %, 20 GiB)",
        "30 %, 20/80 GiB",
    ):
        assert told in out, told
    assert host.rig.inventory.gpus[7].uuid in out
    assert "j-2 (MIG 3g.40gb)" in (await run("health", "--gpu-id", "box:0", url=host.url)).out

"""A real node worker on a library that plays NVML: the driver goes and comes back, and ranks do not notice."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpu_platform.domain.hosts.gpu import HostInventory
from gpu_platform.identity.node_tokens import NodeTokens
from gpu_platform.node.inventory.inventory import read_inventory
from gpu_platform.node.nvml.opening import SilentNvml
from gpu_platform.settings import NodeSettings
from gpu_platform.store import Store
from tests.fake_nvml import FakeNvml, has_compiler
from tests.support.api_server import application, bearer, served, temporal_dev_server
from tests.support.hosts_rig import HostRig
from tests.support.waiting import eventually
from workers.node import nvml_watch
from workers.node.nvml_watch import NvmlWatch, RestartRequired, unusable

pytestmark = pytest.mark.skipif(not has_compiler(), reason="needs a C compiler for the stand-in library")


@pytest.fixture(scope="module")
def temporal() -> Iterator[str]:
    with temporal_dev_server() as address:
        yield address


@dataclass
class Node:
    fake: FakeNvml
    process: asyncio.subprocess.Process
    http: httpx.AsyncClient

    async def gpu_states(self) -> set[str]:
        return {gpu["state"] for gpu in (await self.http.get("/v1/gpus")).json()["items"]}


@pytest.fixture
async def node(tmp_path: Path, temporal: str, sqlite_store: Store) -> AsyncIterator[Node]:
    fake = FakeNvml(tmp_path / "lib", "dgx-1v")
    fake.set(away=1)
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text("#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n")
    smi.chmod(0o755)
    NodeTokens.open(tmp_path / "state" / "identity")
    async with (
        served(application(sqlite_store, temporal, state_dir=tmp_path / "state")) as url,
        httpx.AsyncClient(base_url=url, headers=bearer()) as http,
    ):
        environ = {
            **fake.environ,
            "PATH": f"{smi.parent}:{os.environ['PATH']}",
            "GPU_PLATFORM_STATE_DIR": str(tmp_path / "state"),
            "GPU_PLATFORM_API_URL": url,
            "GPU_PLATFORM_TEMPORAL__ADDRESS": temporal,
            "GPU_PLATFORM_NODE__NAME": "box",
            "GPU_PLATFORM_NODE__ISOLATION": "plain",
            "GPU_PLATFORM_NODE__LEASE_INTERVAL_S": "0.1",
        }
        # The real program, only more impatient.
        program = "from workers.node import main as node, nvml_watch; from workers.process import run_process; "
        program += "nvml_watch.CHECK_S = 0.05; run_process(node.main_with_restarts())"
        with (tmp_path / "node.log").open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", program, env=environ, stdout=output, stderr=output
            )
        yield Node(fake, process, http)
        process.terminate()
        await asyncio.wait_for(process.wait(), 20)


@pytest.mark.long
async def test_a_host_whose_nvml_goes_and_comes_back_stays_registered(node: Node) -> None:
    async def host() -> dict[str, Any] | None:
        found = await node.http.get("/v1/hosts/box")
        return found.json() if found.status_code == 200 else None

    first = await eventually(host, "it registers without NVML", 30)
    assert first["state"] == "READY"
    assert first["gpus_total"] == 0, "no other source told of a GPU either"
    node.fake.set(away=0)

    async def all_available() -> bool:
        return await node.gpu_states() == {"AVAILABLE"}

    await eventually(all_available, "its GPUs come", 30)
    node.fake.set(away=1)

    async def none_available() -> bool:
        return "AVAILABLE" not in await node.gpu_states()

    await eventually(none_available, "they get no work", 30)
    node.fake.set(away=0)
    await eventually(all_available, "and come back", 30)
    assert node.process.returncode is None, "it is still the same process"


async def test_ranks_are_watched_and_stopped_without_nvml(tmp_path: Path) -> None:
    rig = HostRig(tmp_path / "state")
    plan = rig.plan("sleep", "1000")
    rig.launch(plan)
    rig.nvml = SilentNvml("NVML does not answer")
    rig.restart()
    assert rig.worker.attempts() == [plan.key]
    await rig.stop(plan.key)
    assert not rig.processes(plan.key)
    await rig.aclose()


def watch(tmp_path: Path, fake: FakeNvml) -> tuple[NvmlWatch, HostInventory]:
    nvml, node = fake.load(), NodeSettings(name="box")
    inventory = read_inventory(nvml, node)
    return NvmlWatch(nvml, node, tmp_path, inventory), inventory


async def test_a_hiccup_is_no_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml_watch, "CHECK_S", 0.01)
    fake = FakeNvml(tmp_path / "lib", "dgx-1v")
    monkeypatch.setenv("FAKE_NVML_STATE", str(fake.state_file))
    found, _ = watch(tmp_path, fake)
    looks = 0
    look = found.look

    def hiccup() -> str | None:
        nonlocal looks
        looks += 1
        fake.set(away=int(looks % 3 > 0))
        return look()

    monkeypatch.setattr(found, "look", hiccup)
    task = asyncio.create_task(found.run())
    await eventually(lambda: looks > 12 or task.done(), "many looks")
    assert not task.done()
    task.cancel()


async def test_what_the_node_worker_was_built_on_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml_watch, "CHECK_S", 0.01)
    fake = FakeNvml(tmp_path / "lib", "dgx-1v")
    monkeypatch.setenv("FAKE_NVML_STATE", str(fake.state_file))
    found, inventory = watch(tmp_path, fake)
    assert found.look() is None
    fake.strike(3, lost=True)
    assert found.look() is None, "a lost GPU is the health monitor's"
    fake.strike(3, lost=False)
    fake.set(driver="590.10")
    with pytest.raises(RestartRequired, match=r"the driver is 590\.10 now, and was 580\.65\.06"):
        await asyncio.wait_for(found.run(), 10)
    assert unusable(SilentNvml("gone"), inventory) == {gpu.uuid: "gone" for gpu in inventory.gpus}
    assert unusable(object(), inventory) == {}

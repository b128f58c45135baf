"""Ranks without a jail run on the CPUs next to their GPUs: a real rank says where it may run."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.attempt import HostPlan, RankLimits, RankSpec
from gpu_platform.node.isolation.cgroups.cpus import CpuBinding
from gpu_platform.node.system.sysfs import Sysfs
from gpu_platform.topology.description import load_description
from tests.fake_nvml import FakeNvml, has_compiler
from tests.support.hosts_rig import HostRig

pytestmark = pytest.mark.skipif(not has_compiler(), reason="there is no C compiler (apt-get install gcc)")

_SAY = "import os; print(sorted(os.sched_getaffinity(0)), flush=True)"
_ALL = sorted(os.sched_getaffinity(0))


@pytest.fixture
async def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HostRig]:
    """A host that is not simulated. Its first NUMA node has this machine's first CPU, its second the last."""
    fake = FakeNvml(tmp_path / "lib")
    monkeypatch.setenv("FAKE_NVML_STATE", str(fake.state_file))
    nodes = {gpu.pci_bus_id: gpu.numa_node for gpu in load_description("dgx-h100").inventory("box").gpus}
    monkeypatch.setattr(Sysfs, "numa_node", lambda _, bus_id: nodes.get(bus_id))
    monkeypatch.setattr(Sysfs, "numa_node_ids", lambda _: [0, 1])
    monkeypatch.setattr(Sysfs, "cpus", lambda _, node: str(_ALL[-node]))
    rig = HostRig(tmp_path / "state", nvml=fake.load(), isolation="plain")
    yield rig
    await rig.aclose()


def plan(host: HostRig, ranks: list[list[int]], cpus: int = 0) -> HostPlan:
    """``ranks``: the GPUs of each, by index."""
    gpus = {gpu.index: gpu.uuid for gpu in host.inventory.gpus}
    specs = [
        RankSpec(rank=rank, local_rank=rank, gpu_uuids=[gpus[index] for index in indices])
        for rank, indices in enumerate(ranks)
    ]
    changes = {"ranks": specs, "gpu_uuids": [uuid for spec in specs for uuid in spec.gpu_uuids]}
    own = host.plan(sys.executable, "-c", _SAY, key=AttemptKey(job_id="j-near", attempt=1))
    return own.model_copy(update=changes | {"limits": RankLimits(cpus=cpus)})


async def affinities(host: HostRig, plan: HostPlan) -> list[str]:
    host.launch(plan)
    await host.watch(plan)
    return [host.log(plan, spec.rank).strip() for spec in plan.ranks]


@pytest.mark.skipif(len(_ALL) < 2, reason="one CPU is next to everything")
async def test_a_plain_rank_runs_next_to_its_gpus(host: HostRig) -> None:
    wanted = plan(host, [[0, 1], [6, 7], [3, 4]])
    near_both = f"[{_ALL[0]}, {_ALL[-1]}]"
    assert await affinities(host, wanted) == [f"[{_ALL[0]}]", f"[{_ALL[-1]}]", near_both]


@pytest.mark.skipif(len(_ALL) < 2, reason="one CPU is all of them")
async def test_a_plain_rank_runs_on_the_cpus_that_its_job_asked_for(host: HostRig) -> None:
    host.restart([CpuBinding(host.inventory, host.home)])
    assert await affinities(host, plan(host, [[7]], cpus=1)) == [f"[{_ALL[-1]}]"]


async def test_ranks_of_simulated_hosts_run_anywhere(tmp_path: Path) -> None:
    rig = HostRig(tmp_path / "state", isolation="plain")
    assert await affinities(rig, plan(rig, [[0]])) == [str(_ALL)]
    await rig.aclose()

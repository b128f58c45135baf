"""RDMA inside a jail: the network cards near the granted GPUs open, all others do not.

The kernel's real filter decides. The cards' nodes are played by character devices of this machine.
"""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.domain.hosts.gpu import GpuInfo, Nic
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.node.isolation import rdma
from gpu_platform.node.isolation.jail import Jail
from gpu_platform.node.isolation.rdma import Rdma, near_cards
from gpu_platform.node.system.paths import attempt_dir
from gpu_platform.node.system.sysfs import Sysfs
from tests.security.attacks import PRELUDE, STAND_INS, can_open
from tests.support.hosts_rig import HostRig

PYTHON = "/usr/bin/python3"
SHOW = """
for folder in ("/dev/infiniband", "/dev/nvidia-caps-imex-channels"):
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        attempt(name, open_it, folder + "/" + name)
print(os.environ.get("NCCL_IB_HCA", "-"))
"""


class Cards(NamedTuple):
    """A host's ``/dev`` and ``/sys`` with two cards: one near the first GPU, one near the last."""

    dev: Path
    sysfs: Sysfs
    near: str
    far: str


def working_devices() -> list[int]:
    """Character devices that this kernel lets root open, and that no jail gets by itself."""
    found: list[int] = []
    for major, minor in STAND_INS:
        path = Path(f"/dev/.gpu-platform-test-{os.getpid()}")
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(major, minor))
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
            found.append(os.makedev(major, minor))
        except OSError:
            continue
        finally:
            path.unlink()
    return found


@pytest.fixture
def cards(tmp_path: Path, jails: None) -> Cards:
    devices = working_devices()
    if len(devices) < 3:
        pytest.skip(f"this kernel has too few of the devices {STAND_INS} to play network cards")
    names = ["mlx5_0", "mlx5_1"]
    dev, sys = tmp_path / "dev", tmp_path / "sys"
    (dev / "infiniband").mkdir(parents=True)
    nodes = {"uverbs0": devices[0], "uverbs1": devices[1], "rdma_cm": devices[2]}
    nodes |= {"umad0": devices[2], "issm0": devices[2], "umad1": devices[2]}
    for name, device in nodes.items():
        os.mknod(dev / "infiniband" / name, stat.S_IFCHR | 0o600, device)
        (dev / "infiniband" / name).chmod(0o666)
    for kind, node, card in (
        ("infiniband_verbs", "uverbs0", names[0]),
        ("infiniband_verbs", "uverbs1", names[1]),
        ("infiniband_mad", "umad0", names[0]),
        ("infiniband_mad", "issm0", names[0]),
        ("infiniband_mad", "umad1", names[1]),
    ):
        (sys / "class" / kind / node).mkdir(parents=True)
        (sys / "class" / kind / node / "ibdev").write_text(f"{card}\n")
    return Cards(dev, Sysfs(sys), *names)


@pytest.fixture
async def host(tmp_path: Path, cards: Cards) -> AsyncIterator[HostRig]:
    rig = HostRig(tmp_path / "state", isolation="required", dev=cards.dev, users={"bob": "nobody"})
    rig.restart([stage(rig, cards)])
    yield rig
    await rig.aclose()


def stage(host: HostRig, cards: Cards, *, management: bool = False) -> Rdma:
    """The stage of a host whose first card is near the first four GPUs, the second near the others."""
    nics = [
        Nic(name=cards.near, kind="infiniband", pci_bus_id="0000:01:00.0", gpus=[0, 1, 2, 3]),
        Nic(name=cards.far, kind="infiniband", pci_bus_id="0000:81:00.0", gpus=[4, 5, 6, 7]),
        Nic(name="eth0", kind="ethernet", pci_bus_id="0000:02:00.0", gpus=[0]),
    ]
    inventory = host.inventory.model_copy(update={"nics": nics})
    return Rdma(inventory, management=management, dev=cards.dev, sysfs=cards.sysfs)


def job(host: HostRig, script: str, gpu: int | None = 0, **changes: object) -> HostPlan:
    plan = host.plan(PYTHON, "-c", PRELUDE + script)
    uuids = [] if gpu is None else [host.inventory.gpus[gpu].uuid]
    ranks = [rank.model_copy(update={"gpu_uuids": uuids}) for rank in plan.ranks]
    return plan.model_copy(update={"gpu_uuids": uuids, "ranks": ranks, **changes})


async def lines_of(host: HostRig, plan: HostPlan) -> list[str]:
    host.launch(plan)
    exits = await host.watch(plan)
    assert exits.first_failure is None, host.log(plan)
    return host.log(plan).splitlines()


@pytest.mark.parametrize("user", ["ada", "bob"])
async def test_a_job_gets_the_card_near_its_gpu_and_no_other(host: HostRig, cards: Cards, user: str) -> None:
    first = await lines_of(host, job(host, SHOW, user=user))
    assert first == ["rdma_cm WORKS", "uverbs0 WORKS", f"={cards.near}"]
    last = await lines_of(host, job(host, SHOW, gpu=-1, user=user))
    assert last == ["rdma_cm WORKS", "uverbs1 WORKS", f"={cards.far}"]


async def test_a_job_with_both_gpus_gets_both_cards(host: HostRig) -> None:
    gpus = [host.inventory.gpus[0].uuid, host.inventory.gpus[-1].uuid]
    plan = job(host, SHOW)
    plan = plan.model_copy(update={"gpu_uuids": gpus, "ranks": [plan.ranks[0].model_copy(update={"gpu_uuids": gpus})]})
    lines = await lines_of(host, plan)
    assert lines == ["rdma_cm WORKS", "uverbs0 WORKS", "uverbs1 WORKS", "-"], "NCCL chooses among all by itself"


async def test_a_job_without_gpus_gets_no_card(host: HostRig) -> None:
    assert await lines_of(host, job(host, SHOW, gpu=None)) == ["-"]


async def test_another_tenants_card_cannot_be_opened_by_any_name(host: HostRig, cards: Cards) -> None:
    other = (cards.dev / "infiniband/uverbs1").stat().st_rdev
    host.launch(job(host, "time.sleep(600)", gpu=-1))
    lines = await lines_of(
        host,
        job(
            host,
            f"""
attempt("by name", open_it, "/dev/infiniband/uverbs1")
attempt("by path", open_it, {str(cards.dev / "infiniband/uverbs1")!r})
for place in ("/tmp/n", "/dev/shm/n", "/dev/infiniband/n"):
    attempt("mknod", node, place, {other})
attempt("own", open_it, "/dev/infiniband/uverbs0")
""",
        ),
    )
    assert lines[-1] == "own WORKS"
    assert not [line for line in lines[:-1] if "WORKS" in line]


async def test_the_kernels_filter_knows_cards_apart(host: HostRig, cards: Cards) -> None:
    """Root with all capabilities, on the host's own files, but in the rank's cgroup: only the filter is left."""
    near, far = cards.dev / "infiniband/uverbs0", cards.dev / "infiniband/uverbs1"
    for gpu, opens, refused in ((0, near, far), (-1, far, near)):
        plan = job(host, "time.sleep(600)", gpu=gpu)
        host.launch(plan)
        jail = Jail.of(str(attempt_dir(host.home, plan.key)))
        assert jail is not None
        assert can_open(jail.cgroup.child("rank-0"), opens)
        assert not can_open(jail.cgroup.child("rank-0"), refused)


async def test_management_datagrams_are_for_hosts_that_say_so(host: HostRig, cards: Cards) -> None:
    """Who may send them can reconfigure the fabric of all tenants."""
    lines = await lines_of(host, job(host, SHOW))
    assert not [line for line in lines if line.startswith(("umad", "issm"))]
    host.restart([stage(host, cards, management=True)])
    lines = await lines_of(host, job(host, SHOW))
    assert lines == ["issm0 WORKS", "rdma_cm WORKS", "umad0 WORKS", "uverbs0 WORKS", f"={cards.near}"]


async def test_a_jobs_own_choice_of_cards_stands(host: HostRig) -> None:
    lines = await lines_of(host, job(host, SHOW, env={"NCCL_IB_HCA": "mlx5_7"}))
    assert lines[-1] == "mlx5_7"


async def test_an_attempt_gets_one_channel_that_all_its_hosts_choose(host: HostRig, cards: Cards) -> None:
    folder = cards.dev / "nvidia-caps-imex-channels"
    folder.mkdir()
    devices = working_devices()
    for number in range(3):
        os.mknod(folder / f"channel{number}", stat.S_IFCHR | 0o666, devices[number])
    plan = job(host, SHOW)
    elsewhere = stage(host, cards)
    elsewhere.prepare(plan)
    [channel] = [path for path in elsewhere.provides(plan).devices if "channel" in path]
    lines = await lines_of(host, plan)
    assert [line for line in lines if line.startswith("channel")] == [f"{Path(channel).name} WORKS"]


def test_two_tenants_on_a_host_never_share_a_channel(host: HostRig, cards: Cards) -> None:
    folder = cards.dev / "nvidia-caps-imex-channels"
    folder.mkdir()
    for number in range(2):
        os.mknod(folder / f"channel{number}", stat.S_IFCHR | 0o666, working_devices()[number])
    here = stage(host, cards)
    mine = job(host, "")
    here.prepare(mine)
    own = here.provides(mine).devices[-1]
    refused: list[str] = []
    for _ in range(40):
        other = job(host, "", namespace="others")
        try:
            here.prepare(other)
        except HostUnavailable as error:
            refused.append(error.message)
            continue
        assert here.provides(other).devices[-1] != own
        here.finish(other)
    assert 0 < len(refused) < 40
    assert all("of another namespace" in message for message in refused)
    later = stage(host, cards)
    later.recover([mine])
    assert later.provides(mine).devices[-1] == own
    here.finish(mine)
    for _ in range(5):
        here.prepare(job(host, "", namespace="others"))


def test_the_nearest_card_is_below_the_same_switch_or_in_the_same_numa_node() -> None:
    def gpu(index: int, numa: int | None) -> GpuInfo:
        facts = {"uuid": f"g{index}", "model": "H100", "memory_mib": 1, "compute_capability": "9.0"}
        return GpuInfo(index=index, numa_node=numa, **facts)  # type: ignore[arg-type]

    def nic(name: str, numa: int | None, *gpus: int) -> Nic:
        return Nic(name=name, kind="infiniband", pci_bus_id=name, numa_node=numa, gpus=list(gpus))

    switched, beside, other = nic("a", 0, 0), nic("b", 0), nic("c", 1)
    assert near_cards([gpu(0, 0)], [switched, beside, other]) == [switched]
    assert near_cards([gpu(1, 0)], [switched, beside, other]) == [switched, beside]
    assert near_cards([gpu(0, 0), gpu(2, 1)], [switched, beside, other]) == [switched, other]
    assert near_cards([gpu(3, None)], [beside, other]) == [beside, other], "nothing is known, so none is farther"
    assert near_cards([], [beside]) == []


def test_a_host_says_what_its_gangs_lack(cards: Cards, tmp_path: Path) -> None:
    nics = [Nic(name=name, kind="infiniband", pci_bus_id=name) for name in (cards.near, "mlx5_99")]
    [missing] = rdma.lacks(nics, dev=cards.dev, sysfs=cards.sysfs)
    assert missing == "RDMA: mlx5_99 has no device node, so gangs use TCP (modprobe ib_uverbs)"
    (cards.dev / "nvidia-caps-imex-channels").mkdir()
    (cards.dev / "nvidia-caps-imex-channels" / "channel0").touch()
    assert len(rdma.lacks(nics, dev=cards.dev, sysfs=cards.sysfs)) == 2
    assert rdma.lacks([], dev=tmp_path / "none", sysfs=Sysfs(tmp_path / "none")) == []

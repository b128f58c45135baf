"""What jailed ranks get to reach other hosts' memory: RDMA network cards, a channel for NVLink across hosts, GDRCopy.

A job with GPUs gets the cards next to its GPUs and no other: ``/dev/infiniband/uverbs<N>`` of each, and ``rdma_cm``.
The nodes for management datagrams (``umad<N>``, ``issm<N>``) come only if the host's settings say so: who has them can
change routes and partitions of the whole fabric. GPUDirect RDMA needs no node (the kernel module ``nvidia_peermem``,
or dma-buf). Kernel: Documentation/infiniband/user_verbs.rst, user_mad.rst; NVIDIA: "IMEX Service for NVLink Networks".
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.domain.hosts.gpu import GpuInfo, HostInventory, Nic
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.node.isolation.isolation import JAILED
from gpu_platform.node.stages import Provision, Stage
from gpu_platform.node.system.sysfs import Sysfs

_CARDS = "infiniband"
_CHANNELS = "nvidia-caps-imex-channels"
_FOR_ALL = ("rdma_cm",)
"""Nodes of no card, for the set-up of connections."""
_VERBS = "uverbs"
_GDRCOPY = "gdrdrv"
_HCA = "NCCL_IB_HCA"


class Rdma(Stage):
    """Gives each jailed attempt the device nodes of the RDMA cards near its GPUs, and an IMEX channel. Other ranks open
    what their user may.

    ``management``: with the nodes for management datagrams. ``dev`` and ``sysfs``: where nodes and cards are found.
    """

    def __init__(
        self,
        inventory: HostInventory,
        *,
        management: bool = False,
        dev: Path = Path("/dev"),
        sysfs: Sysfs | None = None,
    ) -> None:
        self._gpus = {gpu.uuid: gpu for gpu in inventory.gpus} if inventory.isolation == JAILED else {}
        self._nics = rdma_cards(inventory.nics)
        self._management = management
        self._dev = dev
        self._sysfs = sysfs or Sysfs()
        self._lock = threading.Lock()
        self._channels: dict[AttemptKey, tuple[int, str]] = {}
        """Attempt -> its IMEX channel, and the namespace of its job."""

    def recover(self, attempts: Sequence[HostPlan]) -> None:
        """Note which channels the open attempts have."""
        for plan in attempts:
            if (channel := self._channel_of(plan)) is not None:
                self._channels[plan.key] = channel, plan.namespace

    def prepare(self, plan: HostPlan) -> None:
        """Choose the attempt's IMEX channel. Raises :class:`HostUnavailable` if another namespace uses it here.

        The choice follows from the attempt alone, because all hosts of a gang need the same channel.
        """
        if (channel := self._channel_of(plan)) is None:
            return
        with self._lock:
            others = [key for key, used in self._channels.items() if used[0] == channel and used[1] != plan.namespace]
            if others and len(imex_channels(self._dev)) > 1:
                raise HostUnavailable(
                    f"attempt {plan.key} needs IMEX channel {channel}, which attempt {others[0]} of another namespace "
                    f"uses on {plan.host}: its next attempt gets another one"
                )
            self._channels[plan.key] = channel, plan.namespace

    def provides(self, plan: HostPlan) -> Provision:
        """The device nodes, and the names of the cards for NCCL unless the job names some itself."""
        gpus = [self._gpus[uuid] for uuid in plan.gpu_uuids if uuid in self._gpus]
        if not gpus:
            return Provision()
        cards = near_cards(gpus, self._nics)
        nodes = self._nodes_of(cards)
        names = ",".join(card.name for card in cards)
        environ = {_HCA: f"={names}"} if nodes and len(cards) < len(self._nics) else {}
        own = {spec.rank: environ for spec in plan.ranks if _HCA not in plan.program(spec).env}
        devices = [*nodes, *self._present([self._dev / _GDRCOPY])]
        if plan.key in self._channels:
            devices.append(str(self._dev / _CHANNELS / f"channel{self._channels[plan.key][0]}"))
        return Provision(devices=devices, rank_environ=own)

    def finish(self, plan: HostPlan) -> None:
        """Give the channel back."""
        with self._lock:
            self._channels.pop(plan.key, None)

    def _nodes_of(self, cards: Iterable[Nic]) -> list[str]:
        by_card = self._sysfs.rdma_nodes()
        names = [name for card in cards for name in by_card.get(card.name, ()) if self._may_have(name)]
        nodes = self._present(self._dev / _CARDS / name for name in names)
        return [*nodes, *self._present(self._dev / _CARDS / name for name in _FOR_ALL)] if nodes else []

    def _may_have(self, name: str) -> bool:
        return self._management or name.startswith(_VERBS)

    def _channel_of(self, plan: HostPlan) -> int | None:
        channels = imex_channels(self._dev) if self._gpus.keys() & set(plan.gpu_uuids) else []
        if not channels:
            return None
        digest = hashlib.sha256(f"{plan.key.job_id}.{plan.key.attempt}".encode()).digest()
        return channels[int.from_bytes(digest[:8]) % len(channels)]

    @staticmethod
    def _present(paths: Iterable[Path]) -> list[str]:
        return [str(path) for path in paths if path.is_char_device()]


def rdma_cards(nics: Iterable[Nic]) -> list[Nic]:
    """The network cards that can do RDMA: InfiniBand, and Ethernet with RoCE."""
    return [nic for nic in nics if nic.kind == "infiniband"]


def near_cards(gpus: Iterable[GpuInfo], cards: Sequence[Nic]) -> list[Nic]:
    """The cards that are nearest to these GPUs: below the same PCIe switch, else in the same NUMA node, else all."""
    chosen: set[str] = set()
    for gpu in gpus:
        below = [card for card in cards if gpu.index in card.gpus]
        beside = [card for card in cards if gpu.numa_node is not None and card.numa_node == gpu.numa_node]
        chosen |= {card.name for card in below or beside or cards}
    return [card for card in cards if card.name in chosen]


def imex_channels(dev: Path = Path("/dev")) -> list[int]:
    """The numbers of this host's IMEX channels, in order."""
    names = (path.name for path in (dev / _CHANNELS).glob("channel*"))
    return sorted(int(found[1]) for name in names if (found := re.fullmatch(r"channel(\d+)", name)))


def lacks(nics: Iterable[Nic], *, dev: Path = Path("/dev"), sysfs: Sysfs | None = None) -> list[str]:
    """What jailed gangs miss on this host, for people: cards without device nodes, one channel for everybody."""
    by_card = (sysfs or Sysfs()).rdma_nodes()
    mute = [nic.name for nic in rdma_cards(nics) if not any(n.startswith(_VERBS) for n in by_card.get(nic.name, ()))]
    found = [f"RDMA: {', '.join(mute)} has no device node, so gangs use TCP (modprobe ib_uverbs)"] if mute else []
    if len(imex_channels(dev)) == 1:
        found.append("NVLink between hosts: all jobs share one IMEX channel (NVreg_ImexChannelCount gives more)")
    return found

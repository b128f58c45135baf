"""Machines of any number of GPUs, after those that there are."""

from __future__ import annotations

from collections.abc import Callable

from gpu_platform.domain.hosts.gpu import HostInventory, NvLink
from gpu_platform.topology.description import MachineDescription, simulated_uuid


def widened(description: MachineDescription, gpus: int) -> Callable[[str], HostInventory]:
    """A machine like ``description`` with so many GPUs: inventory by host name. The NUMA nodes share the new ones.

    Only for machines where all pairs are alike: joined by NVSwitch, or not joined.
    """
    like = description.inventory("like")
    assert isinstance(description.nvlink, dict) or not description.nvlink, "pairs are not alike"
    facts = [like.gpus[i * len(like.gpus) // gpus] for i in range(gpus)]
    links = like.nvlinks[0].links if like.nvlinks else 0
    nvlinks = [NvLink(a=a, b=b, links=links) for a in range(gpus) for b in range(a + 1, gpus)] if links else []
    machine = f"{like.machine}-{gpus}"

    def inventory(host: str) -> HostInventory:
        own = [gpu.model_copy(update={"uuid": simulated_uuid(host, i), "index": i}) for i, gpu in enumerate(facts)]
        return like.model_copy(update={"machine": machine, "gpus": own, "nvlinks": nvlinks})

    return inventory

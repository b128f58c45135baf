"""Hosts as Slurm's commands show them: nodes with a state and GPUs, in partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpu_platform.cli.slurm.partitions import hosts_as_json, partition_of
from gpu_platform.client import calls

if TYPE_CHECKING:
    from gpu_platform.client import Client

DEFAULT_PARTITION = "gpu"
"""What a cluster without the label shows. It has no name that scripts could ask for."""
COMPACT = {
    "idle": "idle",
    "mixed": "mix",
    "allocated": "alloc",
    "draining": "drng",
    "drained": "drain",
    "down": "down",
}


@dataclass(frozen=True)
class Node:
    """One host."""

    host: Mapping[str, Any]
    models: Mapping[str, int]
    """GPU model -> how many."""

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.host["name"])

    @property
    def partition(self) -> str:
        """Its partition."""
        return partition_of(dict(self.host)) or DEFAULT_PARTITION

    @property
    def state(self) -> str:
        """``idle``, ``mixed``, ``allocated``, ``draining``, ``drained`` or ``down``."""
        match self.host["state"]:
            case "LOST":
                return "down"
            case "DRAINED":
                return "drained"
            case "DRAINING":
                return "draining"
        total, free = self.host["gpus_total"], self.host["gpus_free"]
        return "idle" if free >= total else "mixed" if free else "allocated"

    @property
    def gres(self) -> str:
        """``gpu:NVIDIA_H100_80GB_HBM3:8``."""
        found = [f"gpu:{model.replace(' ', '_')}:{count}" for model, count in self.models.items()]
        return ",".join(found) or "(null)"

    @property
    def gres_used(self) -> str:
        """``gpu:3``. Of a host that is not READY nobody knows which are free."""
        total = self.host["gpus_total"]
        return f"gpu:{total - self.host['gpus_free'] if self.host['state'] == 'READY' else 0}"

    @property
    def reason(self) -> str:
        """Why it is not in service."""
        return str(self.host.get("reason") or "none")

    @property
    def features(self) -> str:
        """Its labels, as ``--constraint`` names them."""
        labels = self.host.get("labels") or {}
        found = [name if value == "true" else f"{name}={value}" for name, value in sorted(labels.items())]
        return ",".join(found) or "(null)"


def nodes(client: Client) -> list[Node]:
    """All hosts, in the order of their names."""
    models: dict[str, Counter[str]] = {}
    for gpu in client.json_pages(lambda cursor: calls.gpus(None, None, cursor)):
        models.setdefault(gpu["host"], Counter())[gpu["info"]["model"]] += 1
    found = [Node(host, models.get(host["name"], Counter())) for host in hosts_as_json(client)]
    return sorted(found, key=lambda node: node.name)

"""The words of reasons: what is asked of a host, what hosts have, and what a sentence says of rejected hosts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.hosts.gpu import GpuInfo
from gpu_platform.domain.jobs.placement import HostCount, ReasonCode
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.placing.capacity import capability, describe_host_resources, describe_share
from gpu_platform.scheduling.cluster.snapshot import Snapshot
from gpu_platform.scheduling.plugins.host_choice import names_of


def _models(resources: ResourceRequest) -> str:
    excluded = f"not {resources.exclude_model}" if resources.exclude_model else ""
    return ", ".join(filter(None, (resources.model, excluded))) or "any model"


def gpu_count(count: int) -> str:
    """Return ``1 GPU``, ``2 GPUs``."""
    return plural(count, "GPU")


def asked_of_a_host(resources: ResourceRequest) -> str:
    """Say what is asked of each host."""
    return gpu_count(resources.gpus_per_host) if resources.gpus_per_host else describe_host_resources(resources)


def plural(count: int, noun: str) -> str:
    """Return ``1 host``, ``2 hosts``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _share(resources: ResourceRequest) -> str:
    return describe_share(resources.share) if resources.share else "a share"


def _cuda_versions(snapshot: Snapshot, hosts: NDArray[np.intp]) -> str:
    inventories = [snapshot.inventory(host_index) for host_index in hosts.tolist()]
    found = {version for one in inventories for version in one.cuda_installations}
    too_new = {version for one in inventories for version in one.unusable_cuda}
    usable, unusable = (", ".join(sorted(versions, key=capability)) for versions in (found, too_new))
    return (usable or "none") + (f"; too new for the driver: {unusable}" if unusable else "")


def _least_taken(snapshot: Snapshot, hosts: NDArray[np.intp]) -> str:
    """Return how many percent the emptiest shared GPU has left. With MIG there may still be no place for the
    instance."""
    shared = snapshot.shared
    taken = np.where(shared.percent[hosts] > 0, shared.percent[hosts], np.int16(100))
    return f"{100 - min(int(taken.min()), 100)} %"


AMOUNTS: dict[ReasonCode, Callable[[Snapshot, NDArray[np.intp]], str]] = {
    ReasonCode.CPUS: lambda snapshot, hosts: (
        f"{int((snapshot.cpus - snapshot.cpus_used - snapshot.cpus_held)[hosts].max())} CPUs"
    ),
    ReasonCode.RAM: lambda snapshot, hosts: (
        f"{int((snapshot.ram_mib - snapshot.ram_mib_used - snapshot.ram_mib_held)[hosts].max())} MiB"
    ),
    ReasonCode.TOO_LITTLE_SHARE: _least_taken,
    ReasonCode.NO_CUDA: _cuda_versions,
}

INSIDE = {
    "nvlink": " of one NVLink ring",
    "numa": " of one NUMA node",
    "socket": " of one socket",
}

REMEDIES = {
    ReasonCode.UNHEALTHY: "GPUs must come back to health (or online, if drained)",
    ReasonCode.TOO_HOT: "GPUs must cool down",
    ReasonCode.HOST_NOT_READY: "hosts must come back or end their drain",
    ReasonCode.EXCLUDED: "other GPUs than those that the earlier attempt failed on must become free (its last failure "
    "says what is wrong there); after a few seconds it takes any",
}

ASKED: dict[ReasonCode, Callable[[ResourceRequest], str]] = {
    ReasonCode.HOST_NOT_READY: lambda resources: "a ready host",
    ReasonCode.EXCLUDED: lambda resources: f"{asked_of_a_host(resources)} without an earlier failure",
    ReasonCode.HOST_NAME: lambda resources: str(names_of(resources)),
    ReasonCode.RESERVATION: lambda resources: f"a host of the advance reservation {resources.reservation}",
    ReasonCode.LABEL: lambda resources: ", ".join(resources.constraints),
    ReasonCode.OTHER_MODEL: lambda resources: _models(resources),
    ReasonCode.TOO_LITTLE_MEMORY: lambda resources: f"{resources.memory_mib} MiB",
    ReasonCode.COMPUTE_CAPABILITY: lambda resources: resources.min_compute_capability or "any",
    ReasonCode.NO_CUDA: lambda resources: f"CUDA {resources.cuda}",
    ReasonCode.NOT_ISOLATED: lambda resources: "a host that isolates ranks",
    ReasonCode.SHARING_UNSUPPORTED: lambda resources: _share(resources),
    ReasonCode.TOO_FEW_GPUS: lambda resources: gpu_count(resources.gpus_per_host),
    ReasonCode.CPUS: lambda resources: f"{resources.cpus_per_host} CPUs",
    ReasonCode.RAM: lambda resources: f"{resources.ram_mib_per_host} MiB",
    ReasonCode.UNHEALTHY: lambda resources: gpu_count(resources.gpus_per_host),
    ReasonCode.TOO_HOT: lambda resources: gpu_count(resources.gpus_per_host),
    ReasonCode.WINDOW: asked_of_a_host,
    ReasonCode.BUSY: lambda resources: gpu_count(resources.gpus_per_host),
    ReasonCode.SHARED_BY_ANOTHER: lambda resources: _share(resources),
    ReasonCode.TOO_LITTLE_SHARE: lambda resources: _share(resources),
    ReasonCode.TOPOLOGY: lambda resources: f"{gpu_count(resources.gpus_per_host)} together",
    ReasonCode.KEPT: asked_of_a_host,
}

BEST_FACT: dict[ReasonCode, Callable[[list[GpuInfo]], str]] = {
    ReasonCode.OTHER_MODEL: lambda gpus: ", ".join(sorted({gpu.model for gpu in gpus})),
    ReasonCode.TOO_LITTLE_MEMORY: lambda gpus: f"{max(gpu.memory_mib for gpu in gpus)} MiB",
    ReasonCode.COMPUTE_CAPABILITY: lambda gpus: max((gpu.compute_capability for gpu in gpus), key=capability),
}

PHRASES: dict[ReasonCode, Callable[[HostCount], str]] = {
    ReasonCode.HOST_NOT_READY: lambda count: f"{count.hosts} not ready ({count.available})",
    ReasonCode.EXCLUDED: lambda count: f"{count.hosts} excluded after a failure there",
    ReasonCode.HOST_NAME: lambda count: f"{count.hosts} not named by the job",
    ReasonCode.RESERVATION: lambda count: f"{count.hosts} not in its advance reservation",
    ReasonCode.LABEL: lambda count: f"{count.hosts} without {count.asked} ({count.available})",
    ReasonCode.OTHER_MODEL: lambda count: f"{count.hosts} other model",
    ReasonCode.TOO_LITTLE_MEMORY: lambda count: f"{count.hosts} too little memory (best has {count.available})",
    ReasonCode.COMPUTE_CAPABILITY: lambda count: f"{count.hosts} lower compute capability (best has {count.available})",
    ReasonCode.NO_CUDA: lambda count: f"{count.hosts} without {count.asked} (there is {count.available})",
    ReasonCode.NOT_ISOLATED: lambda count: f"{count.hosts} without isolation (ranks are plain processes there)",
    ReasonCode.SHARING_UNSUPPORTED: lambda count: f"{count.hosts} cannot share so",
    ReasonCode.CPUS: lambda count: f"{count.hosts} too few CPUs (best has {count.available})",
    ReasonCode.RAM: lambda count: f"{count.hosts} too little memory (best has {count.available})",
    ReasonCode.TOO_FEW_GPUS: lambda count: f"{count.hosts} too small (largest has {count.available.split()[0]})",
    ReasonCode.UNHEALTHY: lambda count: f"{count.hosts} unhealthy or drained (best has {count.available} working)",
    ReasonCode.TOO_HOT: lambda count: f"{count.hosts} too hot (best has {count.available} cool)",
    ReasonCode.WINDOW: lambda count: f"{count.hosts} kept {count.available}",
    ReasonCode.BUSY: lambda count: f"{count.hosts} busy (best has {count.available.split()[0]} free)",
    ReasonCode.SHARED_BY_ANOTHER: lambda count: f"{count.hosts} shared by others",
    ReasonCode.TOO_LITTLE_SHARE: lambda count: f"{count.hosts} too full (best has {count.available})",
    ReasonCode.TOPOLOGY: lambda count: f"{count.hosts} free but apart (best has {count.available.split()[0]} free)",
    ReasonCode.KEPT: lambda count: f"{count.hosts} kept for {count.available}",
}

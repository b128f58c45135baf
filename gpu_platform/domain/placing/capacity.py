"""What the registered hosts could hold if all of them were empty, healthy and ready.

Admission refuses what is beyond that. The limit is optimistic: it may pass a gang that no ring of NVLinks can serve
(then the scheduler says so), but it never refuses a gang that fits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from pydantic import BaseModel, ConfigDict

from gpu_platform.domain.hosts.cuda import accepts_cuda, cuda_pair, newest_cuda
from gpu_platform.domain.hosts.gpu import GpuInfo, HostInventory
from gpu_platform.domain.hosts.share import Share, ShareMode
from gpu_platform.domain.jobs.placement import ReasonCode
from gpu_platform.domain.jobs.resources import INSIDE_ONE_HOST, RankPer, ResourceRequest, models_of


class Capacity(BaseModel):
    """The largest gang of the requested kind that an empty cluster could hold."""

    model_config = ConfigDict(frozen=True)

    fits: bool
    """True if the gang fits, and also while no host is registered: hosts may still come."""
    hosts: int
    """Hosts that could hold one whole slice (``gpus_per_host`` matching GPUs)."""
    gpus_per_host: int
    """The most matching GPUs that one host could give together."""
    gpus: int
    """Matching GPUs of all hosts."""
    message: str
    """A sentence that says what was asked, what there is, and what to ask instead."""


def largest_gang(inventories: Sequence[HostInventory], request: ResourceRequest) -> Capacity:
    """Compare ``request`` with all registered hosts, in whatever state they are.

    Fast if equal hosts share one inventory object.
    """
    if not request.gpus_per_host:
        return _without_gpus(inventories, request)
    together = _of_each(inventories, lambda inventory: _max_connected(inventory, request))
    hosts = sum(count >= request.gpus_per_host for count in together)
    best = max(together, default=0)
    gpus = sum(_of_each(inventories, lambda one: sum(mismatch(gpu, request) is None for gpu in one.gpus)))
    asked = describe(request)
    if request.total is not None:
        return _largest_total(inventories, request, together, gpus)
    if not inventories:
        message = f"asked for {asked}; no host is registered yet"
    elif hosts >= request.hosts:
        message = f"asked for {asked}; {hosts} of {len(inventories)} hosts could hold a part of it"
    elif gpus == 0:
        message = f"asked for {asked}; the cluster has no such GPU, only {_models(inventories)}"
    elif request.cuda is not None and newest_cuda(request.cuda, _versions(inventories)) is None:
        message = f"asked for {asked}; {_without_cuda(inventories, request.cuda)}"
    elif refusal := _never_granted(inventories, request):
        message = f"asked for {asked}; {refusal}"
    elif hosts == 0:
        reason = "" if request.allow_cross_numa else " on one socket or NVLink island"
        message = (
            f"asked for {asked}; the largest host has {best} such GPUs{reason}: ask for at most {best} GPUs per host"
        )
        message += _other_shapes(request, together)
        if not request.allow_cross_numa and _fits_across_sockets(inventories, request):
            message += ", or allow_cross_numa (--allow-cross-numa)"
    else:
        message = (
            f"asked for {asked}; only {hosts} of {len(inventories)} hosts could ever hold "
            f"{request.gpus_per_host} such GPUs: ask for at most {hosts} host{'s' if hosts > 1 else ''}"
        )
    fits = not inventories or hosts >= request.hosts
    return Capacity(fits=fits, hosts=hosts, gpus_per_host=best, gpus=gpus, message=message)


def _other_shapes(request: ResourceRequest, together: Sequence[int]) -> str:
    """Other shapes that give the same number of GPUs on several hosts. Empty if there are none."""
    best, wanted = max(together, default=0), request.gpus
    if not best or request.share is not None or request.required_level in INSIDE_ONE_HOST or sum(together) < wanted:
        return ""
    advice = f", or for {wanted} in all on several hosts (total {wanted}, --total {wanted})"
    # The smallest number of equal host slices that give all the GPUs.
    for hosts in range(-(-wanted // best), len(together) + 1):
        each, rest = divmod(wanted, hosts)
        if not rest and sum(count >= each for count in together) >= hosts:
            return f"{advice}, or for {hosts} hosts x {each} (--hosts {hosts} --gpus-per-host {each})"
    return advice


def _largest_total(
    inventories: Sequence[HostInventory], request: ResourceRequest, together: Sequence[int], gpus: int
) -> Capacity:
    inside = request.required_level in INSIDE_ONE_HOST
    best = max(together, default=0)
    most = best if inside else sum(together)
    message = f"asked for {describe(request)}; "
    if not inventories:
        message += "no host is registered yet"
    elif gpus == 0:
        message += f"the cluster has no such GPU, only {_models(inventories)}"
    elif request.cuda is not None and newest_cuda(request.cuda, _versions(inventories)) is None:
        message += _without_cuda(inventories, request.cuda)
    elif refusal := _never_granted(inventories, request):
        message += refusal
    else:
        where = f"the largest {request.required_level}" if inside else f"all {len(inventories)} hosts together"
        message += f"{where} could give {most}" + ("" if most >= request.gpus else f": ask for at most {most}")
    fits = not inventories or most >= request.gpus
    return Capacity(
        fits=fits, hosts=sum(count > 0 for count in together), gpus_per_host=best, gpus=gpus, message=message
    )


def _without_gpus(inventories: Sequence[HostInventory], request: ResourceRequest) -> Capacity:
    """The capacity for a request for CPUs and memory only."""
    hosts = sum(
        1
        for one in inventories
        if _has_room(one, request) and (request.cuda is None or newest_cuda(request.cuda, one.cuda_installations))
    )
    message = f"asked for {describe(request)}; "
    if not inventories:
        message += "no host is registered yet"
    elif request.cuda is not None and newest_cuda(request.cuda, _versions(inventories)) is None:
        message += _without_cuda(inventories, request.cuda)
    elif hosts >= request.hosts:
        message += f"{hosts} of {len(inventories)} hosts could hold a part of it"
    elif refusal := _never_granted(inventories, request):
        message += refusal
    else:
        message += f"only {hosts} of {len(inventories)} hosts could ever give it: ask for at most {hosts} hosts"
    return Capacity(
        fits=not inventories or hosts >= request.hosts, hosts=hosts, gpus_per_host=0, gpus=0, message=message
    )


def mismatch(gpu: GpuInfo, request: ResourceRequest) -> ReasonCode | None:
    """The requirement that this GPU can never meet. None if it meets all."""
    name = gpu.model.casefold()
    if request.model is not None and not any(part in name for part in models_of(request.model)):
        return ReasonCode.OTHER_MODEL
    if request.exclude_model and any(part in name for part in models_of(request.exclude_model)):
        return ReasonCode.OTHER_MODEL
    if gpu.memory_mib < request.memory_mib:
        return ReasonCode.TOO_LITTLE_MEMORY
    wanted = request.min_compute_capability
    if wanted is not None and capability(gpu.compute_capability) < capability(wanted):
        return ReasonCode.COMPUTE_CAPABILITY
    return None


def capability(text: str) -> tuple[int, int]:
    """``"8.0"`` as two numbers, so that 10.0 is newer than 9.0."""
    major, _, minor = text.partition(".")
    return int(major), int(minor or 0)


def socket_of(gpu: GpuInfo) -> str:
    """The socket of a GPU if its host reported it, else its NUMA node, else one name for the whole host."""
    if gpu.socket is not None:
        return f"socket {gpu.socket}"
    return "socket ?" if gpu.numa_node is None else f"numa {gpu.numa_node}"


def describe(request: ResourceRequest) -> str:
    """The request in words, e.g. ``2 hosts x 8 GPUs (H100, >= 65536 MiB)``."""
    count = request.total or request.gpus_per_host
    if not count:
        shape = (
            describe_host_resources(request)
            if request.hosts == 1
            else f"{request.hosts} hosts x {describe_host_resources(request)}"
        )
        return f"{shape} (CUDA {request.cuda})" if request.cuda else shape
    gpus = f"{count} GPU{'s' if count > 1 else ''}" + (" in all" if request.total else "")
    shape = gpus if request.hosts == 1 else f"{request.hosts} hosts x {gpus}"
    if request.share is not None:
        shape = f"{describe_share(request.share)} of {shape}"
    details = [
        *([request.model] if request.model else []),
        *([f"not {request.exclude_model}"] if request.exclude_model else []),
        *([f">= {request.memory_mib} MiB"] if request.memory_mib else []),
        *([f"compute capability >= {request.min_compute_capability}"] if request.min_compute_capability else []),
        *([f">= {request.min_bandwidth_gb_s:g} GB/s between GPUs"] if request.min_bandwidth_gb_s else []),
        *([f"CUDA {request.cuda}"] if request.cuda else []),
        *(["isolated"] if request.isolated else []),
        *([str(request.host_choice)] if request.host_choice else []),
        *([f"{request.cpus_per_host} CPUs a host"] if request.cpus_per_host else []),
        *([f"{request.ram_mib_per_host} MiB a host"] if request.ram_mib_per_host else []),
        *([f"{request.cpus_per_gpu} CPUs a GPU"] if request.cpus_per_gpu and request.total else []),
        *([f"{request.ram_mib_per_gpu} MiB of host memory a GPU"] if request.ram_mib_per_gpu and request.total else []),
    ]
    return f"{shape} ({', '.join(details)})" if details else shape


def describe_host_resources(request: ResourceRequest) -> str:
    """CPUs and memory of one host: ``4 CPUs and 8192 MiB of memory``."""
    amounts = [
        *([f"{request.cpus_per_host} CPU{'s' if request.cpus_per_host > 1 else ''}"] if request.cpus_per_host else []),
        *([f"{request.ram_mib_per_host} MiB of memory"] if request.ram_mib_per_host else []),
    ]
    return " and ".join(amounts) or "a host"


def shares_of_one_process(request: ResourceRequest, rank_per: RankPer, *, mps: bool) -> str:
    """Why one process cannot use the shares that it would get. Empty if it can. ``mps``: some host has MPS.

    CUDA shows a process one MIG device only, and a process can be the client of one MPS daemon only.
    """
    share = request.share
    if share is None or rank_per is RankPer.GPU or request.gpus_per_host < 2 or share.mode is ShareMode.TIME_SLICE:
        return ""
    if share.mig_profile is None and share.mode is None and not mps:
        return ""  # it becomes a time slice
    kind = "MIG" if share.mig_profile is not None else "MPS"
    slices = "" if share.mig_profile is not None else ", or for share mode time_slice"
    return (
        f"asked for {describe(request)}, all for one process; a process can use one {kind} share only: "
        f"ask for one rank per GPU (rank_per gpu, --rank-per gpu), or for one GPU{slices}"
    )


def describe_share(share: Share) -> str:
    """The share in words, e.g. ``a 1g.10gb``, ``50 % and 8192 MiB``."""
    if share.mig_profile is not None:
        return f"a {share.mig_profile}"
    mode = f" by {share.mode.value}" if share.mode else ""
    return f"{share.percent} % and {share.memory_mib} MiB{mode}"


def _never_granted(inventories: Sequence[HostInventory], request: ResourceRequest) -> str:
    """CPUs, memory and isolation that no host has. Empty if one host has all of it."""
    if request.isolated and not any(one.isolates for one in inventories):
        return (
            "no host isolates ranks: set node.isolation to required on one, or leave out what needs it "
            "(require_isolation, a container)"
        )
    kinds = {id(one): one for one in inventories}.values()
    matching = [(i, gpu) for i in kinds for gpu in i.gpus if mismatch(gpu, request) is None]
    if request.share is not None and not any(_can_share(gpu, i, request.share) for i, gpu in matching):
        return f"no such GPU can be shared so: {_parts_there_are(matching, request.share)}"
    for_gpus = " for the GPUs of one host" if request.cpus_per_gpu or request.ram_mib_per_gpu else ""
    least = request.slices(1) if request.total is not None else request
    for wanted, most, what in (
        (least.cpus_per_host, max((i.cpus or 0 for i in inventories), default=0), "CPUs"),
        (least.ram_mib_per_host, max((i.ram_mib or 0 for i in inventories), default=0), "MiB of memory"),
    ):
        if wanted > most and not any(_has_room(i, least) for i in inventories):
            return f"the largest host has {most} {what}: ask for at most so many{for_gpus}"
    return ""


def _can_share(gpu: GpuInfo, inventory: HostInventory, share: Share) -> bool:
    if share.mig_profile is not None:
        return gpu.mig_capable and share.mig_profile in inventory.mig_profiles.get(gpu.model, (share.mig_profile,))
    return (share.memory_mib or 0) <= gpu.memory_mib and (share.mode is not ShareMode.MPS or inventory.mps)


def _parts_there_are(gpus: Sequence[tuple[HostInventory, GpuInfo]], share: Share) -> str:
    if share.mig_profile is None:
        most = max((gpu.memory_mib for _, gpu in gpus), default=0)
        daemon = "" if share.mode is not ShareMode.MPS or any(i.mps for i, _ in gpus) else ", and no host has MPS"
        return f"the largest has {most} MiB{daemon}"
    profiles = {
        gpu.model: "no MIG" if not gpu.mig_capable else ", ".join(inventory.mig_profiles.get(gpu.model, ["unknown"]))
        for inventory, gpu in gpus
    }
    return "; ".join(f"{model} has {has}" for model, has in sorted(profiles.items()))


def _has_room(inventory: HostInventory, request: ResourceRequest) -> bool:
    """True if the host has the CPUs and memory, and isolates ranks if that is asked for. A host that did not report
    CPUs and memory counts as large enough."""
    if request.isolated and not inventory.isolates:
        return False
    cpus, ram_mib = request.cpus_per_host, request.ram_mib_per_host
    return (inventory.cpus is None or cpus <= inventory.cpus) and (
        inventory.ram_mib is None or ram_mib <= inventory.ram_mib
    )


def _without_cuda(inventories: Sequence[HostInventory], version: str) -> str:
    """The message that no host has this CUDA version, with the versions that hosts have."""
    there = ", ".join(sorted(_versions(inventories), key=cuda_pair))
    unusable = [why for one in inventories for found, why in one.unusable_cuda.items() if accepts_cuda(version, found)]
    if unusable:
        hosts = "a host has" if len(unusable) == 1 else f"{len(unusable)} hosts have"
        ask = f"ask for one of {there}, or install" if there else "install"
        why = "; ".join(sorted(set(unusable)))
        return f"{hosts} CUDA {version}, but {why}: {ask} a newer driver or cuda-compat there"
    if there:
        return f"no host has CUDA {version}, only {there}: ask for one of these, or install it (node.cuda_roots)"
    return "no host reports any CUDA installation: install one, and name its directory in node.cuda_roots of the host"


def _versions(inventories: Sequence[HostInventory]) -> set[str]:
    """The versions of all CUDA installations that a driver can run."""
    return {version for one in inventories for version in one.cuda_installations}


def _max_connected(inventory: HostInventory, request: ResourceRequest) -> int:
    if request.cuda is not None and newest_cuda(request.cuda, inventory.cuda_installations) is None:
        return 0
    if not _has_room(inventory, request):
        return 0
    matching = [gpu for gpu in inventory.gpus if mismatch(gpu, request) is None]
    if request.share is not None:
        matching = [gpu for gpu in matching if _can_share(gpu, inventory, request.share)]
    most = _gpus_with_room(inventory, request, len(matching))
    if request.allow_cross_numa:
        return most
    sockets = Counter(socket_of(gpu) for gpu in matching)
    return min(most, max([*sockets.values(), *_islands({gpu.index for gpu in matching}, inventory)], default=0))


def _gpus_with_room(inventory: HostInventory, request: ResourceRequest, gpus: int) -> int:
    """For how many of the host's GPUs it has CPUs and memory, if each of them comes with some."""
    for has, each in ((inventory.cpus, request.cpus_per_gpu), (inventory.ram_mib, request.ram_mib_per_gpu)):
        if each and has is not None:
            gpus = min(gpus, has // each)
    return gpus


def _islands(gpus: set[int], inventory: HostInventory) -> Iterable[int]:
    """Sizes of the NVLink-connected groups among ``gpus``: no ring is larger."""
    neighbours: dict[int, set[int]] = {gpu: set() for gpu in gpus}
    for link in inventory.nvlinks:
        if link.links > 0 and link.a in gpus and link.b in gpus:
            neighbours[link.a].add(link.b)
            neighbours[link.b].add(link.a)
    while neighbours:
        island, frontier = 0, [next(iter(neighbours))]
        while frontier:
            found = neighbours.pop(frontier.pop(), None)
            if found is not None:
                island += 1
                frontier.extend(found)
        yield island


def _fits_across_sockets(inventories: Sequence[HostInventory], request: ResourceRequest) -> bool:
    anywhere = request.model_copy(update={"allow_cross_numa": True})
    together = _of_each(inventories, lambda inventory: _max_connected(inventory, anywhere))
    return sum(count >= request.gpus_per_host for count in together) >= request.hosts


def _of_each(inventories: Sequence[HostInventory], count: Callable[[HostInventory], int]) -> list[int]:
    """Return the count of each inventory. One that is there several times is looked at once."""
    numbers = list(map(id, inventories))
    counts = {number: count(one) for number, one in dict(zip(numbers, inventories, strict=True)).items()}
    return list(map(counts.__getitem__, numbers))


def _models(inventories: Sequence[HostInventory]) -> str:
    facts = {
        f"{gpu.model} ({gpu.memory_mib} MiB, compute capability {gpu.compute_capability})"
        for inventory in inventories
        for gpu in inventory.gpus
    }
    return ", ".join(sorted(facts)) or "hosts without GPUs"

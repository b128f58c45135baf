"""How a gang goes on after a hardware fault without a new place: on a spare, or where it is once a GPU is healed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from gpu_platform.domain.job import JobSpec
from gpu_platform.domain.placement import HostSlice, Placement
from gpu_platform.domain.ranks import running_slices, spare_slices


@dataclass(frozen=True)
class Successor:
    placement: Placement
    """Of GPUs that the gang holds already."""
    parked: bool
    """One of them must be healed first."""


def successor_of(
    spec: JobSpec,
    placement: Placement,
    *,
    broken_gpus: Collection[str],
    broken_hosts: Collection[str],
    can_heal: bool,
) -> Successor | None:
    """None: the gang must be placed anew. ``can_heal``: all broken GPUs are being reset."""
    running, spares = running_slices(spec, placement.slices), spare_slices(spec, placement.slices)

    def works(part: HostSlice) -> bool:
        return part.host not in broken_hosts and not any(uuid in broken_gpus for uuid in part.gpu_uuids)

    failed = [part for part in running if not works(part)]
    if not failed:
        return None
    fit = [part for part in spares if works(part)]
    if len(failed) <= len(fit):
        instead = iter(fit)
        slices = [part if works(part) else next(instead) for part in running]
        swapped = ", ".join(f"{new.host} for {old.host}" for old, new in zip(failed, fit, strict=False))
        why = f"goes on with its spare: {swapped}"
        return Successor(_on(placement, [*slices, *instead], why), parked=False)
    if not spec.keep_reservation_s or not can_heal or any(part.host in broken_hosts for part in running):
        return None
    kept = [part for part in placement.slices if part.host not in broken_hosts]
    return Successor(_on(placement, kept, "keeps its place while a GPU is reset"), parked=True)


def _on(placement: Placement, slices: list[HostSlice], why: str) -> Placement:
    # It was decided by a leader that may be gone by now: what is held already needs no epoch.
    return placement.model_copy(update={"slices": slices, "why": why, "epoch": 0})

"""Which ranks a placement has, and on which GPUs.

Ranks are numbered through the host slices in the order of the placement: groups in the order in which they were
submitted, hosts of a group so that neighbours are side by side. Spares are last and run no rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_platform.domain.jobs.placement import HostSlice
from gpu_platform.domain.jobs.resources import RankPer
from gpu_platform.domain.jobs.spec import JobSpec


@dataclass(frozen=True)
class PlacedRank:
    """One process of a gang. ``local_rank`` counts within its host slice. It sees only the GPUs of that slice."""

    rank: int
    host: str
    group: str | None
    local_rank: int
    local_size: int
    gpu_uuids: list[str]


def running_slices(spec: JobSpec, slices: Sequence[HostSlice]) -> Sequence[HostSlice]:
    """The slices that run ranks: all but the spares."""
    return slices if not spec.spare_hosts else slices[: spec.gpus.hosts]


def spare_slices(spec: JobSpec, slices: Sequence[HostSlice]) -> Sequence[HostSlice]:
    """The host slices that the gang holds without ranks."""
    return slices[len(running_slices(spec, slices)) :]


def number_ranks(spec: JobSpec, slices: Sequence[HostSlice]) -> list[PlacedRank]:
    """All ranks of the gang, numbered from 0 in the order of the host slices."""
    per = {group.name: group.rank_per for group in spec.groups}
    ranks: list[PlacedRank] = []
    for part in running_slices(spec, slices):
        rank_per = per[part.group] if part.group is not None else spec.rank_per
        size = len(part.gpu_uuids) if rank_per is RankPer.GPU else 1
        ranks += [
            PlacedRank(len(ranks) + local, part.host, part.group, local, size, part.gpu_uuids) for local in range(size)
        ]
    return ranks


def max_ranks(spec: JobSpec) -> int:
    """The most ranks that there can be. It is exact, unless a total is placed with one rank per host: then the
    placement decides."""
    if not spec.groups:
        return _most(spec.rank_per, spec.gpus.gpus, spec.gpus.total or spec.gpus.hosts)
    return sum(_most(group.rank_per, group.gpus.gpus, group.gpus.total or group.gpus.hosts) for group in spec.groups)


def _most(rank_per: RankPer, gpus: int, hosts: int) -> int:
    return gpus if rank_per is RankPer.GPU else hosts

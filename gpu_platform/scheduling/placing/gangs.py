"""Places gangs that are more than equal slices: gangs of several rank groups, and totals that may split. All or
nothing.

The groups are placed one after another in a :class:`Statement`, the hardest first. If one finds no place, nothing is
held. The gang is kept together: the nearest level is used at which all groups fit in one domain (one NVLink domain,
then one leaf, one spine, all hosts). If hardest first fails, other orders are tried, and then other hosts for the
groups that were placed first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice, permutations

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.jobs.placement import HostSlice, Placement, TopologyLevel
from gpu_platform.domain.jobs.resources import Strategy
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.cluster.snapshot import Snapshot
from gpu_platform.scheduling.cluster.statement import Statement
from gpu_platform.scheduling.placing.candidates import CandidateIndex, Remembering
from gpu_platform.scheduling.placing.domains import together
from gpu_platform.scheduling.placing.framework import Framework
from gpu_platform.scheduling.placing.placement_builder import bandwidth_between, build_placement, level_between
from gpu_platform.scheduling.placing.splitting import CandidateLookup, HostShard, can_hold, capacities, split_total

MAX_DOMAINS = 16
"""How many domains of each level are tried. Those with the fewest usable hosts come first."""
MAX_ORDERS = 12
"""How many orders of the groups are tried on all hosts together."""
MAX_OTHER_HOSTS = 24
"""How often a group is moved to other hosts because a later group found no place."""


class GangPlacer:
    """Finds places for whole gangs and holds them in the snapshot."""

    def __init__(self, framework: Framework, snapshot: Snapshot, candidates: CandidateIndex, epoch: int) -> None:
        self._framework, self._snapshot, self._candidates, self._epoch = framework, snapshot, candidates, epoch

    def place(
        self, request: PlacementRequest, lookup: CandidateLookup | None = None, blocked: NDArray[np.bool_] | None = None
    ) -> Placement | None:
        """Hold a place for the whole gang and return it. Return None, with nothing held, if there is none.

        ``lookup`` finds the candidates for a plain request; by default, what the hosts offer now. ``blocked`` hosts
        are kept for other jobs.
        """
        with Statement(self._snapshot) as attempt:
            found = self.place_in(request, attempt, lookup, blocked)
            if found is not None:
                attempt.commit()
            return found

    def fits(self, request: PlacementRequest) -> bool:
        """Tell whether the gang has a place now. Nothing is held afterwards."""
        with Statement(self._snapshot) as attempt:
            return self.place_in(request, attempt) is not None

    def fits_empty(self, request: PlacementRequest) -> bool:
        """Tell whether the gang would have a place if every job had ended. Nothing is held afterwards."""
        with Statement(self._snapshot) as attempt:
            for host_index in range(len(self._snapshot)):
                attempt.empty(host_index)
            return self.place_in(request, attempt) is not None

    def place_in(
        self,
        request: PlacementRequest,
        attempt: Statement,
        lookup: CandidateLookup | None = None,
        blocked: NDArray[np.bool_] | None = None,
    ) -> Placement | None:
        """Do the same as :meth:`place` inside the caller's statement. If it returns None, it changed nothing."""
        lookup = lookup or Remembering(self._snapshot, self._candidates.fitting)
        groups = request.rank_groups()
        anywhere = np.ones(len(self._snapshot), bool) if blocked is None else ~blocked
        wanted = [self._could_serve(group, lookup) & anywhere for group in groups]
        if not all(group.any() for group in wanted):
            return None
        hardest = sorted(groups, key=lambda group: self._hardest_first_key(group, wanted[groups.index(group)]))
        placed = self._on_one_host(groups, attempt, lookup, anywhere) if len(groups) == 1 else None
        # For equal slices ``choose_hosts`` keeps the hosts together.
        for hosts in self._domains(groups, wanted) if placed is None and not request.is_plain else ():
            placed = self._place_all(hardest, attempt, lookup, hosts & anywhere)
            if placed is not None:
                break
        if placed is None:
            for order in _orders(hardest):
                placed = self._place_all(order, attempt, lookup, anywhere)
                if placed is not None:
                    break
        if placed is None and len(groups) > 1:
            placed = self._place_with_other_hosts(hardest, attempt, lookup, anywhere)
        return None if placed is None else self._merge_placements(groups, placed)

    def usable_hosts(self, request: PlacementRequest) -> NDArray[np.bool_] | None:
        """Return the hosts that some group could use once all jobs have ended, by host index. None: one of the groups
        has too few.

        It is not checked whether the groups fit at the same time.
        """
        usable_hosts = np.zeros(len(self._snapshot), bool)
        for group in request.rank_groups():
            hosts = self._enough(group, self._candidates.able)
            if not hosts.any():
                return None
            usable_hosts |= hosts
        return usable_hosts

    def first_unplaceable(self, request: PlacementRequest) -> PlacementRequest | None:
        """Return the first group that has no place even alone. None: each has one, but not all at the same time."""
        for group in request.rank_groups():
            if not self.fits(group):
                return group
        return None

    # -- placing the groups ----------------------------------------------------------------------

    def _place_all(
        self, order: list[PlacementRequest], attempt: Statement, lookup: CandidateLookup, hosts: NDArray[np.bool_]
    ) -> dict[str | None, list[Placement]] | None:
        before = attempt.checkpoint()
        placed: dict[str | None, list[Placement]] = {}
        for group in (_one_share_per_gpu(group, placed) for group in order):
            shards = self._host_shards(group, lookup, hosts)
            if shards is None:
                attempt.rollback(before)
                return None
            placed[group.group] = [self._hold(group, shard, attempt, lookup, hosts) for shard in shards]
        return placed

    def _place_with_other_hosts(
        self, order: list[PlacementRequest], attempt: Statement, lookup: CandidateLookup, hosts: NDArray[np.bool_]
    ) -> dict[str | None, list[Placement]] | None:
        """Place the groups in this order. If a group finds no place, leave out a host of the group before it, and try
        again; at most ``MAX_OTHER_HOSTS`` times in all.
        """
        tries = MAX_OTHER_HOSTS
        placed: dict[str | None, list[Placement]] = {}

        def place_from(position: int, open_hosts: NDArray[np.bool_]) -> bool:
            nonlocal tries
            if position == len(order):
                return True
            group = _one_share_per_gpu(order[position], placed)
            shards = self._host_shards(group, lookup, open_hosts)
            if shards is None:
                return False
            before = attempt.checkpoint()
            placed[group.group] = [self._hold(group, shard, attempt, lookup, open_hosts) for shard in shards]
            if place_from(position + 1, hosts):
                return True
            attempt.rollback(before)
            del placed[group.group]
            for host_index in (index for shard in shards for index in shard.hosts):
                if tries <= 0:
                    return False
                tries -= 1
                fewer = open_hosts.copy()
                fewer[host_index] = False
                if place_from(position, fewer):
                    return True
            return False

        return placed if place_from(0, hosts) else None

    def _on_one_host(
        self, groups: list[PlacementRequest], attempt: Statement, lookup: CandidateLookup, hosts: NDArray[np.bool_]
    ) -> dict[str | None, list[Placement]] | None:
        """Place a total on one host. One host, wherever it is, is closer together than several."""
        [group] = groups
        shard = self._whole(group, lookup, hosts)
        return None if shard is None else {group.group: [self._hold(group, shard, attempt, lookup, hosts)]}

    def _host_shards(
        self, group: PlacementRequest, lookup: CandidateLookup, hosts: NDArray[np.bool_]
    ) -> list[HostShard] | None:
        if group.resources.total is not None:
            whole = self._whole(group, lookup, hosts)
            return [whole] if whole is not None else split_total(group, self._snapshot, lookup, hosts)
        offers = lookup(group)
        open_hosts = np.flatnonzero(offers.fits & hosts)
        chosen = self._framework.choose(group.resources, self._snapshot, offers.offers, open_hosts)
        return None if chosen is None else [HostShard(group.resources, chosen)]

    def _whole(self, group: PlacementRequest, lookup: CandidateLookup, hosts: NDArray[np.bool_]) -> HostShard | None:
        """Return the host for a total that fits on one host."""
        if group.resources.total is None or group.resources.gpus > int(self._snapshot.size.max(initial=0)):
            return None
        resources = group.resources.slices(group.resources.gpus)
        offers = lookup(group.asking_for(resources))
        chosen = self._framework.choose(resources, self._snapshot, offers.offers, np.flatnonzero(offers.fits & hosts))
        return None if chosen is None else HostShard(resources, chosen)

    def _hold(
        self,
        group: PlacementRequest,
        shard: HostShard,
        attempt: Statement,
        lookup: CandidateLookup,
        hosts: NDArray[np.bool_],
    ) -> Placement:
        offers = lookup(group.asking_for(shard.resources))
        considered = int(np.count_nonzero(offers.fits & hosts))
        placement = build_placement(
            shard.resources, self._snapshot, offers.offers, shard.hosts, considered, self._epoch
        )
        for taken in placement.slices:
            attempt.hold(taken, group.namespace)
        return placement

    # -- where to look ---------------------------------------------------------------------------

    def _could_serve(self, group: PlacementRequest, lookup: CandidateLookup) -> NDArray[np.bool_]:
        """Return the hosts that could take a slice now, if there are enough of them for the group."""
        return self._enough(group, lambda request: lookup(request).fits)

    def _enough(
        self, group: PlacementRequest, answers: Callable[[PlacementRequest], NDArray[np.bool_]]
    ) -> NDArray[np.bool_]:
        resources, snapshot = group.resources, self._snapshot
        if resources.total is not None:
            return can_hold(resources, snapshot, capacities(group, snapshot, answers))
        hosts = together(resources, snapshot, answers(group))
        return hosts if int(np.count_nonzero(hosts)) >= resources.hosts else np.zeros(len(snapshot), bool)

    def _hardest_first_key(self, group: PlacementRequest, hosts: NDArray[np.bool_]) -> tuple[int, int]:
        """Sort the hardest group first: large slices, then few possible hosts."""
        needed = 1 if group.resources.total is not None else group.resources.hosts
        return (-(group.resources.total or group.resources.gpus_per_host), int(np.count_nonzero(hosts)) - needed)

    def _domains(self, groups: list[PlacementRequest], wanted: list[NDArray[np.bool_]]) -> Iterator[NDArray[np.bool_]]:
        """Yield the hosts of one domain after another: nearest level first, then the fewest usable hosts, then by
        name.
        """
        for numbers in self._snapshot.domains.values():
            counts = [np.bincount(numbers, weights=hosts, minlength=1) for hosts in wanted]
            enough = np.ones(len(counts[0]), bool)
            for group, count in zip(groups, counts, strict=True):
                enough &= count >= (1 if group.resources.total is not None else group.resources.hosts)
            able = np.flatnonzero(enough)
            if not len(able):
                continue
            first_name = np.full(len(enough), len(self._snapshot), np.int64)
            np.minimum.at(first_name, numbers, self._snapshot.by_name)
            room = np.sum(counts, axis=0)
            for domain in able[np.lexsort((first_name[able], room[able]))][:MAX_DOMAINS].tolist():
                yield numbers == domain

    # -- the result ------------------------------------------------------------------------------

    def _merge_placements(self, groups: list[PlacementRequest], placed: dict[str | None, list[Placement]]) -> Placement:
        named = [(group.group, placement) for group in groups for placement in placed[group.group]]
        if len(named) == 1 and named[0][0] is None:
            return named[0][1]
        slices = [
            HostSlice.model_validate({**host_slice.model_dump(), "group": group})
            for group, placement in named
            for host_slice in placement.slices
        ]
        host_indices = np.array(sorted({self._host_index(host_slice.host) for host_slice in slices}), np.intp)
        placements = [placement for _, placement in named]
        level = level_between(self._snapshot, host_indices) if len(host_indices) > 1 else TopologyLevel.HOST
        inside = [p.bandwidth_gb_s for p in placements if len(p.gpu_uuids) > 1]
        network = [bandwidth_between(self._snapshot, host_indices, level)] if len(host_indices) > 1 else []
        return Placement(
            slices=slices,
            level=level,
            bandwidth_gb_s=min([*inside, *network], default=0.0),
            score=round(float(np.mean([placement.score for placement in placements])), 6),
            why=_why(named),
            epoch=self._epoch,
        )

    def _host_index(self, host: str) -> int:
        host_index = self._snapshot.host_index(host)
        assert host_index is not None, "it was just placed there"
        return host_index


def _one_share_per_gpu(group: PlacementRequest, placed: dict[str | None, list[Placement]]) -> PlacementRequest:
    """Exclude the GPUs that the gang has already. A gang gets one share of a GPU: its ranks could not tell two shares
    apart.
    """
    if group.resources.share is None or not placed:
        return group
    taken = frozenset(
        uuid for placements in placed.values() for placement in placements for uuid in placement.gpu_uuids
    )
    return replace(group, excluded_gpus=group.excluded_gpus | taken)


def _orders(hardest: list[PlacementRequest]) -> Iterator[list[PlacementRequest]]:
    """Yield the groups hardest first, then in other orders. Then all these orders again with the opposite strategy."""
    yield from (list(order) for order in islice(permutations(hardest), MAX_ORDERS))
    spread = [group.asking_for(group.resources.model_copy(update={"strategy": _other(group)})) for group in hardest]
    yield from (list(order) for order in islice(permutations(spread), MAX_ORDERS))


def _other(group: PlacementRequest) -> Strategy:
    return Strategy.PACK if group.resources.strategy is Strategy.SPREAD else Strategy.SPREAD


def _why(shards: list[tuple[str | None, Placement]]) -> str:
    return "; ".join(f"{group}: {placement.why}" if group else placement.why for group, placement in shards)

"""Gangs that are more than equal slices: groups with different needs, and totals that may split. All or none.

Parts are seated one after another through a :class:`Statement`, the hardest first, so that nothing is held when
one of them finds no place. The gang is kept together: of the domains (one NVLink domain, then one leaf, one spine,
all hosts) the nearest level is taken in which all parts fit. Where hardest first fails, other orders are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice, permutations

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.job import GpuRequest, Strategy
from gpu_platform.domain.placement import HostSlice, Placement, TopologyLevel
from gpu_platform.domain.rows import QueueRow
from gpu_platform.scheduling.cluster.snapshot import Snapshot
from gpu_platform.scheduling.cluster.statement import Statement
from gpu_platform.scheduling.placing.candidates import CandidateIndex, Candidates
from gpu_platform.scheduling.placing.domains import together
from gpu_platform.scheduling.placing.framework import Framework
from gpu_platform.scheduling.placing.placement_builder import bandwidth_between, level_between, place
from gpu_platform.scheduling.placing.splitting import CandidateLookup, HostShard, capacities, holds, slices_of, split

MAX_DOMAINS = 16
"""Of each level, so many domains are tried, the fullest that could do first."""
MAX_ORDERS = 12
"""So many orders of seating the parts are tried on all hosts together."""


@dataclass(frozen=True)
class Part:
    group: str | None
    row: QueueRow
    """The job, as if this part were all of it."""

    @property
    def request(self) -> GpuRequest:
        return self.row.gpus


def group_requests(row: QueueRow) -> list[Part]:
    """In the order in which they were asked for."""
    return [Part(group, replace(row, gpus=request, groups=())) for group, request in row.group_requests]


class GangPlacer:
    def __init__(self, framework: Framework, snapshot: Snapshot, candidates: CandidateIndex, epoch: int) -> None:
        self._framework, self._snapshot, self._candidates, self._epoch = framework, snapshot, candidates, epoch

    def place(
        self, row: QueueRow, lookup: CandidateLookup | None = None, blocked: NDArray[np.bool_] | None = None
    ) -> Placement | None:
        """Hold a place for the whole gang and return it; None, with nothing held, if there is none.

        ``lookup`` finds the candidates for a plain request (default: what the hosts offer now). ``blocked`` hosts are
        kept for others.
        """
        with Statement(self._snapshot) as attempt:
            found = self.place_in(row, attempt, lookup, blocked)
            if found is not None:
                attempt.commit()
            return found

    def fits(self, row: QueueRow) -> bool:
        """Would it have a place as things stand? Nothing is held afterwards."""
        with Statement(self._snapshot) as attempt:
            return self.place_in(row, attempt) is not None

    def fits_empty(self, row: QueueRow) -> bool:
        """Would it have a place if every job had ended?"""
        with Statement(self._snapshot) as attempt:
            for host_index in range(len(self._snapshot)):
                attempt.empty(host_index)
            return self.place_in(row, attempt) is not None

    def place_in(
        self,
        row: QueueRow,
        attempt: Statement,
        lookup: CandidateLookup | None = None,
        blocked: NDArray[np.bool_] | None = None,
    ) -> Placement | None:
        """As :meth:`place`, within a statement of the caller's; None has changed nothing."""
        lookup = lookup or self._candidates.of
        parts = group_requests(row)
        anywhere = np.ones(len(self._snapshot), bool) if blocked is None else ~blocked
        wanted = [self._could_serve(part, lookup) & anywhere for part in parts]
        if not all(part.any() for part in wanted):
            return None
        hardest = sorted(parts, key=lambda part: self._hardest_first_key(part, wanted[parts.index(part)]))
        placed = self._on_one_host(parts, attempt, lookup, anywhere) if len(parts) == 1 else None
        # Equal slices are kept together by ``choose`` itself.
        for hosts in self._domains(parts, wanted) if placed is None and not row.is_plain else ():
            placed = self._place_all(hardest, attempt, lookup, hosts & anywhere)
            if placed is not None:
                break
        if placed is None:
            for order in _orders(hardest):
                placed = self._place_all(order, attempt, lookup, anywhere)
                if placed is not None:
                    break
        return None if placed is None else self._merge(parts, placed)

    def usable_hosts(
        self, row: QueueRow, lasting: Callable[[Candidates], NDArray[np.bool_]]
    ) -> NDArray[np.bool_] | None:
        """Hosts that some part could use, by host index, where ``lasting`` picks out what counts; None if a
        part has none.

        It says nothing about the parts getting in each other's way.
        """
        usable_hosts = np.zeros(len(self._snapshot), bool)
        for part in group_requests(row):
            hosts = self._enough(part, lambda row: lasting(self._candidates.of(row)))
            if not hosts.any():
                return None
            usable_hosts |= hosts
        return usable_hosts

    def first_unplaceable(self, row: QueueRow) -> Part | None:
        """The first part that has no place even without the others; None if they are in each other's way."""
        for part in group_requests(row):
            if not self.fits(part.row):
                return part
        return None

    # -- seating ---------------------------------------------------------------------------------

    def _place_all(
        self, order: list[Part], attempt: Statement, lookup: CandidateLookup, hosts: NDArray[np.bool_]
    ) -> dict[str | None, list[Placement]] | None:
        before = attempt.checkpoint()
        placed: dict[str | None, list[Placement]] = {}
        for part in (_apart(part, placed) for part in order):
            pieces = self._host_shards(part, lookup, hosts)
            if pieces is None:
                attempt.rollback(before)
                return None
            placed[part.group] = [self._hold(part, piece, attempt, lookup, hosts) for piece in pieces]
        return placed

    def _on_one_host(
        self, parts: list[Part], attempt: Statement, lookup: CandidateLookup, hosts: NDArray[np.bool_]
    ) -> dict[str | None, list[Placement]] | None:
        """One host anywhere is closer than any number of hosts."""
        [part] = parts
        piece = self._whole(part, lookup, hosts)
        return None if piece is None else {part.group: [self._hold(part, piece, attempt, lookup, hosts)]}

    def _host_shards(self, part: Part, lookup: CandidateLookup, hosts: NDArray[np.bool_]) -> list[HostShard] | None:
        if part.request.total is not None:
            whole = self._whole(part, lookup, hosts)
            return [whole] if whole is not None else split(part.row, self._snapshot, lookup, hosts)
        offers = lookup(part.row)
        open_hosts = np.flatnonzero(offers.fits & hosts)
        chosen = self._framework.choose(part.request, self._snapshot, offers.offers, open_hosts)
        return None if chosen is None else [HostShard(part.request, chosen)]

    def _whole(self, part: Part, lookup: CandidateLookup, hosts: NDArray[np.bool_]) -> HostShard | None:
        """A total on one host."""
        if part.request.total is None or part.request.gpus > int(self._snapshot.size.max(initial=0)):
            return None
        request = slices_of(part.request, part.request.gpus)
        offers = lookup(replace(part.row, gpus=request))
        chosen = self._framework.choose(request, self._snapshot, offers.offers, np.flatnonzero(offers.fits & hosts))
        return None if chosen is None else HostShard(request, chosen)

    def _hold(
        self, part: Part, piece: HostShard, attempt: Statement, lookup: CandidateLookup, hosts: NDArray[np.bool_]
    ) -> Placement:
        offers = lookup(replace(part.row, gpus=piece.request))
        considered = int(np.count_nonzero(offers.fits & hosts))
        placement = place(piece.request, self._snapshot, offers.offers, piece.hosts, considered, self._epoch)
        for taken in placement.slices:
            attempt.hold(taken, part.row.namespace)
        return placement

    # -- where to look ---------------------------------------------------------------------------

    def _could_serve(self, part: Part, lookup: CandidateLookup) -> NDArray[np.bool_]:
        """Hosts that could take a slice now, if there are enough of them for the part."""
        return self._enough(part, lambda row: lookup(row).fits)

    def _enough(self, part: Part, answers: Callable[[QueueRow], NDArray[np.bool_]]) -> NDArray[np.bool_]:
        request, snapshot = part.request, self._snapshot
        if request.total is not None:
            return holds(request, snapshot, capacities(part.row, snapshot, answers))
        hosts = together(request, snapshot, answers(part.row))
        return hosts if int(np.count_nonzero(hosts)) >= request.hosts else np.zeros(len(snapshot), bool)

    def _hardest_first_key(self, part: Part, hosts: NDArray[np.bool_]) -> tuple[int, int]:
        """Sorts the hardest first: large slices, then little choice."""
        needed = 1 if part.request.total is not None else part.request.hosts
        return (-(part.request.total or part.request.gpus_per_host), int(np.count_nonzero(hosts)) - needed)

    def _domains(self, parts: list[Part], wanted: list[NDArray[np.bool_]]) -> Iterator[NDArray[np.bool_]]:
        """Hosts of one domain, nearest levels first; of a level the smallest that could do, by name."""
        for numbers in self._snapshot.domains.values():
            counts = [np.bincount(numbers, weights=hosts, minlength=1) for hosts in wanted]
            enough = np.ones(len(counts[0]), bool)
            for part, count in zip(parts, counts, strict=True):
                enough &= count >= (1 if part.request.total is not None else part.request.hosts)
            able = np.flatnonzero(enough)
            if not len(able):
                continue
            first_name = np.full(len(enough), len(self._snapshot), np.int64)
            np.minimum.at(first_name, numbers, self._snapshot.by_name)
            room = np.sum(counts, axis=0)
            for domain in able[np.lexsort((first_name[able], room[able]))][:MAX_DOMAINS].tolist():
                yield numbers == domain

    # -- what comes of it ------------------------------------------------------------------------

    def _merge(self, parts: list[Part], placed: dict[str | None, list[Placement]]) -> Placement:
        pieces = [(part.group, placement) for part in parts for placement in placed[part.group]]
        if len(pieces) == 1 and pieces[0][0] is None:
            return pieces[0][1]
        slices = [
            HostSlice.model_validate({**piece.model_dump(), "group": group})
            for group, placement in pieces
            for piece in placement.slices
        ]
        host_indices = np.array(sorted({self._host_index(piece.host) for piece in slices}), np.intp)
        placements = [placement for _, placement in pieces]
        level = level_between(self._snapshot, host_indices) if len(host_indices) > 1 else TopologyLevel.HOST
        inside = [p.bandwidth_gb_s for p in placements if len(p.gpu_uuids) > 1]
        network = [bandwidth_between(self._snapshot, host_indices, level)] if len(host_indices) > 1 else []
        return Placement(
            slices=slices,
            level=level,
            bandwidth_gb_s=min([*inside, *network], default=0.0),
            score=round(float(np.mean([placement.score for placement in placements])), 6),
            why=_why(pieces),
            epoch=self._epoch,
        )

    def _host_index(self, host: str) -> int:
        host_index = self._snapshot.host_index(host)
        assert host_index is not None, "it was just placed there"
        return host_index


def _apart(part: Part, placed: dict[str | None, list[Placement]]) -> Part:
    """Of one GPU, a gang has one part at most: its ranks there would not know whose is whose."""
    if part.request.share is None or not placed:
        return part
    taken = frozenset(uuid for placements in placed.values() for place_in in placements for uuid in place_in.gpu_uuids)
    return Part(part.group, replace(part.row, excluded_gpus=part.row.excluded_gpus | taken))


def _orders(hardest: list[Part]) -> Iterator[list[Part]]:
    """Hardest first, then other orders; then all that again with every part on the emptiest hosts."""
    yield from (list(order) for order in islice(permutations(hardest), MAX_ORDERS))
    spread = [Part(p.group, replace(p.row, gpus=p.request.model_copy(update={"strategy": _other(p)}))) for p in hardest]
    yield from (list(order) for order in islice(permutations(spread), MAX_ORDERS))


def _other(part: Part) -> Strategy:
    return Strategy.PACK if part.request.strategy is Strategy.SPREAD else Strategy.SPREAD


def _why(pieces: list[tuple[str | None, Placement]]) -> str:
    return "; ".join(f"{group}: {placement.why}" if group else placement.why for group, placement in pieces)

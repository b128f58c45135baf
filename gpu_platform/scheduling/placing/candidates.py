"""Which hosts could take a job. Answers are remembered per shape of request and updated where hosts changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.jobs.placement import ReasonCode
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.cluster.remembered import LeastRecentlyUsed
from gpu_platform.scheduling.cluster.snapshot import ChangeKind, HostIndices, Snapshot
from gpu_platform.scheduling.placing.framework import (
    CODES,
    FITS,
    HOST_ITSELF,
    Framework,
    HostQuery,
    NamedFilter,
    Offers,
    resized,
)

MAX_SHAPES = 512
"""How many shapes are remembered in a large cluster. Each needs about 40 bytes per host."""
SHAPE_BYTES = 64 << 20
"""In a small cluster as many shapes are remembered as fit into this."""
MAX_OVERLAYS = 10_000
_NOT_ASKED = CODES.index(ReasonCode.TOO_FEW_GPUS)


@dataclass
class Candidates:
    """The answers of all hosts to one request. Arrays by host index."""

    offers: Offers
    after_use: NDArray[np.bool_]
    """The hosts that could serve the request once all jobs have ended."""
    after_health: NDArray[np.bool_]
    """The hosts that could serve it once, in addition, all hosts and GPUs work again."""
    site_filters: Sequence[NamedFilter] = ()
    """See ``Framework.site_filters``; what they say of the hosts that they reject."""

    @property
    def fits(self) -> NDArray[np.bool_]:
        """The hosts that could serve the request now."""
        return self.offers.code == FITS

    def resized(self, n: int) -> Candidates:
        """Return a copy for ``n`` hosts. New elements have any value."""
        return replace(
            self,
            offers=self.offers.resized(n),
            after_use=resized(self.after_use, n),
            after_health=resized(self.after_health, n),
        )


def host_query(
    snapshot: Snapshot, request: PlacementRequest, more: Mapping[int, int] | None = None, *, is_now: bool = False
) -> HostQuery:
    """Return what a job asks of hosts. ``more``: further GPUs that it must not get, host index -> set. ``is_now``: it
    keeps out of windows that are closed to it now.
    """
    excluded = exclusions(snapshot, request)
    for host_index, gpus in (more or {}).items():
        excluded[host_index] = excluded.get(host_index, 0) | gpus
    return HostQuery(request.resources, excluded, request.tenant, snapshot.windows.answer(request) if is_now else None)


def shape_of(request: PlacementRequest) -> tuple[object, ...]:
    """Return everything about a request that matters to one host, exclusions aside."""
    resources = request.resources
    return (
        request.tenant,
        resources.share,
        resources.cpus_per_host,
        resources.ram_mib_per_host,
        resources.gpus_per_host,
        resources.model,
        resources.exclude_model,
        resources.min_bandwidth_gb_s,
        resources.memory_mib,
        resources.min_compute_capability,
        resources.cuda,
        resources.isolated,
        resources.reservation,
        resources.host_choice,
        resources.allow_cross_numa,
        resources.required_level,
        resources.preferred_level,
        resources.strategy,
    )


def exclusions(snapshot: Snapshot, request: PlacementRequest) -> dict[int, int]:
    """Return host index -> GPUs that the job must not get there. For a job without GPUs see ``HostQuery.all_gpus``."""
    excluded: dict[int, int] = {}
    if not request.resources.gpus_per_host:
        host_indices = (snapshot.host_index(name) for name in request.excluded_hosts)
        return {host_index: int(HOST_ITSELF) for host_index in host_indices if host_index is not None}
    for name in request.excluded_hosts:
        host_index = snapshot.host_index(name)
        if host_index is not None:
            excluded[host_index] = int(snapshot.all_gpus[host_index])
    for uuid in request.excluded_gpus:
        place = snapshot.locate(uuid)
        if place is not None:
            host_index, bit = place
            excluded[host_index] = excluded.get(host_index, 0) | 1 << bit
    return excluded


class Remembering:
    """A lookup that asks another one once for each request, until the snapshot changes."""

    def __init__(self, snapshot: Snapshot, lookup: Callable[[PlacementRequest], Candidates]) -> None:
        self._snapshot, self._lookup = snapshot, lookup
        self._version = -1
        self._answers: dict[tuple[object, ...], Candidates] = {}

    def __call__(self, request: PlacementRequest) -> Candidates:
        """Return the answers for a plain request."""
        if self._version != self._snapshot.version:
            self._version, self._answers = self._snapshot.version, {}
        key = (*shape_of(request), request.excluded_gpus, request.excluded_hosts)
        if key not in self._answers:
            self._answers[key] = self._lookup(request)
        return self._answers[key]


class CandidateIndex:
    """Requests of one shape share their answers, whatever the number of hosts. Exclusions are applied to a copy."""

    def __init__(self, framework: Framework, snapshot: Snapshot) -> None:
        self._framework = framework
        self._snapshot = snapshot
        self._shapes = LeastRecentlyUsed[_Shape]()
        self._overlays: dict[tuple[object, ...], _Overlay] = {}
        self._scored = 0
        """How often scores have become something else without a change of hosts."""

    def of(self, request: PlacementRequest) -> Candidates:
        """Return the answers for a job. They are valid until the snapshot changes. Callers must not change them."""
        key, shape = self._shape(request)
        candidates = shape.current(self._scored)
        return self._without(candidates, key, request) if request.has_exclusions else candidates

    def among(self, request: PlacementRequest, hosts: HostIndices) -> Candidates:
        """Return the answers of ``hosts`` to a job; no other host fits. For other hosts the reason is not known, nor
        whether they could serve it later. Cheaper than :meth:`of` if little is remembered of the request.
        """
        if request.excluded_gpus or request.excluded_hosts:
            return self.of(request)
        closed = self._snapshot.windows.answer(request)
        shape = self._shapes.get((*shape_of(request), closed))
        if shape is not None and shape.hosts_to_ask() <= len(hosts):
            return shape.current(self._scored)
        n = len(self._snapshot)
        offers = Offers.none(n)
        offers.code[:] = _NOT_ASKED
        query = HostQuery(request.resources, tenant=request.tenant, closed=closed)
        offers.put(hosts, self._framework.examine(query, self._snapshot, hosts))
        return Candidates(offers, np.zeros(n, bool), np.zeros(n, bool), self._framework.site_filters)

    def fitting(self, request: PlacementRequest) -> Candidates:
        """Return the answers of the hosts with enough free GPUs; no other host fits. For other hosts the reason is not
        known, nor whether they could serve it later. In a full cluster that is much cheaper than :meth:`of`.
        """
        resources = request.resources
        if not resources.gpus_per_host or resources.share is not None:
            return self.of(request)
        free = np.bitwise_count(self._snapshot.available())
        return self.among(request, np.flatnonzero(free >= resources.gpus_per_host))

    def able(self, request: PlacementRequest) -> NDArray[np.bool_]:
        """Return the hosts that could serve a job once all jobs have ended. Cheaper than :meth:`of`, because it hardly
        ever changes. Callers must not change it."""
        return self.of(request).after_use if request.has_exclusions else self._shape(request)[1].able()

    def forget_scores(self) -> None:
        """Forget how offers were rated: what scores rest on is not what it was. Which hosts fit stays remembered."""
        self._scored += 1
        self._overlays.clear()

    def _shape(self, request: PlacementRequest) -> tuple[tuple[object, ...], _Shape]:
        key = (*shape_of(request), self._snapshot.windows.answer(request))
        shape = self._shapes.get(key)
        if shape is None:
            shape = _Shape(self._framework, self._snapshot, request, self._scored)
            self._shapes.put(key, shape, max(MAX_SHAPES, SHAPE_BYTES // (40 * max(len(self._snapshot), 1))))
        return key, shape

    def _without(self, candidates: Candidates, key: tuple[object, ...], request: PlacementRequest) -> Candidates:
        key = (*key, request.excluded_gpus, request.excluded_hosts)
        overlay = self._overlays.pop(key, None)
        if overlay is None or not overlay.holds(self._snapshot):
            if len(self._overlays) >= MAX_OVERLAYS:
                del self._overlays[next(iter(self._overlays))]
            overlay = _Overlay.of(self._framework, self._snapshot, request)
        self._overlays[key] = overlay
        return overlay.over(candidates)


@dataclass(frozen=True)
class _Overlay:
    """The answers of the few hosts for which a job's exclusions matter."""

    seen: int
    facts_at: int
    hosts: HostIndices
    offers: Offers
    after_use: NDArray[np.bool_]

    @classmethod
    def of(cls, framework: Framework, snapshot: Snapshot, request: PlacementRequest) -> _Overlay:
        query, now = host_query(snapshot, request), host_query(snapshot, request, is_now=True)
        hosts = np.array(sorted(query.excluded), np.intp)
        offers = framework.examine(now, snapshot, hosts)
        after_use = framework.could_serve(query, snapshot, hosts, ChangeKind.USE)
        return cls(snapshot.version, snapshot.facts_version, hosts, offers, after_use)

    def holds(self, snapshot: Snapshot) -> bool:
        """Tell whether the answers are still valid. New facts of any machine may tell where an excluded GPU is."""
        changed_at = snapshot.changed_at[ChangeKind.USE][self.hosts].max(initial=0)
        return snapshot.facts_version == self.facts_at and bool(changed_at <= self.seen)

    def over(self, candidates: Candidates) -> Candidates:
        result = candidates.resized(len(candidates.after_use))
        result.offers.put(self.hosts, self.offers)
        result.after_use[self.hosts] = self.after_use
        return result


class _Shape:
    def __init__(self, framework: Framework, snapshot: Snapshot, request: PlacementRequest, scored: int) -> None:
        self._framework = framework
        self._snapshot = snapshot
        self._scored = scored
        self._query = HostQuery(request.resources, tenant=request.tenant)
        """Without windows: whether a host could serve the job later is not about now."""
        self._query_now = replace(self._query, closed=snapshot.windows.answer(request))
        self._seen = self._able_seen = 0
        self._candidates = Candidates(Offers.none(0), np.zeros(0, bool), np.zeros(0, bool), framework.site_filters)

    def current(self, scored: int) -> Candidates:
        snapshot, seen = self._snapshot, self._seen
        if seen != snapshot.version:
            self.able()
            used, rebuilt = (
                np.flatnonzero(snapshot.changed_at[change] > seen) for change in (ChangeKind.USE, ChangeKind.FACTS)
            )
            self._candidates.offers.put(used, self._framework.examine(self._query_now, snapshot, used))
            self._could_serve(ChangeKind.HEALTH, rebuilt, self._candidates.after_health)
            self._seen = snapshot.version
        if self._scored != scored:
            fitting, offers = np.flatnonzero(self._candidates.fits), self._candidates.offers
            rated = self._framework.rate(self._query.resources, snapshot, fitting, offers.of(fitting))
            offers.score[fitting] = rated
            self._scored = scored
        return self._candidates

    def hosts_to_ask(self) -> int:
        """Return how many hosts :meth:`current` would ask."""
        return int(np.count_nonzero(self._snapshot.changed_at[ChangeKind.USE] > self._seen))

    def able(self) -> NDArray[np.bool_]:
        snapshot = self._snapshot
        if self._able_seen != snapshot.version:
            if len(self._candidates.after_use) != len(snapshot):
                self._candidates = self._candidates.resized(len(snapshot))
            healed = np.flatnonzero(snapshot.changed_at[ChangeKind.HEALTH] > self._able_seen)
            self._could_serve(ChangeKind.USE, healed, self._candidates.after_use)
            self._able_seen = snapshot.version
        return self._candidates.after_use

    def _could_serve(self, after: ChangeKind, hosts: HostIndices, answers: NDArray[np.bool_]) -> None:
        """Ask ``hosts`` again whether they could serve after changes up to the kind ``after``."""
        if len(hosts):
            answers[hosts] = self._framework.could_serve(self._query, self._snapshot, hosts, after)

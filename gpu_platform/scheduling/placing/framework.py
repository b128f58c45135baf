"""Filter, score, choose: how one request meets all hosts.

Each **filter** removes GPUs that cannot serve. When too few are left on a host, the host is out, and the filter that
removed them is the reason. For a request without GPUs, the filters remove the host itself. The best-connected set of
the GPUs that are left is the host's **offer**. **Scores** from 0 to 1 rate the offers; their weighted sum decides.
**Choosing** takes one host, or the hosts of a gang.

Plugins work on arrays: ``hosts`` are host indices of the snapshot, and answers are arrays of the same length. An answer
for a host must depend only on the request and on the elements of that host. So after a change only the hosts that
changed are asked again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.jobs.placement import ReasonCode, TopologyLevel
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.scheduling.cluster.shared_gpus import as_rows
from gpu_platform.scheduling.cluster.snapshot import ChangeKind, GpuSets, HostIndices, Snapshot
from gpu_platform.topology.subsets import HOST_LEVELS, Subset, best_subset_for

_T = TypeVar("_T", bound=np.generic)
FITS = -1
FEW_HOSTS = 32
"""Up to so many hosts are asked one by one."""
HOST_ITSELF = np.uint64(1)
"""For a request without GPUs filters pass on the host itself, as this set. See :meth:`HostQuery.all_gpus`."""
CODES = tuple(ReasonCode)
_CODE_NUMBER = {code: number for number, code in enumerate(CODES)}
_LEVEL_NUMBER = {level: number for number, level in enumerate(HOST_LEVELS)}


@dataclass(frozen=True)
class FilterText:
    """How the reasons speak about hosts that a filter of another package rejects."""

    rejected: str
    """It follows the number of hosts, e.g. ``in maintenance``."""
    asked: str
    """What the filter asks of a host, e.g. ``a host that is not in maintenance``."""
    next_step: str
    """What must change before it lets more through, e.g. ``the maintenance must end``."""


@dataclass(frozen=True)
class HostQuery:
    """What one rank group asks of hosts, and the GPUs that it must not get: host index -> set.

    Filters work on host indices and sets, so they cannot use the names in a ``PlacementRequest``.
    """

    resources: ResourceRequest
    excluded: Mapping[int, int] = field(default_factory=dict)
    tenant: str = ""
    """Only GPUs that this tenant shares already can be shared with the job. See ``PlacementRequest.tenant``."""
    closed: frozenset[str] | None = None
    """The windows whose GPUs it cannot get now: see ``Windows.answer``. None: it can get those of all windows. Also
    where the question is about another time than now.
    """

    @property
    def wants_gpus(self) -> bool:
        """False for a request that takes only CPUs and memory."""
        return self.resources.gpus_per_host > 0

    def all_gpus(self, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        """Return all GPUs of each host. For a request without GPUs: the host itself, as the only member of the set."""
        return snapshot.all_gpus[hosts] if self.wants_gpus else np.full(len(hosts), HOST_ITSELF)


@dataclass
class Offers:
    """What each host offers, or why it offers nothing. Arrays of equal length."""

    code: NDArray[np.int8]
    """FITS, or the index of the reason in CODES."""
    left: NDArray[np.int16]
    """How many GPUs were left when the reason was found."""
    gpus: GpuSets
    level: NDArray[np.int8]
    """Index into HOST_LEVELS."""
    bandwidth_gb_s: NDArray[np.float64]
    stranded: NDArray[np.int16]
    """Free GPUs that stay behind in the NUMA nodes from which the offer takes GPUs."""
    score: NDArray[np.float64]

    @classmethod
    def none(cls, n: int) -> Offers:
        """Return empty offers for ``n`` hosts."""
        return cls(
            code=np.full(n, FITS, np.int8),
            left=np.zeros(n, np.int16),
            gpus=np.zeros(n, np.uint64),
            level=np.zeros(n, np.int8),
            bandwidth_gb_s=np.zeros(n),
            stranded=np.zeros(n, np.int16),
            score=np.zeros(n),
        )

    def put(self, hosts: HostIndices, offers: Offers) -> None:
        """Replace the offers of ``hosts``."""
        for name, array in vars(self).items():
            array[hosts] = getattr(offers, name)

    def of(self, hosts: HostIndices) -> Offers:
        """Return the offers of some hosts, in their order."""
        return Offers(**{name: array[hosts] for name, array in vars(self).items()})

    def resized(self, n: int) -> Offers:
        """Return a copy of length ``n``. New elements have any value."""
        return Offers(**{name: resized(array, n) for name, array in vars(self).items()})


def resized(array: NDArray[_T], n: int) -> NDArray[_T]:
    """Return a copy of length ``n``. New elements have any value."""
    return array.copy() if len(array) == n else np.resize(array, n)


class Filter(Protocol):
    """Decides which GPUs of a host may serve a request."""

    @property
    def code(self) -> ReasonCode:
        """The reason for hosts on which the filter leaves too few GPUs."""
        ...

    @property
    def can_change_by(self) -> ChangeKind:
        """The kind of change after which the filter may let more GPUs through."""
        ...

    @property
    def is_screened(self) -> bool:
        """True if ``round.screen`` knows all of a host that the filter looks at. With another filter in the pipeline
        the screen is off, because it might skip requests that have a place, or the other way round."""
        ...

    def applies_to(self, query: HostQuery) -> bool:
        """False: the filter would let everything through for this request, so it is not called."""
        ...

    def __call__(self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        """Return for each of ``hosts`` the GPUs that may serve, as a set of bits."""
        ...


class NamedFilter(Filter, Protocol):
    """A filter of another package."""

    @property
    def name(self) -> str:
        """The plugin's name in the policy."""
        ...

    @property
    def text(self) -> FilterText:
        """How reasons speak about hosts that it rejects."""
        ...


class Score(Protocol):
    """Rates the offer of each host, from 0 to 1."""

    name: str

    def __call__(
        self, resources: ResourceRequest, snapshot: Snapshot, hosts: HostIndices, offers: Offers
    ) -> NDArray[np.float64]:
        """Return the score of each offer, 0 to 1."""
        ...


class ChooseHosts(Protocol):
    """Chooses the gang's hosts out of those with an offer. Returns host indices in rank order, or None if there are
    too few.
    """

    def __call__(
        self, resources: ResourceRequest, snapshot: Snapshot, offers: Offers, hosts: HostIndices
    ) -> HostIndices | None:
        """Return the host indices in rank order, or None."""
        ...


@dataclass(frozen=True)
class DomainRanking:
    """The groups of hosts that could hold a gang, rated."""

    hosts: HostIndices
    """Hosts of one group are side by side, the best first."""
    starts: NDArray[np.intp]
    """Where in ``hosts`` each group begins."""
    sizes: NDArray[np.intp]
    best: NDArray[np.intp]
    """The numbers of the groups, best first."""
    worth: NDArray[np.float64]
    score_parts: dict[str, NDArray[np.float64]]
    """The weighted terms that add up to ``worth``."""


class RankDomains(Protocol):
    """Rates the domains of the nearest level that could hold the gang. Returns the level (None: all hosts) and the
    ranking.
    """

    def __call__(
        self, resources: ResourceRequest, snapshot: Snapshot, offers: Offers, hosts: HostIndices
    ) -> tuple[str | None, DomainRanking] | None:
        """Return the level and the ranking, or None if no domain could hold the gang."""
        ...


@dataclass(frozen=True)
class Framework:
    """The pipeline: filters, scores, and the functions that choose hosts and rank domains."""

    filters: Sequence[Filter]
    scores: Sequence[tuple[Score, float]]
    choose: ChooseHosts
    rank_domains: RankDomains
    binder: str = ""
    """The name of the binder of another package that chooses. Empty: ``choose`` is the platform's own."""
    site_filters: Sequence[NamedFilter] = ()
    """The filters among ``filters`` that come from other packages."""

    def number_of(self, step: Filter) -> int:
        """Return the number of a filter's reason: its index in CODES. Filters of other packages have the numbers
        after CODES.
        """
        if step.code is not ReasonCode.FILTER:
            return _CODE_NUMBER[step.code]
        return len(CODES) + next(place for place, other in enumerate(self.site_filters) if other is step)

    def examine(self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices) -> Offers:
        """Return the offers of ``hosts``."""
        offers = Offers.none(len(hosts))
        gpus = self._narrow(query, snapshot, hosts, self.filters, offers)
        self._connect(query.resources, snapshot, hosts, gpus, offers)
        fitting = np.flatnonzero(offers.code == FITS)
        if len(fitting) == len(hosts):
            offers.score = self.rate(query.resources, snapshot, hosts, offers)
        elif len(fitting):
            offers.score[fitting] = self.rate(query.resources, snapshot, hosts[fitting], offers.of(fitting))
        return offers

    def rate(
        self, resources: ResourceRequest, snapshot: Snapshot, hosts: HostIndices, offers: Offers
    ) -> NDArray[np.float64]:
        """Return the weighted sum of the scores of ``offers``, which all fit."""
        total = np.zeros(len(hosts))
        for score, weight in self.scores:
            total += weight * score(resources, snapshot, hosts, offers)
        return total

    def could_serve(
        self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices, after: ChangeKind
    ) -> NDArray[np.bool_]:
        """Tell which hosts would have an offer after every change up to the kind ``after`` went well.

        USE: all jobs have ended. HEALTH: in addition, all hosts and GPUs work again.
        """
        offers = Offers.none(len(hosts))
        lasting = [step for step in self.filters if step.can_change_by > after]
        gpus = self._narrow(query, snapshot, hosts, lasting, offers)
        self._connect(query.resources, snapshot, hosts, gpus, offers)
        return offers.code == FITS

    def usable(self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices, after: ChangeKind) -> GpuSets:
        """Return the GPUs that may serve after every change up to the kind ``after`` went well, whether they are
        connected or not.
        """
        gpus = query.all_gpus(snapshot, hosts)
        for step in self.filters:
            if step.can_change_by > after and step.applies_to(query):
                gpus = gpus & step(query, snapshot, hosts)
        return gpus

    def _narrow(
        self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices, filters: Sequence[Filter], offers: Offers
    ) -> GpuSets:
        gpus = query.all_gpus(snapshot, hosts)
        needed = max(query.resources.gpus_per_host, 1)
        for step in filters:
            if not step.applies_to(query):
                continue
            passed = gpus & step(query, snapshot, hosts)
            left = np.bitwise_count(passed)
            few = left < needed
            if few.any():
                # If the host had too few GPUs before, this filter is not the reason; GpuCountFilter is.
                out = few & (offers.code == FITS)
                if step.code is not ReasonCode.TOO_FEW_GPUS:
                    out &= passed != gpus
                offers.code[out] = self.number_of(step)
                offers.left[out] = left[out]
            gpus = passed
        return gpus

    def _connect(
        self, resources: ResourceRequest, snapshot: Snapshot, hosts: HostIndices, gpus: GpuSets, offers: Offers
    ) -> None:
        fitting = np.flatnonzero(offers.code == FITS)
        if resources.share is not None or not resources.gpus_per_host:
            self._share(resources, snapshot, hosts, gpus, offers, fitting)
            return
        machines, free = snapshot.machine[hosts[fitting]], gpus[fitting]
        if len(fitting) <= FEW_HOSTS:
            for i, machine, left in zip(fitting.tolist(), machines.tolist(), free.tolist(), strict=True):
                _offer(offers, i, best_subset_for(resources, snapshot.machines[machine], left), left)
            return
        # Equal machines with the same GPUs left offer the same.
        order = np.lexsort((free, machines))
        first = np.flatnonzero((np.diff(machines[order], prepend=-1) != 0) | (free[order] != np.roll(free[order], 1)))
        kinds = Offers.none(len(first))
        for i, (machine, left) in enumerate(
            zip(machines[order][first].tolist(), free[order][first].tolist(), strict=True)
        ):
            _offer(kinds, i, best_subset_for(resources, snapshot.machines[machine], left), left)
        kind = np.repeat(np.arange(len(first)), np.diff(first, append=len(order)))
        offers.put(fitting[order], kinds.of(kind))

    def _share(
        self,
        resources: ResourceRequest,
        snapshot: Snapshot,
        hosts: HostIndices,
        gpus: GpuSets,
        offers: Offers,
        fitting: HostIndices,
    ) -> None:
        """Choose GPUs for shares. GPUs that are shared already come first, the fullest of them before the others."""
        host_indices, able = hosts[fitting], gpus[fitting]
        offers.level[fitting] = _LEVEL_NUMBER[TopologyLevel.NUMA if resources.gpus_per_host else TopologyLevel.HOST]
        if not resources.gpus_per_host:
            return
        if resources.gpus_per_host == 1:
            width = snapshot.shared.width
            taken = snapshot.shared.percent[host_indices]
            rank = np.where(as_rows(able, width), taken, np.int16(-1))
            offers.gpus[fitting] = np.uint64(1) << rank.argmax(axis=1).astype(np.uint64)
            return
        machines, partly = (
            snapshot.machine[host_indices].tolist(),
            (able & snapshot.shared.partly[host_indices]).tolist(),
        )
        for i, number, mine, opened in zip(fitting.tolist(), machines, able.tolist(), partly, strict=True):
            machine = snapshot.machines[number]
            best = best_subset_for(resources, machine, opened) or best_subset_for(resources, machine, mine)
            _offer(offers, i, best, mine)


def _offer(offers: Offers, i: int, best: Subset | None, free: int) -> None:
    if best is None:
        offers.code[i], offers.left[i] = _CODE_NUMBER[ReasonCode.TOPOLOGY], free.bit_count()
    else:
        offers.gpus[i], offers.level[i] = best.gpus, _LEVEL_NUMBER[best.level]
        offers.bandwidth_gb_s[i], offers.stranded[i] = best.bandwidth_gb_s, best.stranded

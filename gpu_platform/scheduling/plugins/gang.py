"""Which hosts a gang gets: one host, or as many as it asks for, as close together as possible.

Levels are tried from the nearest: one NVLink domain, one leaf, one spine, all hosts. Of the domains with enough
hosts, those with one kind of GPU come first. Then the domain score decides: how much of the domain the gang fills,
how well its best hosts are connected, how idle they are, and how fast earlier jobs ran there. Within a spine, whole
leaves are used first.

A required level keeps the gang inside one of its domains. With a preferred level, no nearer level is tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.jobs.resources import ResourceRequest, Strategy
from gpu_platform.scheduling.cluster.snapshot import HostIndices, Snapshot
from gpu_platform.scheduling.placing.domains import domains_of
from gpu_platform.scheduling.placing.framework import DomainRanking, Offers
from gpu_platform.scheduling.plugins.closeness import closeness, speed_of_links


@dataclass(frozen=True)
class DomainWeights:
    """The weights of the terms in the score of a domain. Each term is between 0 and 1."""

    resources: float = 0.4
    topology: float = 0.3
    utilisation: float = 0.2
    history: float = 0.1


DOMAIN_WEIGHTS = DomainWeights()


def choose_hosts(
    resources: ResourceRequest,
    snapshot: Snapshot,
    offers: Offers,
    hosts: HostIndices,
    weights: DomainWeights = DOMAIN_WEIGHTS,
) -> HostIndices | None:
    """Return the gang's hosts in rank order, out of ``hosts``, which all have an offer. None: they are too few."""
    if len(hosts) < resources.hosts:
        return None
    if resources.hosts == 1:
        score = offers.score[hosts]
        best = hosts[score == score.max()]
        return best[[np.argmin(snapshot.by_name[best])]]
    found = rank_domains(resources, snapshot, offers, hosts, weights)
    if found is None:
        return None
    _, ranking = found
    first, size = (int(values[ranking.best[0]]) for values in (ranking.starts, ranking.sizes))
    chosen = ranking.hosts[first : first + size]
    return _closest(resources.hosts, snapshot, offers, chosen, _from_preferred(resources, snapshot))


def rank_domains(
    resources: ResourceRequest,
    snapshot: Snapshot,
    offers: Offers,
    hosts: HostIndices,
    weights: DomainWeights = DOMAIN_WEIGHTS,
) -> tuple[str | None, DomainRanking] | None:
    """Rate the domains of the nearest level (None: all hosts) that could hold the gang. None: no domain could."""
    everywhere = np.zeros(len(hosts), np.intp)
    allowed = domains_of(resources, snapshot, hosts)
    levels = {level: snapshot.domains[level][hosts] for level in _levels_from_preferred(resources, snapshot)}
    for level, domain in (*levels.items(), (None, everywhere)):
        for kind in (snapshot.kind[hosts], everywhere):
            ranking = _rank_groups(resources, snapshot, offers, hosts, _both(_both(allowed, domain), kind), weights)
            if ranking is not None:
                return level, ranking
    return None


def _levels_from_preferred(resources: ResourceRequest, snapshot: Snapshot) -> list[str]:
    """Return the levels that matter to the request, nearest first."""
    levels = list(snapshot.domains)
    if resources.preferred_level == "any":
        return []
    return levels[levels.index(resources.preferred_level) if resources.preferred_level in levels else 0 :]


def _from_preferred(resources: ResourceRequest, snapshot: Snapshot) -> list[HostIndices]:
    """Return the domain numbers of these levels."""
    return [snapshot.domains[level] for level in _levels_from_preferred(resources, snapshot)]


def _both(a: NDArray[np.intp], b: NDArray[np.intp]) -> NDArray[np.intp]:
    return a * (int(b.max()) + 1) + b


def _rank_groups(
    resources: ResourceRequest,
    snapshot: Snapshot,
    offers: Offers,
    hosts: HostIndices,
    group: NDArray[np.intp],
    weights: DomainWeights,
) -> DomainRanking | None:
    """Rate the groups that have enough hosts. None: no group has."""
    _, group, sizes = np.unique(group, return_inverse=True, return_counts=True)
    if sizes.max() < resources.hosts:
        return None
    score, name = offers.score[hosts], snapshot.by_name[hosts]
    order = np.lexsort((name, -score, group))
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    sizes = np.diff(starts, append=len(order))
    enough = sizes >= resources.hosts
    starts, sizes = starts[enough], sizes[enough]
    in_order = hosts[order]

    def mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean over the best hosts of each group, as many as the gang has."""
        total = np.concatenate(([0.0], np.cumsum(values[in_order])))
        return (total[starts + resources.hosts] - total[starts]) / resources.hosts

    filled = resources.hosts / sizes
    score_parts = {
        "resources": weights.resources * (filled if resources.strategy is Strategy.PACK else 1.0 - filled),
        "topology": weights.topology * mean((closeness(offers) + speed_of_links(offers)) / 2.0),
        "utilisation": weights.utilisation * mean(1.0 - snapshot.load),
        "history": weights.history * mean(np.clip(snapshot.speed / 2.0, 0.0, 1.0)),
    }
    # Rounded, because the same terms can add up differently at different places of the array.
    worth = np.round(sum(score_parts.values(), np.zeros(len(starts))), 9)
    best = np.lexsort((name[order[starts]], -worth))
    return DomainRanking(in_order, starts, sizes, best, worth, score_parts)


def _closest(
    count: int, snapshot: Snapshot, offers: Offers, hosts: HostIndices, levels: Sequence[HostIndices]
) -> HostIndices:
    """Return the best ``count`` hosts of a group: best level first, then in the fewest domains, neighbours side by
    side.
    """
    name = snapshot.by_name[hosts]
    sizes, firsts = [], []
    for numbers in levels:
        _, domain, size = np.unique(numbers[hosts], return_inverse=True, return_counts=True)
        first_name = np.full(len(size), len(snapshot), np.int64)
        np.minimum.at(first_name, domain, name)
        sizes.append(-size[domain])
        # A host that is alone in its domain gets no advantage from that.
        firsts.append(np.where(size == 1, -1, first_name)[domain])
    nested = [key for pair in zip(firsts, sizes, strict=True) for key in pair]
    # A host without a known leaf may be in an NVLink rack, so the NVLink domain counts first.
    if len(levels) == len(snapshot.domains):
        nested = nested[2:] + nested[:2]
    taken = np.lexsort((name, -offers.score[hosts], *nested, offers.level[hosts]))[:count]
    return _in_rank_order(snapshot, hosts[taken], levels)


def _in_rank_order(snapshot: Snapshot, hosts: HostIndices, levels: Sequence[HostIndices]) -> HostIndices:
    """Put neighbours side by side, large domains first. So the hosts at the end, the spares, are those without
    neighbours.
    """
    name = snapshot.by_name[hosts]
    keys = [name]
    for numbers in (*levels, snapshot.kind):
        _, domain, size = np.unique(numbers[hosts], return_inverse=True, return_counts=True)
        first = np.full(len(size), len(snapshot), np.int64)
        np.minimum.at(first, domain, name)
        keys += [first[domain], -size[domain]]
    return hosts[np.lexsort(keys)]

"""Builds the Placement on the chosen hosts, with the sentence that says why, and the table of their scores."""

from __future__ import annotations

import numpy as np

from gpu_platform.domain.hosts.share import Share, ShareGrant, ShareMode
from gpu_platform.domain.jobs.placement import HostSlice, Placement, ScoreRow, ScoreTable, TopologyLevel
from gpu_platform.domain.jobs.resources import NETWORK_GB_S, ResourceRequest, Strategy
from gpu_platform.domain.placing.capacity import describe_host_resources, describe_share
from gpu_platform.scheduling.cluster.snapshot import HostIndices, Snapshot
from gpu_platform.scheduling.placing.framework import Framework, Offers
from gpu_platform.topology.machine import members
from gpu_platform.topology.mig import mig_model
from gpu_platform.topology.subsets import HOST_LEVELS

NO_TABLE = ScoreTable()

_IN_WORDS = {
    TopologyLevel.NVLINK_NUMA: "in one NVLink ring{links} on one NUMA node",
    TopologyLevel.NVLINK: "in one NVLink ring{links}",
    TopologyLevel.NUMA: "on one NUMA node",
    TopologyLevel.SOCKET: "on one socket",
    TopologyLevel.HOST: "across sockets",
    TopologyLevel.NVLINK_DOMAIN: "of one NVLink domain",
    TopologyLevel.LEAF: "under one leaf switch",
    TopologyLevel.SPINE: "under one spine switch",
    TopologyLevel.ANY: "on any hosts",
}
SHOWN = 3


def build_placement(
    resources: ResourceRequest,
    snapshot: Snapshot,
    offers: Offers,
    chosen: HostIndices,
    considered: int,
    epoch: int,
    scores: ScoreTable = NO_TABLE,
) -> Placement:
    """Return the placement on the ``chosen`` hosts. ``considered``: how many hosts had an offer."""
    host_indices = chosen.tolist()
    slices = []
    for host_index in host_indices:
        gpus = snapshot.gpus_of(host_index, int(offers.gpus[host_index]))
        slices.append(
            HostSlice(
                host=snapshot.names[host_index],
                gpu_uuids=[uuid for uuid, _ in gpus],
                gpu_indices=[index for _, index in gpus],
                shares=choose_shares(resources.share, snapshot, host_index, int(offers.gpus[host_index]))
                if resources.share
                else [],
                cpus=resources.cpus_per_host,
                ram_mib=resources.ram_mib_per_host,
            )
        )
    inside = HOST_LEVELS[int(offers.level[chosen].max())]
    level = inside if len(host_indices) == 1 else level_between(snapshot, chosen)
    bandwidth = float(offers.bandwidth_gb_s[chosen].min())
    if len(host_indices) > 1:
        network = bandwidth_between(snapshot, chosen, level)
        bandwidth = min(bandwidth, network) if resources.gpus_per_host > 1 else network
    return Placement(
        slices=slices,
        level=level,
        bandwidth_gb_s=bandwidth,
        score=round(float(offers.score[chosen].mean()), 6),
        why=_why(resources, snapshot, offers, host_indices, inside, level, considered),
        scores=scores,
        epoch=epoch,
    )


def choose_shares(share: Share, snapshot: Snapshot, host_index: int, gpus: int) -> list[ShareGrant]:
    """Return what the job gets of each GPU of a set. Every GPU of the set must have capacity for ``share``."""
    if share.mig_profile is None:
        mps = snapshot.mps[host_index] and share.mode is not ShareMode.TIME_SLICE
        mode = ShareMode.MPS if mps else ShareMode.TIME_SLICE
        grant = ShareGrant(mode=mode, percent=share.percent or 0, memory_mib=share.memory_mib or 0)
        return [grant] * gpus.bit_count()
    granted = []
    machine = snapshot.machines[snapshot.machine[host_index]]
    for position in members(gpus):
        gpu = machine.gpus[position]
        model = mig_model(gpu.model)
        profile = model.profile(share.mig_profile) if model else None
        start = model.best_start(share.mig_profile, int(snapshot.shared.mig[host_index, position])) if model else None
        if model is None or profile is None or start is None:
            raise AssertionError(f"the filters let {gpu.model} through, which has no room for {share.mig_profile}")
        granted.append(model.grant(profile, start, gpu.memory_mib))
    return granted


def level_between(snapshot: Snapshot, chosen: HostIndices) -> TopologyLevel:
    """Return the nearest level at which all these hosts are in one domain."""
    if len(set(snapshot.domains["nvlink"][chosen].tolist())) == 1:
        return TopologyLevel.NVLINK_DOMAIN
    if len(set(snapshot.leaf[chosen].tolist())) == 1:
        return TopologyLevel.LEAF
    if len(set(snapshot.spine[chosen].tolist())) == 1:
        return TopologyLevel.SPINE
    return TopologyLevel.ANY


def bandwidth_between(snapshot: Snapshot, chosen: HostIndices, level: TopologyLevel) -> float:
    """Return the bandwidth between these hosts at that ``level``, in GB/s per GPU."""
    if level is not TopologyLevel.NVLINK_DOMAIN:
        return NETWORK_GB_S
    return min(snapshot.machines[number].port_gb_s for number in snapshot.machine[chosen].tolist())


def _why(
    resources: ResourceRequest,
    snapshot: Snapshot,
    offers: Offers,
    host_indices: list[int],
    inside: TopologyLevel,
    level: TopologyLevel,
    considered: int,
) -> str:
    """See ``Placement.why``."""
    count = resources.gpus_per_host
    text = f"{count} GPU{'' if count == 1 else 's'}" if count else describe_host_resources(resources)
    if resources.share is not None:
        text = f"{describe_share(resources.share)} of {text}"
    if count > 1:
        text += " " + _IN_WORDS[inside].format(
            links=_links(snapshot, host_indices[0], int(offers.gpus[host_indices[0]]))
        )
    if len(host_indices) == 1:
        text += f" of {snapshot.names[host_indices[0]]}"
    else:
        text += f" on each of {len(host_indices)} hosts {_IN_WORDS[level]}"
    if considered == len(host_indices):
        return f"{text}; the only {'host' if considered == 1 else 'hosts'} that {'fits' if considered == 1 else 'fit'}"
    how = "emptiest" if resources.strategy is Strategy.SPREAD else "best packed"
    first = "best connected, then " if count else "fewest free GPUs, then " if how == "best packed" else ""
    return f"{text}; {first}{how}, of {considered} hosts that fit"


def _links(snapshot: Snapshot, host_index: int, gpus: int) -> str:
    """Say how many NVLinks join two neighbours, if all pairs have the same number."""
    chosen = members(gpus)
    links = snapshot.machines[snapshot.machine[host_index]].links
    counts = {int(links[a, b]) for a in chosen for b in chosen if a < b}
    return f" ({counts.pop()} links)" if len(counts) == 1 else ""


def score_table(
    resources: ResourceRequest,
    snapshot: Snapshot,
    framework: Framework,
    offers: Offers,
    chosen: HostIndices,
    hosts: HostIndices,
) -> ScoreTable:
    """Return the scores of ``chosen`` and the next best of ``hosts``, which all had an offer.

    Call it before the GPUs are held, because scores look at free GPUs. Only the rows that are shown are computed; for
    a gang the cost is that of choosing once more.
    """
    if len(chosen) > 1 and framework.binder:
        return ScoreTable()  # the ranking of domains did not decide
    return (
        _of_domains(resources, snapshot, framework, offers, hosts)
        if len(chosen) > 1
        else _of_hosts(resources, snapshot, framework, offers, int(chosen[0]), hosts)
    )


def _of_hosts(
    resources: ResourceRequest,
    snapshot: Snapshot,
    framework: Framework,
    offers: Offers,
    winner: int,
    hosts: HostIndices,
) -> ScoreTable:
    others = hosts[hosts != winner]
    total = offers.score[others]
    if len(others) > SHOWN:
        # Keep all that are as good as the last one that is shown: among equals the name decides.
        others = others[total >= np.partition(total, -SHOWN)[-SHOWN]]
        total = offers.score[others]
    best = others[np.lexsort((snapshot.by_name[others], -total))[: SHOWN - 1]]
    shown = np.concatenate(([winner], best)).astype(np.intp)
    these = offers.of(shown)
    rest, parts = these.score.copy(), dict[str, list[float]]()
    for score, weight in framework.scores[:-1]:
        part = weight * score(resources, snapshot, shown, these)
        parts[score.name], rest = part.tolist(), rest - part
    for score, _ in framework.scores[-1:]:
        parts[score.name] = rest.tolist()  # the parts add up to the total, so the last score is not asked again
    rows = [
        ScoreRow(
            candidate=snapshot.names[host_index],
            total=round(float(offers.score[host_index]), 6),
            parts={name: round(values[number], 6) + 0.0 for name, values in parts.items()},
        )
        for number, host_index in enumerate(shown.tolist())
    ]
    return ScoreTable(rows=rows, others=len(hosts) - len(rows))


def _of_domains(
    resources: ResourceRequest, snapshot: Snapshot, framework: Framework, offers: Offers, hosts: HostIndices
) -> ScoreTable:
    found = framework.rank_domains(resources, snapshot, offers, hosts)
    if found is None:
        return ScoreTable()
    level, ranking = found
    shown = ranking.best[:SHOWN].tolist()
    firsts = [int(ranking.hosts[ranking.starts[number]]) for number in shown]
    labels = ["all hosts" if level is None else snapshot.domain_name(level, host_index) for host_index in firsts]
    rows = [
        ScoreRow(
            candidate=label if labels.count(label) == 1 else f"{label}, {_model(snapshot, host_index)}",
            total=round(float(ranking.worth[number]), 6),
            parts={name: round(float(values[number]), 6) for name, values in ranking.score_parts.items()},
        )
        for label, host_index, number in zip(labels, firsts, shown, strict=True)
    ]
    return ScoreTable(rows=rows, others=len(ranking.best) - len(rows))


def _model(snapshot: Snapshot, host_index: int) -> str:
    return " and ".join(sorted({gpu.model for gpu in snapshot.machines[snapshot.machine[host_index]].gpus}))

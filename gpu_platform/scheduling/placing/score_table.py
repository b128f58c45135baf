"""The score table of a placement: what the chosen host and the next best were worth, score by score."""

from __future__ import annotations

import numpy as np

from gpu_platform.domain.jobs.placement import ScoreRow, ScoreTable
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.scheduling.cluster.snapshot import HostIndices, Snapshot
from gpu_platform.scheduling.placing.framework import Framework, Offers

SHOWN = 3


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

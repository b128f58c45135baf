"""Orders of the queue and what is known of run times, on parts of traces that nothing was tuned on.

``python -m tests.benchmarks.bench_orders --data DIR [--jobs N] [--parts philly:10000 kalos:0] [--seeds 3 4]``, or the
variable ``TRACES``: a folder with ``gang/``. What is learned of run times is learned from the jobs before the part, and
from those of the part that have ended. Load, time limits and cluster are as in ``bench_simulation``. With ``--limited``
only this part of the jobs has a time limit.

The figures of a part are means over its seeds. *p95 by size* are those of jobs with 1, 2 to 8, 9 to 64 and more GPUs.
*Gap* is how much of the difference in mean wait between the first policy and the oracle is gained. The oracle goes by
the order ``shortest``, and knows run times exactly, also as time limits. *Broken* promises are those of jobs that
started later than the earliest start that they were ever promised. With ``--estimates``, *near* are estimates within a
tenth of the wait, *error* is their median error as a part of the wait, and *within* are jobs that started within the
interval that was told, of those that came after the first third. ``--only "order: priority"`` runs one policy.
"""

from __future__ import annotations

import argparse
import math
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from gpu_platform.domain.placing.scheduler_input import HostRow
from gpu_platform.pages.plots import Bars, bars, image
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.simulator.engine import simulate
from gpu_platform.scheduling.simulator.inputs.cluster_file import ClusterFile, HostGroup
from gpu_platform.scheduling.simulator.inputs.files import load_trace
from gpu_platform.scheduling.simulator.inputs.run_times import run_times_of
from gpu_platform.scheduling.simulator.inputs.time_limits import LimitFactors, with_limits
from gpu_platform.scheduling.simulator.inputs.trace import Trace, TraceJob
from gpu_platform.scheduling.simulator.observers import Observers
from gpu_platform.scheduling.simulator.reports.report import SIZES
from gpu_platform.scheduling.simulator.reports.told import estimates_of, promises_of

HOST_GPUS, LOAD, EARLIER = 8, 0.9, 6000
FILES = {"philly": "philly_jobs.csv.gz", "kalos": "kalos_converted_319.csv"}
PARTS = ("philly:10000", "philly:30000", "philly:65000", "kalos:0")
DEFAULT, ORACLE = "order: priority", "oracle"


@dataclass(frozen=True)
class Case:
    """A policy, and what its scheduler knows of run times."""

    policy: Policy
    run_times: str = "learned"


CASES = {
    DEFAULT: Case(Policy()),
    "priority, by limits": Case(Policy(), "limits"),
    "shortest": Case(Policy(order="shortest")),
    "shortest, by limits": Case(Policy(order="shortest"), "limits"),
    "shortest, not by size": Case(Policy(order="shortest", order_weights={"size": 0.0})),
    "least_work": Case(Policy(order="multifactor", order_weights={"shortest": 0.0, "least_work": 2.0})),
    "size_classes": Case(Policy(order="size_classes")),
    "fair_share": Case(Policy(order="fair_share")),
    "multifactor": Case(Policy(order="multifactor")),
    ORACLE: Case(Policy(order="shortest"), "known"),
}


@dataclass(frozen=True)
class Figures:
    """What one run gave. Waits in seconds."""

    mean: float
    p95: tuple[float, ...]
    gangs: float
    used: float
    longest: float
    promises: float
    broken: float
    near: float
    error: float
    within: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("TRACES"))
    parser.add_argument("--jobs", type=int, default=2500)
    parser.add_argument("--parts", nargs="+", default=PARTS)
    parser.add_argument("--seeds", nargs="+", type=int, default=(3, 4))
    parser.add_argument("--estimates", type=int, default=0, help="how many jobs are asked about")
    parser.add_argument("--limited", type=float, default=1.0, help="part of the jobs with a time limit")
    parser.add_argument("--only", nargs="+", default=list(CASES))
    parser.add_argument("--plot", type=Path, help="draw mean waits and p95 by size into this SVG file")
    options = parser.parse_args()
    if options.data is None:
        print("nothing to do: no --data DIR, and no variable TRACES")
        return
    parts: dict[str, dict[str, Figures]] = {}
    for part in options.parts:
        name, _, skip = part.partition(":")
        trace = load_trace(Path(options.data) / "gang" / FILES[name])
        parts[part] = compare(part, trace, int(skip), options)
    if options.plot:
        options.plot.write_text(drawn(parts))


def drawn(parts: Mapping[str, Mapping[str, Figures]]) -> str:
    """Return the figures as an image: mean waits, and p95 by size of the jobs, each as a part of the first policy's."""
    cases = list(next(iter(parts.values())))
    charts = [_chart("mean wait, all jobs", parts, lambda one: one.mean)]
    for number, (least, most) in enumerate(SIZES):
        size = "1 GPU" if most == 1 else f"more than {least - 1} GPUs" if most is None else f"{least} to {most} GPUs"
        charts.append(_chart(f"wait, p95, jobs with {size}", parts, lambda one, number=number: one.p95[number]))
    return image(charts, cases)


def _chart(title: str, parts: Mapping[str, Mapping[str, Figures]], wait: Callable[[Figures], float]) -> str:
    """Draw ``wait`` of each policy and part, divided by that of the first policy. No bar where that is 0 or missing."""
    firsts = [wait(next(iter(figures.values()))) for figures in parts.values()]
    series = [
        Bars(
            case,
            [
                wait(figures[case]) / first if first > 0 else math.nan
                for figures, first in zip(parts.values(), firsts, strict=True)
            ],
            color,
        )
        for color, case in enumerate(next(iter(parts.values())))
    ]
    return bars(title, list(parts), series, "{:.0%}".format, title)


def compare(part: str, trace: Trace, skip: int, options: argparse.Namespace) -> dict[str, Figures]:
    found: dict[str, list[Figures]] = {name: [] for name in options.only}
    for seed in options.seeds:
        earlier, jobs = split(trace, skip, options.jobs, seed, options.limited)
        cluster, until_s = cluster_for(jobs), jobs[-1].submit_s
        for name in options.only:
            found[name].append(run(name, CASES[name], earlier, jobs, cluster, until_s, options.estimates))
    gangs = sum(job.gpus.hosts > 1 for job in jobs)
    print(f"\n{part}: {len(jobs)} jobs, {gangs} on several hosts, on {len(cluster)} hosts; seeds {options.seeds}")
    print(f"  {'':22}{'mean':>9}{'gain':>7}{'gap':>7}{'p95 by size, hours':>32}{'gangs':>8}", end="")
    print(f"{'longest':>9}{'used':>8}{'promised':>9}{'broken':>7}{'near':>6}{'error':>7}{'within':>8}")
    first = mean_of(found[options.only[0]])
    best = mean_of(found[ORACLE]) if ORACLE in found else first
    for name, runs in found.items():
        one = mean_of(runs)
        gap = (first.mean - one.mean) / (first.mean - best.mean) if first.mean > best.mean else math.nan
        p95 = " ".join(f"{seconds / 3600:7.2f}" for seconds in one.p95)
        print(
            f"  {name:22}{one.mean / 60:7.1f} m{1 - one.mean / first.mean:7.0%}{gap:7.0%}{p95:>32}"
            f"{one.gangs / 3600:6.1f} h{one.longest / 3600:7.1f} h{one.used:8.1%}"
            f"{one.promises:9.0f}{one.broken:7.0f}{one.near:6.0%}{one.error:7.0%}{one.within:8.0%}",
            flush=True,
        )
    return {name: mean_of(runs) for name, runs in found.items()}


def split(
    trace: Trace, skip: int, count: int, seed: int, limited: float = 1.0
) -> tuple[list[TraceJob], list[TraceJob]]:
    """Return the jobs that ended before the part begins, and the part. ``limited``: what part has time limits."""
    begin = max(0, skip - EARLIER)
    jobs = with_limits(trace.part(begin, skip - begin + count), LimitFactors.read("1-5"), seed).jobs
    draw = random.Random(seed)
    jobs = [job if draw.random() < limited else job.model_copy(update={"time_limit_s": None}) for job in jobs]
    before, part = jobs[: skip - begin], jobs[skip - begin :]
    return [job for job in before if job.submit_s + job.duration_s <= part[0].submit_s], part


def cluster_for(jobs: Sequence[TraceJob]) -> list[HostRow]:
    begin_s, until_s = jobs[0].submit_s, jobs[-1].submit_s
    asked = sum(job.gpus.gpus * min(job.duration_s, until_s - job.submit_s) for job in jobs) / (until_s - begin_s)
    hosts = math.ceil(max(asked / LOAD, max(job.gpus.gpus for job in jobs)) / HOST_GPUS)
    return ClusterFile(hosts=[HostGroup(count=hosts, machine="dgx-h100")], leaf_size=8).rows()


def run(
    name: str,
    case: Case,
    earlier: Sequence[TraceJob],
    jobs: Sequence[TraceJob],
    cluster: Sequence[HostRow],
    until_s: float,
    estimates: int,
) -> Figures:
    if name == ORACLE:
        jobs = [job.model_copy(update={"time_limit_s": max(1.0, job.duration_s)}) for job in jobs]
    observers = Observers(estimates=estimates, run_times=run_times_of(case.run_times, earlier))
    done = simulate(Trace("part", list(jobs)), cluster, case.policy, observers=observers)
    waits = np.array([(record.first_start_s or 0.0) - record.job.submit_s for record in done.records])
    gpus = np.array([record.job.gpus.gpus for record in done.records])
    sizes = [(gpus >= least) & (gpus <= (most or math.inf)) for least, most in SIZES]
    told, promises = estimates_of(done), promises_of(done)
    errors = [
        abs(one.started_at_s - one.start_s) / max(1.0, one.started_at_s - one.asked_at_s)
        for one in done.told.estimates
        if one.start_s is not None and one.started_at_s is not None
    ]
    intervals = [
        one.between_s[0] - 1.0 <= one.started_at_s <= one.between_s[1] + 1.0
        for one in done.told.estimates[len(done.told.estimates) // 3 :]
        if one.between_s is not None and one.started_at_s is not None
    ]
    return Figures(
        mean=float(waits.mean()),
        p95=tuple(float(np.percentile(waits[those], 95)) if those.any() else math.nan for those in sizes),
        gangs=float(waits[gpus > HOST_GPUS].mean()) if (gpus > HOST_GPUS).any() else math.nan,
        used=done.timeline.integral("held", done.begin_s, until_s) / (done.gpus * (until_s - done.begin_s)),
        longest=float(waits.max()),
        promises=promises.given,
        broken=promises.broken,
        near=told.near,
        error=float(np.median(errors)) if errors else math.nan,
        within=float(np.mean(intervals)) if intervals else math.nan,
    )


def mean_of(runs: Sequence[Figures]) -> Figures:
    means = {field.name: np.mean([getattr(one, field.name) for one in runs], axis=0) for field in fields(Figures)}
    p95 = tuple(means.pop("p95").tolist())
    return Figures(p95=p95, **{name: float(value) for name, value in means.items()})


if __name__ == "__main__":
    main()

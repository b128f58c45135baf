"""How well it places and how long jobs wait, on real traces.

``python -m tests.benchmarks.bench_simulation --data DIR``, or the variable ``TRACES``: a folder with ``openb/`` and
``gang/``, see docs/how-to/simulate.md for where they come from. Without it only made-up jobs are simulated.

openb follows FGD's protocol (Weng et al., USENIX ATC'23): tasks, drawn with replacement, arrive at the empty cluster
in the published order; each is tried once; nothing leaves. Two differences, both printed: every task gets whole GPUs,
since the core shares none yet, and requests for CPUs and host memory are ignored. So the figures are not yet
comparable with the published ones: whole GPUs waste what the shares leave.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import os
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

import numpy as np

from gpu_platform.domain.rows import HostRow, QueueRow
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.scheduler import Scheduler
from gpu_platform.scheduling.simulator.cluster import ClusterFile, HostGroup
from gpu_platform.scheduling.simulator.engine import simulate
from gpu_platform.scheduling.simulator.files import load_cluster, load_trace
from gpu_platform.scheduling.simulator.fleet import Fleet
from gpu_platform.scheduling.simulator.plots import duration
from gpu_platform.scheduling.simulator.report import Report, Spread, report_on
from gpu_platform.scheduling.simulator.trace import Trace, TraceJob, gang
from tests.benchmarks import reference_queues

MARKS = (1.0, 1.3)
SPREADING = {"topology": 0.0, "bandwidth": 0.0, "strategy": -1.0}
PUBLISHED = "published, with GPUs shared, at 100 % / 130 %: Random 86.3/87.5, BestFit 92.9/93.1, FGD 95.2/95.4 %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("TRACES"))
    parser.add_argument("--seeds", type=int, default=2, help="openb: how many of the ten published orders")
    parser.add_argument("--jobs", type=int, default=4_000, help="Philly: how many jobs")
    options = parser.parse_args()
    queues("made-up jobs", Trace.of("made-up", _made_up(2_000)), _h100(32, leaf_size=8))
    if options.data is None:
        print("openb, Philly and Kalos are left out: no --data DIR")
        return
    data = Path(options.data)
    openb(data / "openb", options.seeds)
    kalos = load_trace(data / "gang" / "kalos_converted_319.csv")
    for hosts in (302, 160):  # 302 is the real cluster's size; no job is larger than 128 hosts
        queues("Kalos", kalos, _h100(hosts, leaf_size=32))
    philly = load_trace(data / "gang" / "philly_jobs.csv.gz")
    queues("Philly", philly.first(options.jobs), _h100(48, leaf_size=16))


def queues(name: str, trace: Trace, cluster: list[HostRow]) -> None:
    """Waiting and utilisation under the queue orders of ours, beside textbook queues on a mere pool of GPUs."""
    gpus = _gpus(cluster)
    trace = Trace(trace.name, [job for job in trace.jobs if job.gpus.gpus <= gpus], trace.notes)
    span_s = trace.jobs[-1].submit_s - trace.jobs[0].submit_s
    load = sum(job.gpus.gpus * job.duration_s for job in trace.jobs) / (span_s * gpus)
    print(f"\n{name}: {len(trace.jobs)} jobs, {len(cluster)} hosts, {gpus} GPUs, load {load:.0%} while they arrive")
    for label, reference in (
        ("a pool, FCFS", reference_queues.fcfs),
        ("a pool, conservative backfill", reference_queues.conservative_backfill),
    ):
        waits = reference(trace.jobs, gpus)
        end_s = max(job.submit_s + wait + job.duration_s for job, wait in zip(trace.jobs, waits, strict=True))
        print(f"  {label:30} {_waiting(Spread.of(waits))}; makespan {duration(end_s - trace.jobs[0].submit_s)}")
    for order in ("fcfs", "priority"):
        report = report_on(simulate(trace, cluster, Policy(order=order), clock=time.perf_counter), order)
        print(f"  {'ours, ' + order:30} {_summary(report)}")


def openb(folder: Path, seeds: int) -> None:
    """Placement quality; means over the orders of arrival."""
    trace = load_trace(folder / "openb_pod_list_default.csv.gz")
    jobs = {job.id: job for job in trace.jobs}
    with gzip.open(folder / "openb_pod_list_default.csv.gz", "rt") as file:
        rows = [jobs.get(row["name"]) for row in csv.DictReader(file)]  # None: a task without a GPU
    orders = np.load(folder / "arrivals-default.npz")
    cluster = load_cluster(folder / "openb_node_list_gpu_node.csv")
    print(f"\nopenb: {len(cluster)} hosts, {_gpus(cluster)} GPUs; {'; '.join(trace.notes)}\n  {PUBLISHED}")
    for name, policy in (("default policy", Policy()), ("spreading", Policy(weights=SPREADING))):
        fills = [_fill(cluster, [rows[i] for i in orders[f"seq{42 + n}"]], policy) for n in range(seeds)]
        given = " / ".join(f"{mean(fill.given[mark] for fill in fills):.2%}" for mark in MARKS)
        asked = " / ".join(f"{mean(fill.asked[mark] for fill in fills):.2%}" for mark in MARKS)
        speed = sum(fill.tried for fill in fills) / sum(fill.took_s for fill in fills)
        print(f"  {name}: GPUs given, when tasks for 100 % / 130 % of all GPUs have come: {given}")
        print(f"  {name}: shares placed, when shares of 100 % / 130 % of all GPUs have come: {asked}")
        print(f"  {name}: {speed:.0f} decisions/s, {seeds} orders of arrival")


@dataclass
class _Fill:
    given: dict[float, float] = field(default_factory=dict)
    asked: dict[float, float] = field(default_factory=dict)
    tried: int = 0
    took_s: float = 0.0


def _fill(cluster: Sequence[HostRow], arrivals: Iterable[TraceJob | None], policy: Policy) -> _Fill:
    """Each task is tried once, and stays or is dropped."""
    scheduler, fill = Scheduler(policy), _Fill()
    fleet = Fleet(cluster, scheduler)
    came_gpus = came_share = placed_share = 0.0
    for number, job in enumerate(arrivals):
        if job is None:
            continue
        row = QueueRow(f"{number:06d}", 1, job.gpus, 0, "default", "anyone", float(number))
        begin = time.perf_counter()
        scheduler.add(row)
        decision = scheduler.decide(float(number))
        fill.took_s += time.perf_counter() - begin
        fill.tried += 1
        for _, placement in decision.placements:
            fleet.take(row.job_id, placement)
            scheduler.confirm(row.job_id, row.attempt)
            placed_share += job.gpus.gpus * job.gpu_milli / 1000
        scheduler.remove(row.job_id)
        came_gpus += job.gpus.gpus
        came_share += job.gpus.gpus * job.gpu_milli / 1000
        for mark in MARKS:
            if mark not in fill.given and came_gpus >= mark * fleet.gpus:
                fill.given[mark] = fleet.held / fleet.gpus
            # The published orders end with the task before the one that would exceed 130 %.
            if came_share <= mark * fleet.gpus:
                fill.asked[mark] = placed_share / fleet.gpus
    return fill


def _made_up(count: int) -> Iterator[TraceJob]:
    """Mostly small, some gangs; the same at every call."""
    rng, at_s = random.Random(11), 0.0
    for number in range(count):
        at_s += rng.expovariate(1 / 35)
        gpus = rng.choices((1, 2, 4, 8, 16, 64), (50, 15, 10, 15, 8, 2))[0]
        yield TraceJob(
            id=f"j{number:05d}",
            submit_s=at_s,
            duration_s=rng.lognormvariate(7, 1),
            gpus=gang(gpus, 8),
            namespace="made-up",
        )


def _h100(hosts: int, leaf_size: int) -> list[HostRow]:
    return ClusterFile(hosts=[HostGroup(count=hosts, machine="dgx-h100")], leaf_size=leaf_size).rows()


def _gpus(cluster: Iterable[HostRow]) -> int:
    return sum(len(host.inventory.gpus) for host in cluster)


def _waiting(spread: Spread) -> str:
    return f"waiting mean {duration(spread.mean)}, p90 {duration(spread.p90)}, p99 {duration(spread.p99)}"


def _summary(report: Report) -> str:
    decision = report.decision_ms
    assert decision is not None
    return (
        f"{_waiting(report.waiting_s)}; makespan {duration(report.end_s - report.begin_s)}; "
        f"utilisation {report.utilisation:.1%}, fragmentation {report.fragmentation:.1%}; "
        f"{decision.count} decisions, p50 {decision.p50:.2f} ms, p99 {decision.p99:.2f} ms"
    )


if __name__ == "__main__":
    main()

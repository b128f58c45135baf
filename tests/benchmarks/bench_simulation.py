"""How long jobs wait and how busy the GPUs are, on real traces: our policies side by side, and textbook queues.

``python -m tests.benchmarks.bench_simulation --data DIR``, or the variable ``TRACES``: a folder with ``gang/``, see
docs/how-to/simulate.md for where the traces come from. Without it only made-up jobs are simulated.

- **Load.** Published traces come from clusters whose size over time nobody knows. A cluster is made so large that the
  jobs ask for LOAD of its GPUs while they arrive, but no smaller than the largest job; dgx-h100 hosts, 8 to a leaf.
- **Time limits.** The traces have none. A job's is its run time times a number drawn from 1 to 5 (the f-model: Mu'alem
  and Feitelson, IEEE TPDS 12(6), 2001), then rounded up to a limit that people choose (Tsafrir, Etsion, Feitelson,
  JSSPP 2005). No job is ended by it.
- **Utilisation** is of the time in which jobs arrive: afterwards a few long jobs run in an empty cluster.
- The textbook queues have one pool of GPUs without hosts and know run times exactly.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from gpu_platform.domain.placing.scheduler_input import HostRow
from gpu_platform.pages.plots import duration
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.simulator.engine import simulate
from gpu_platform.scheduling.simulator.inputs.cluster_file import ClusterFile, HostGroup
from gpu_platform.scheduling.simulator.inputs.files import load_trace
from gpu_platform.scheduling.simulator.inputs.time_limits import chosen_limit_s
from gpu_platform.scheduling.simulator.inputs.trace import Trace, TraceJob, gang
from gpu_platform.scheduling.simulator.observers import Observers
from gpu_platform.scheduling.simulator.reports.report import SLOWDOWN_BOUND_S, report_on
from tests.benchmarks import reference_queues

HOST_GPUS = 8
LOAD = 0.9
POLICIES = {
    "FCFS": Policy(order="fcfs", backfill="none"),
    "FCFS, other hosts may be used": Policy(order="fcfs", backfill="keep"),
    "conservative backfill": Policy(backfill="conservative"),
    "default: EASY backfill": Policy(),
    "fair share": Policy(order="fair_share"),
}
PHILLY_FROM = 48_000
"""A busy week with more gangs than most."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("TRACES"))
    parser.add_argument("--jobs", type=int, default=2_000, help="of Philly, how many jobs")
    parser.add_argument("--load", type=float, default=LOAD, help="asked for, of all GPUs")
    parser.add_argument("--only", default="", help="policies whose name contains this")
    options = parser.parse_args()
    policies = {name: policy for name, policy in POLICIES.items() if options.only in name}
    compare(Trace.of("made-up jobs", _made_up(1_500)), options.load, policies)
    if options.data is None:
        print("Philly and Kalos are left out: no --data DIR, and no variable TRACES")
        return
    folder = Path(options.data) / "gang"
    philly = load_trace(folder / "philly_jobs.csv.gz").jobs[PHILLY_FROM : PHILLY_FROM + options.jobs]
    compare(Trace("Philly", philly), options.load, policies)
    compare(load_trace(folder / "kalos_converted_319.csv"), options.load, policies)


def compare(trace: Trace, load: float, policies: dict[str, Policy]) -> None:
    jobs = [
        job.model_copy(update={"time_limit_s": limit}) for job, limit in zip(trace.jobs, limits(trace), strict=True)
    ]
    begin_s, until_s = jobs[0].submit_s, jobs[-1].submit_s
    asked = sum(job.gpus.gpus * min(job.duration_s, until_s - job.submit_s) for job in jobs) / (until_s - begin_s)
    hosts = math.ceil(max(asked / load, max(job.gpus.gpus for job in jobs)) / HOST_GPUS)
    cluster = ClusterFile(hosts=[HostGroup(count=hosts, machine="dgx-h100")], leaf_size=8).rows()
    gpus = hosts * HOST_GPUS
    gangs = sum(job.gpus.hosts > 1 for job in jobs)
    print(
        f"\n{trace.name}: {len(jobs)} jobs ({gangs} on several hosts) in {duration(until_s - begin_s)}; "
        f"{hosts} hosts, {gpus} GPUs, load {asked / gpus:.0%}"
    )
    print(f"  {'':32}{'wait p50':>10}{'p95':>10}{'mean':>10}{'gangs':>10}{'slowdown':>10}{'used':>8}{'complete':>10}"
          f"{'fair':>7}{'ms':>7}")  # fmt: skip
    for name, policy in policies.items():
        _ours(name, Trace(trace.name, jobs), cluster, policy, until_s)
    for name, queue in (
        ("textbook FCFS", reference_queues.fcfs),
        ("textbook conservative", reference_queues.conservative_backfill),
    ):
        waits = queue(jobs, gpus)
        starts = [job.submit_s + wait for job, wait in zip(jobs, waits, strict=True)]
        held = sum(
            job.gpus.gpus * max(0.0, min(until_s, start + job.duration_s) - start)
            for job, start in zip(jobs, starts, strict=True)
        )
        _line(name, jobs, waits, held / (gpus * (until_s - begin_s)))


def _ours(name: str, trace: Trace, cluster: Sequence[HostRow], policy: Policy, until_s: float) -> None:
    run = simulate(trace, cluster, policy, observers=Observers(clock=time.perf_counter))
    report = report_on(run, name)
    waits = [(record.first_start_s or 0.0) - record.job.submit_s for record in run.records]
    used = run.timeline.integral("held", run.begin_s, until_s) / (run.gpus * (until_s - run.begin_s))
    assert report.decision_ms is not None
    fair = f"{report.fairness:7.3f}{report.decision_ms.mean:7.2f}"
    _line(name, [record.job for record in run.records], waits, used, fair)


def _line(name: str, jobs: Sequence[TraceJob], waits: Sequence[float], used: float, more: str = "") -> None:
    p50, p95 = np.percentile(waits, (50, 95)).tolist()
    of_gangs = [wait for job, wait in zip(jobs, waits, strict=True) if job.gpus.hosts > 1]
    complete = [wait + job.duration_s for job, wait in zip(jobs, waits, strict=True)]
    slowdown = np.mean([
        max(1.0, total / max(SLOWDOWN_BOUND_S, job.duration_s)) for job, total in zip(jobs, complete, strict=True)
    ])  # fmt: skip
    print(
        f"  {name:32}{duration(p50):>10}{duration(p95):>10}{duration(float(np.mean(waits))):>10}"
        f"{duration(float(np.mean(of_gangs or [0.0]))):>10}{slowdown:10.1f}{used:8.1%}"
        f"{duration(float(np.mean(complete))):>10}{more}",
        flush=True,
    )


def limits(trace: Trace) -> Iterator[float]:
    """Time limits of 1 to 5 times the run time; the same at every call."""
    generator = random.Random(5)
    for job in trace.jobs:
        yield chosen_limit_s(job.duration_s * generator.uniform(1.0, 5.0))


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
            gpus=gang(gpus, HOST_GPUS),
            namespace=f"team-{number % 3}",
        )


if __name__ == "__main__":
    main()

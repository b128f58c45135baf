"""Do moves pay? Waiting times with and without defragmentation and recovery, on real traces.

``python -m tests.benchmarks.bench_moves --data DIR``, or the variable ``TRACES``: a folder with ``gang/``, see
docs/how-to/simulate.md. Cluster, load and time limits are as in ``bench_simulation``. Every job saves its work each
half hour. With failures each GPU fails every 200 days on average, for 12 hours.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from gpu_platform.domain.placing.scheduler_input import HostRow
from gpu_platform.pages.plots import duration
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.simulator.engine import simulate
from gpu_platform.scheduling.simulator.inputs.cluster_file import ClusterFile, HostGroup
from gpu_platform.scheduling.simulator.inputs.failures import random_outages
from gpu_platform.scheduling.simulator.inputs.files import load_trace
from gpu_platform.scheduling.simulator.inputs.trace import Trace
from gpu_platform.scheduling.simulator.records import SimulatedJob, SimulationRun
from gpu_platform.scheduling.simulator.reports.told import promises_of
from tests.benchmarks.bench_simulation import HOST_GPUS, LOAD, limits

CHECKPOINT_S = 1800.0
MTBF_S, REPAIR_S = 200 * 86_400.0, 12 * 3600.0
WITHOUT = Policy()
WITH = replace(WITHOUT, defragmentation=True, recovery=True)
CLASSES: dict[str, Callable[[SimulatedJob], bool]] = {
    "all": lambda one: True,
    "gangs": lambda one: one.job.gpus.hosts > 1,
    "1 GPU": lambda one: one.job.gpus.gpus == 1,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("TRACES"), required="TRACES" not in os.environ)
    parser.add_argument("--jobs", type=int, default=1_000, help="of Philly, how many jobs")
    parser.add_argument("--first", type=int, default=79_500, help="of Philly, how many jobs are left out before")
    parser.add_argument("--load", type=float, default=LOAD, help="asked for, of all GPUs")
    parser.add_argument("--seed", type=int, default=1, help="of the failures")
    parser.add_argument("--only", default="", help="traces whose name contains this")
    options = parser.parse_args()
    folder = Path(options.data) / "gang"
    philly = load_trace(folder / "philly_jobs.csv.gz").jobs[options.first : options.first + options.jobs]
    kalos = load_trace(folder / "kalos_converted_319.csv")
    for trace, fails in ((Trace("Philly", philly), False), (kalos, False), (kalos, True)):
        name = f"{trace.name}{', GPUs fail' if fails else ''}"
        if options.only in name:
            compare(name, trace, options.load, options.seed if fails else None)


def compare(name: str, trace: Trace, load: float, seed: int | None) -> None:
    """Print the figures of both policies."""
    jobs = [
        job.model_copy(update={"time_limit_s": limit, "checkpoint_s": CHECKPOINT_S})
        for job, limit in zip(trace.jobs, limits(trace), strict=True)
    ]
    begin_s, until_s = jobs[0].submit_s, jobs[-1].submit_s
    asked = sum(job.gpus.gpus * min(job.duration_s, until_s - job.submit_s) for job in jobs) / (until_s - begin_s)
    hosts = math.ceil(max(asked / load, max(job.gpus.gpus for job in jobs)) / HOST_GPUS)
    cluster = ClusterFile(hosts=[HostGroup(count=hosts, machine="dgx-h100")], leaf_size=8).rows()
    print(f"\n{name}: {len(jobs)} jobs on {hosts * HOST_GPUS} GPUs, load {asked / (hosts * HOST_GPUS):.0%}", flush=True)
    for what, policy in (("without moves", WITHOUT), ("with moves", WITH)):
        _line(what, _run(Trace(trace.name, jobs), cluster, policy, seed))


def _run(trace: Trace, cluster: Sequence[HostRow], policy: Policy, seed: int | None) -> SimulationRun:
    failures = () if seed is None else random_outages(cluster, MTBF_S, REPAIR_S, seed)
    return simulate(trace, cluster, policy, failures=failures)


def _line(what: str, run: SimulationRun) -> None:
    texts: list[str] = []
    for name, belongs in CLASSES.items():
        some = [one for one in run.records if belongs(one)]
        waits = [one.first_start_s - one.job.submit_s for one in some if one.first_start_s is not None]
        p95 = float(np.percentile(waits or [0.0], 95))
        texts.append(f"{name} {duration(float(np.mean(waits or [0.0])))} (p95 {duration(p95)})")
    lost = sum(one.lost_gpu_seconds for one in run.records) / 3600
    ends = [one.end_s - one.job.submit_s for one in run.records if one.end_s is not None]
    told = promises_of(run)
    moves = sum(one.moves for one in run.records)
    print(
        f"  {what:14} wait {'; '.join(texts)}; complete {duration(float(np.mean(ends)))}; {moves} moves, "
        f"{lost:.0f} GPU-hours lost; promises {told.given}, broken {told.broken}",
        flush=True,
    )


if __name__ == "__main__":
    main()

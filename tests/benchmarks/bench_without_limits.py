"""Jobs without time limits: how long they wait with and without dates by learned run times, on real traces.

``python -m tests.benchmarks.bench_without_limits --data DIR``, or the variable ``TRACES``: a folder with ``gang/``, see
docs/how-to/simulate.md. Cluster, load and time limits are as in ``bench_simulation``. Only ``--limited`` of the jobs
have a time limit. Run times are learned from the 3,000 jobs before each part, and from those that end in it.
"""

from __future__ import annotations

import argparse
import math
import os
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from gpu_platform.pages.plots import duration
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.simulator.engine import simulate
from gpu_platform.scheduling.simulator.inputs.cluster_file import ClusterFile, HostGroup
from gpu_platform.scheduling.simulator.inputs.files import load_trace
from gpu_platform.scheduling.simulator.inputs.run_times import run_times_of
from gpu_platform.scheduling.simulator.inputs.trace import Trace, TraceJob
from gpu_platform.scheduling.simulator.observers import Observers
from gpu_platform.scheduling.simulator.records import SimulationRun
from gpu_platform.scheduling.simulator.reports.told import promises_of
from tests.benchmarks.bench_simulation import HOST_GPUS, LOAD, limits

EARLIER = 3_000
RUNS = {
    "jobs keep their hosts": (Policy(backfill_by_run_times=False), "learned"),
    "dates by run times": (Policy(), "learned"),
    "the same, run times known": (Policy(), "known"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("TRACES"), required="TRACES" not in os.environ)
    parser.add_argument("--first", type=int, nargs="*", default=[10_000, 30_000, 48_000, 65_000, 79_500])
    parser.add_argument("--jobs", type=int, default=1_500, help="of each part of Philly")
    parser.add_argument("--limited", type=float, nargs="*", default=[0.0, 0.5], help="parts of the jobs with a limit")
    parser.add_argument("--seed", type=int, default=5, help="of who has a limit")
    options = parser.parse_args()
    philly = load_trace(Path(options.data) / "gang" / "philly_jobs.csv.gz").jobs
    for limited in options.limited:
        for first in options.first:
            part = philly[first : first + options.jobs]
            begin_s = part[0].submit_s
            before = philly[max(0, first - EARLIER) : first]
            earlier = [job for job in before if job.submit_s + job.duration_s <= begin_s]
            compare(f"Philly from {first:,}", part, earlier, limited, options.seed)
        kalos = load_trace(Path(options.data) / "gang" / "kalos_converted_319.csv").jobs
        compare("Kalos", kalos, [], limited, options.seed)


def compare(name: str, part: Sequence[TraceJob], earlier: Sequence[TraceJob], limited: float, seed: int) -> None:
    """Print the figures of all runs."""
    draw = random.Random(seed)
    jobs = [
        job.model_copy(update={"time_limit_s": limit if draw.random() < limited else None})
        for job, limit in zip(part, limits(Trace(name, list(part))), strict=True)
    ]
    begin_s, until_s = jobs[0].submit_s, jobs[-1].submit_s
    asked = sum(job.gpus.gpus * min(job.duration_s, until_s - job.submit_s) for job in jobs) / (until_s - begin_s)
    hosts = math.ceil(max(asked / LOAD, max(job.gpus.gpus for job in jobs)) / HOST_GPUS)
    cluster = ClusterFile(hosts=[HostGroup(count=hosts, machine="dgx-h100")], leaf_size=8).rows()
    print(f"\n{name}: {len(jobs)} jobs on {hosts * HOST_GPUS} GPUs, {limited:.0%} with a time limit", flush=True)
    for what, (policy, known) in RUNS.items():
        observers = Observers(run_times=run_times_of(known, earlier))
        _line(what, simulate(Trace(name, jobs), cluster, replace(policy), observers=observers))


def _line(what: str, run: SimulationRun) -> None:
    texts: list[str] = []
    for name, several in (("all", None), ("several hosts", True), ("one host", False)):
        some = [one for one in run.records if several is None or (one.job.gpus.hosts > 1) is several]
        waits = [one.first_start_s - one.job.submit_s for one in some if one.first_start_s is not None] or [0.0]
        p95, most = float(np.percentile(waits, 95)), max(waits)
        texts.append(f"{name} {duration(float(np.mean(waits)))} (p95 {duration(p95)}, longest {duration(most)})")
    told = promises_of(run)
    print(f"  {what:26} wait {'; '.join(texts)}; promises {told.given}, broken {told.broken}", flush=True)


if __name__ == "__main__":
    main()

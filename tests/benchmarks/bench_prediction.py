"""How well run times are predicted, judged on jobs that come after those that were learned from.

``python -m tests.benchmarks.bench_prediction --data DIR [--jobs N]``, or the variable ``TRACES``: a folder with
``gang/`` and ``openb/``. Each job is predicted when it comes, from those that have ended by then, if none had to wait.
The first third of a part only teaches. The published traces name neither users nor programs: what is left are
namespace, size and time limit.

*error* is the factor by which the median prediction is off, in either direction; *of the limit*, and *of the median so
far*, what one would have without it. *within* is the part of the runs that end within the 80 % interval, *below* and
*above* the rest; *width* how many times longer the interval's end is than its begin.
"""

from __future__ import annotations

import argparse
import heapq
import math
import os
import time
from bisect import insort
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gpu_platform.domain.jobs.run_time import RunTime
from gpu_platform.prediction.run_time_predictor import SHORTEST_S
from gpu_platform.scheduling.simulator.inputs.files import load_trace
from gpu_platform.scheduling.simulator.inputs.run_times import LearnedFromTrace
from gpu_platform.scheduling.simulator.inputs.time_limits import LimitFactors, with_limits
from gpu_platform.scheduling.simulator.inputs.trace import Trace, TraceJob

PARTS = (
    ("gang/philly_jobs.csv.gz", 10_000),
    ("gang/philly_jobs.csv.gz", 30_000),
    ("gang/philly_jobs.csv.gz", 65_000),
    ("gang/kalos_converted_319.csv", 0),
    ("openb/openb_pod_list_default.csv.gz", 0),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("TRACES"))
    parser.add_argument("--jobs", type=int, default=8000)
    parser.add_argument("--seed", type=int, default=3)
    options = parser.parse_args()
    if options.data is None:
        print("nothing to do: no --data DIR, and no variable TRACES")
        return
    columns = ("jobs", 7), ("error", 8), ("of limit", 10), ("of median", 10)
    columns += ("within", 8), ("below", 8), ("above", 8), ("width", 8), ("µs", 6)
    print(" " * 36 + "".join(f"{name:>{width}}" for name, width in columns))
    for name, skip in PARTS:
        trace = load_trace(Path(options.data) / name).part(skip, options.jobs)
        label = f"{Path(name).name.split('.')[0][:20]}:{skip}"
        judge(f"{label}, limits 1-5", with_limits(trace, LimitFactors.read("1-5"), options.seed))
        judge(f"{label}, no limits", trace)


def judge(label: str, trace: Trace) -> None:
    learned, so_far, running = LearnedFromTrace(), list[float](), list[tuple[float, int]]()
    told: list[tuple[TraceJob, RunTime, float]] = []
    spent = 0.0
    for number, job in enumerate(trace.jobs):
        while running and running[0][0] <= job.submit_s:
            ended = trace.jobs[heapq.heappop(running)[1]]
            learned.ended(ended)
            insort(so_far, ended.duration_s)
        begin = time.thread_time()
        run_time = learned.expect(job)
        spent += time.thread_time() - begin
        if run_time is not None and 3 * number >= len(trace.jobs):
            told.append((job, run_time, so_far[len(so_far) // 2]))
        heapq.heappush(running, (job.submit_s + job.duration_s, number))
    runs = [max(SHORTEST_S, job.duration_s) for job, _, _ in told]
    below = np.mean([run < one.low_s for run, (_, one, _) in zip(runs, told, strict=True)])
    above = np.mean([run > one.high_s for run, (_, one, _) in zip(runs, told, strict=True)])
    print(
        f"{label:36}{len(told):7}{_factor(runs, [one.median_s for _, one, _ in told]):8.2f}"
        f"{_factor(runs, [job.time_limit_s or math.nan for job, _, _ in told]):10.2f}"
        f"{_factor(runs, [max(SHORTEST_S, median) for _, _, median in told]):10.2f}"
        f"{1 - below - above:8.1%}{below:8.1%}{above:8.1%}"
        f"{np.median([one.high_s / one.low_s for _, one, _ in told]):8.1f}{spent / len(trace.jobs) * 1e6:6.0f}",
        flush=True,
    )


def _factor(runs: Sequence[float], predicted: Sequence[float]) -> float:
    return float(np.exp(np.median(np.abs(np.log(np.array(predicted) / np.array(runs))))))


if __name__ == "__main__":
    main()

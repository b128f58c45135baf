"""How much of a cluster the jobs of a trace ask for, and traces in which they ask for more or less of it."""

from __future__ import annotations

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.scheduling.simulator.inputs.trace import Trace, TraceJob

_STEPS = 60
"""Halvings of the interval in which the factor is searched."""


def offered_load(trace: Trace, gpus: int, stretch: float = 1.0) -> float:
    """Return which part of the cluster's GPU time the jobs would use up to the last arrival, if none had to wait.

    ``stretch``: the times between arrivals are multiplied by this. Jobs larger than the cluster do not count.
    """
    begin_s, end_s = (trace.jobs[0].submit_s, trace.jobs[-1].submit_s) if trace.jobs else (0.0, 0.0)
    span_s = (end_s - begin_s) * stretch
    if span_s <= 0 or gpus <= 0:
        return 0.0
    asked = sum(
        _gpus(job) * min(job.duration_s, (end_s - job.submit_s) * stretch) for job in trace.jobs if _gpus(job) <= gpus
    )
    return asked / (span_s * gpus)


def at_load(trace: Trace, gpus: int, load: float) -> Trace:
    """Return the trace with the times between arrivals multiplied so that :func:`offered_load` is ``load``.

    Raises InvalidRequest if no factor gives that load.
    """
    low, high = 1e-9, 1.0  # the load only falls with a longer time between arrivals
    most = offered_load(trace, gpus, low)
    if not 0 < load <= most:  # nor is it no number
        raise InvalidRequest(
            f"the jobs of {trace.name} cannot ask for {load:.0%} of {gpus} GPUs: "
            f"even if all arrive at once they ask for {most:.0%}; use a smaller cluster or more jobs"
        )
    while offered_load(trace, gpus, high) > load:
        low, high = high, high * 2
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if offered_load(trace, gpus, middle) > load else (low, middle)
    begin_s = trace.jobs[0].submit_s
    jobs = [job.model_copy(update={"submit_s": begin_s + (job.submit_s - begin_s) * high}) for job in trace.jobs]
    before = offered_load(trace, gpus)
    note = (
        f"the times between arrivals are multiplied by {high:.3g}: the jobs ask for {load:.0%} of the GPU time "
        f"while they arrive, and {before:.0%} in the trace itself"
    )
    return Trace(trace.name, jobs, [*trace.notes, note])


def _gpus(job: TraceJob) -> float:
    share = job.gpus.share
    fraction = 1.0 if share is None or share.percent is None else share.percent / 100
    return job.gpus.gpus * fraction

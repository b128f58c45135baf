"""Warnings about a job that is accepted although something may be unsafe or slow."""

from __future__ import annotations

from dataclasses import replace

from gpu_platform.domain.jobs.fencing import Fencing
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.texts import duration
from gpu_platform.learned.run_times import shared_run_times, traits_of
from gpu_platform.store import Store
from service.operations.checkpoints import checkpoint_warnings, uses_checkpoints
from service.operations.windows import window_warnings


def may_need_warnings(spec: JobSpec) -> bool:
    """True if :func:`warnings_of` may find something, windows aside. It does not ask the database."""
    return (
        uses_checkpoints(spec)
        or spec.fencing is Fencing.RELAXED
        or spec.time_limit_s is not None
        or _crosses_numa(spec)
    )


def warnings_of(store: Store, spec: JobSpec) -> list[str]:
    """Warnings, one sentence each, for the answer to a submission, a dry run and `jobs describe`."""
    found = checkpoint_warnings(store, spec)
    if spec.fencing is Fencing.RELAXED:
        found.append(
            "fencing is relaxed: if one of its hosts is cut off, its ranks go on there while it starts elsewhere, so "
            "two attempts may run and write at once. fencing lease ends the old ranks first"
        )
    if _crosses_numa(spec):
        found.append(
            "allow_cross_numa: GPUs of one host may lie on both sockets, and what they exchange goes through the "
            "processors' link, which is slower than PCIe or NVLink on one side"
        )
    return found + window_warnings(store, spec) + _short_limit(store, spec)


def _short_limit(store: Store, spec: JobSpec) -> list[str]:
    """A warning if most runs like this one took longer than its time limit."""
    if spec.time_limit_s is None:
        return []
    usual = shared_run_times(store).expect(replace(traits_of(spec), time_limit_s=None))
    if usual is None or usual.median_s <= spec.time_limit_s:
        return []
    low, middle, high = map(duration, (usual.low_s, usual.median_s, usual.high_s))
    return [
        f"such jobs usually run {middle} (80 %: {low} to {high}), and the time limit is {duration(spec.time_limit_s)}: "
        "it will probably be stopped before it ends"
    ]


def _crosses_numa(spec: JobSpec) -> bool:
    return any(request.allow_cross_numa for request in spec.requests)

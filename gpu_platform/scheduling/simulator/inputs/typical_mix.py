"""The mix of tasks of a trace, for ``typical_tasks`` of a policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, replace

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.scheduling.plugins.expected_tasks import tasks_of
from gpu_platform.scheduling.plugins.stranding import TypicalTask
from gpu_platform.scheduling.simulator.inputs.trace import Trace


@dataclass(frozen=True)
class TaskMix:
    """What the jobs of a trace ask of one host, and how often."""

    tasks: list[TypicalTask]
    """The most frequent first. Weights are parts of all tasks of the trace."""
    different: int
    """How many different tasks the trace has."""
    covered: float
    """The part of the trace's tasks that are in ``tasks``."""


def derive_mix(trace: Trace, covering: float = 1.0, host_size: int = 8) -> TaskMix:
    """Count what the jobs ask of one host. A gang on several hosts counts once for each host.

    ``covering``: rare tasks are left out, as long as the rest is at least this part of the trace. ``host_size``: GPUs
    of a host, for jobs that ask only for a number of GPUs. Raises InvalidRequest for a trace without jobs.
    """
    counts: Counter[TypicalTask] = Counter()
    for job in trace.jobs:
        for task, count in tasks_of(job.gpus, host_size):
            counts[task] += count
    total = sum(counts.values())
    if not total:
        raise InvalidRequest(f"{trace.name} has no jobs, so no mix of tasks follows from it")
    tasks: list[TypicalTask] = []
    covered = 0
    for task, count in sorted(counts.items(), key=lambda item: (-item[1], str(item[0]))):
        if covered >= covering * total:
            break
        tasks.append(replace(task, weight=float(f"{count / total:.4g}")))
        covered += count
    return TaskMix(tasks, len(counts), covered / total)


def as_policy(mix: TaskMix, trace: str) -> str:
    """Return the mix as YAML of a policy file."""
    lines = [
        f"# {len(mix.tasks)} of {mix.different} different tasks of {trace}, {mix.covered:.1%} of all its tasks.",
        "# They count with `weights: fragmentation`.",
        "typical_tasks:",
        *(f"- {{{', '.join(_written(task))}}}" for task in mix.tasks),
    ]
    return "\n".join(lines) + "\n"


def _written(task: TypicalTask) -> Iterator[str]:
    """Yield the fields that say something."""
    for field in fields(task):
        value = getattr(task, field.name)
        if field.default is MISSING or value != field.default or field.name in ("gpus", "weight"):
            yield f"{field.name}: {value:g}" if isinstance(value, float) else f"{field.name}: {value}"

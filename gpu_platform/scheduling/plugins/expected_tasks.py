"""The mix of tasks that is expected to come: learned from what came, or what the policy says.

What came counts half after a day. Before anything came, a mix of whole GPUs counts, and it counts as 32 tasks
for ever, so that the first few jobs do not decide alone. The mix is renewed seldom, each time half of what it rests on
is new: scores are remembered per host, and all of them follow from the mix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.scheduling.plugins.stranding import TypicalTask, percent_of

HALF_LIFE_S = 24 * 3600.0
PRIOR_TASKS = 32.0
"""The prior mix counts as so many tasks that just came."""
FIRST_TASKS = 16.0
"""The mix is renewed after so many new tasks at the earliest."""
MAX_TASKS = 128
"""The most frequent tasks are the mix."""
MAX_KNOWN = 1024
"""So many different tasks are counted at most. When there are more, the rarer half is forgotten."""
_MAX_HALVINGS = 64.0


class ExpectedTasks:
    """Counts the tasks that come. ``tasks`` is the mix, valid until :meth:`renew` returns True.

    It has no clock: times come with the requests. While at most ``MAX_KNOWN`` different tasks came, the counts do not
    depend on the order in which they came.
    """

    def __init__(self, prior: Sequence[TypicalTask], learns: bool = True) -> None:
        """``prior``: the mix before anything came. Without ``learns`` it stays the mix."""
        total = sum(task.weight for task in prior)
        self._prior = {replace(task, weight=1.0): PRIOR_TASKS * task.weight / total for task in prior}
        self._learns = learns
        self._counts: dict[TypicalTask, float] = {}
        """Task -> how often it came, in tasks that came at ``_origin``. A later task counts more."""
        self._origin = self._newest = float("-inf")
        self._total = self._new = 0.0
        self.tasks: tuple[TypicalTask, ...] = tuple(prior)

    def __len__(self) -> int:
        """Return the number of different tasks that are counted."""
        return len(self._counts)

    def note(self, requests: Sequence[ResourceRequest], at: float) -> None:
        """Count what a job asks of hosts. ``at``: when it came, in seconds on the clock of all calls."""
        if not self._learns:
            return
        self._pass_time(at)
        worth = 2.0 ** ((at - self._origin) / HALF_LIFE_S)
        for request in requests:
            for task, count in tasks_of(request):
                self._counts[task] = self._counts.get(task, 0.0) + worth * count
                self._total += worth * count
                self._new += worth * count
        if len(self._counts) > MAX_KNOWN:
            self._forget_the_rare()

    def renew(self) -> bool:
        """Return True if enough came to make a new mix. Then ``tasks`` is that mix."""
        if self._new <= 0.0:
            return False
        unit = 2.0 ** ((self._newest - self._origin) / HALF_LIFE_S)
        if self._new < max(FIRST_TASKS * unit, self._total / 2.0):
            return False
        self._new = 0.0
        weights = {task: count / unit for task, count in self._counts.items()}
        for task, count in self._prior.items():
            weights[task] = weights.get(task, 0.0) + count
        most = sorted(weights.items(), key=lambda one: (-one[1], str(one[0])))[:MAX_TASKS]
        self.tasks = tuple(replace(task, weight=weight) for task, weight in most)
        return True

    def _pass_time(self, at: float) -> None:
        self._newest = max(self._newest, at)
        if (self._newest - self._origin) / HALF_LIFE_S <= _MAX_HALVINGS:
            return
        shrink = 0.0 if not self._counts else 2.0 ** ((self._origin - self._newest) / HALF_LIFE_S)
        self._counts = {task: kept for task, count in self._counts.items() if (kept := count * shrink)}
        self._total, self._new, self._origin = self._total * shrink, self._new * shrink, self._newest

    def _forget_the_rare(self) -> None:
        kept = sorted(self._counts.items(), key=lambda one: (-one[1], str(one[0])))[: MAX_KNOWN // 2]
        self._counts = dict(kept)
        self._total = sum(self._counts.values())


def tasks_of(request: ResourceRequest, host_size: int = 8) -> Iterator[tuple[TypicalTask, int]]:
    """Yield what the job asks of one host, and of how many hosts it asks that.

    ``host_size``: GPUs of a host, for jobs that ask only for a number of GPUs.
    """
    sizes = {request.gpus_per_host: request.hosts}
    if request.total is not None:
        full, rest = divmod(request.total, host_size)
        sizes = {host_size: full, rest: 1 if rest else 0}
    for gpus, count in sizes.items():
        if count:
            task = TypicalTask(
                gpus=gpus,
                percent=percent_of(request),
                cpus=request.cpus_per_host,
                ram_mib=request.ram_mib_per_host,
                model=request.model,
                exclude_model=request.exclude_model,
                memory_mib=request.memory_mib,
                min_compute_capability=request.min_compute_capability,
            )
            yield task, count

"""The mix of tasks that is expected to come: learned from what came, or what the policy says.

What came counts half after a day. Before anything came, a prior mix counts, and it counts as 32 tasks for ever, so
that the first few jobs do not decide alone. The mix is renewed seldom: each time half of what it rests on is new, and
when the cluster gets other machines. Scores are remembered per host, and all of them follow from the mix.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.scheduling.cluster.snapshot import RegisteredHosts
from gpu_platform.scheduling.plugins.stranding import TypicalTask, percent_of

HALF_LIFE_S = 24 * 3600.0
PRIOR_TASKS = 32.0
"""The prior mix counts as so many tasks that just came."""
PRIOR_CPUS = 0.7
"""The part of the CPUs beside its GPUs for which a task of the prior asks, on the host of the median GPU."""
FIRST_TASKS = 16.0
"""The mix is renewed after so many new tasks at the earliest."""
MAX_TASKS = 128
"""The most frequent tasks are the mix."""
MAX_KNOWN = 1024
"""So many different tasks are counted at most. When there are more, the rarer half is forgotten."""
MAX_AT_ONCE = 100
"""How many jobs a decision counts: this takes about 1 ms."""
_MAX_HALVINGS = 64.0


class ExpectedTasks:
    """Counts the tasks that come. ``tasks`` is the mix, valid until :meth:`renew` returns True.

    Times are on the clock of the callers. While at most ``MAX_KNOWN`` different tasks came, the counts do not depend
    on the order in which they came.
    """

    def __init__(self, prior: Sequence[TypicalTask], learns: bool = True) -> None:
        """``prior``: the mix before anything came; its tasks get their CPUs from the hosts. Without ``learns`` it
        stays the mix, as it is."""
        self._prior = tuple(prior)
        self._learns = learns
        self._came = deque[tuple[Sequence[ResourceRequest], float]]()
        """What came and was not counted yet."""
        self._counts: dict[TypicalTask, float] = {}
        """Task -> how often it came, in tasks that came at ``_origin``. A later task counts more."""
        self._origin = self._newest = float("-inf")
        self._total = self._new = 0.0
        self._learned: dict[TypicalTask, float] = {}
        """Task -> how often it came, as of the last time that enough was new."""
        self._hosts_at = -1
        self._machines: frozenset[int] = frozenset()
        self._cpus_per_gpu = 0.0
        self.renewals = 0
        """How often the mix was renewed."""
        self.tasks: tuple[TypicalTask, ...] = self._prior

    def __len__(self) -> int:
        """Return the number of different tasks that are counted."""
        return len(self._counts)

    def note(self, requests: Sequence[ResourceRequest], at: float) -> None:
        """Note what a job asks of hosts. ``at``: when it came."""
        if self._learns:
            self._came.append((requests, at))

    def renew(self, hosts: RegisteredHosts | None = None, now: float = math.inf) -> bool:
        """Count at most ``MAX_AT_ONCE`` jobs. Return True if there is a new mix: enough is new, or the machines of
        ``hosts`` are others. ``now``: as for :meth:`count`.
        """
        self.count(now, MAX_AT_ONCE)
        unit = 2.0 ** ((self._newest - self._origin) / HALF_LIFE_S) if self._counts else 1.0
        enough = self._new > 0.0 and self._new >= max(FIRST_TASKS * unit, self._total / 2.0)
        if not (self._look_at(hosts) or enough):
            return False
        self.renewals += 1
        if enough:
            self._new = 0.0
            self._learned = {task: count / unit for task, count in self._counts.items()}
        if self._learns:
            self.tasks = self._most_frequent()
        return True

    def count(self, now: float, most: float = math.inf) -> None:
        """Count what came, at most so many jobs.

        A job that is dated later than ``now`` counts as if it came now. Otherwise it would make what came before look
        old.
        """
        while self._came and most > 0:
            requests, at = self._came.popleft()
            self._count(requests, min(at, now))
            most -= 1

    def _count(self, requests: Sequence[ResourceRequest], at: float) -> None:
        self._pass_time(at)
        worth = 2.0 ** ((at - self._origin) / HALF_LIFE_S)
        for resources in requests:
            for task, count in tasks_of(resources):
                self._counts[task] = self._counts.get(task, 0.0) + worth * count
                self._total += worth * count
                self._new += worth * count
        if len(self._counts) > MAX_KNOWN:
            self._forget_the_rare()

    def _look_at(self, hosts: RegisteredHosts | None) -> bool:
        """Tell whether there are other machines than before, or other CPUs beside most GPUs."""
        if hosts is None or hosts.facts_version == self._hosts_at:
            return False
        self._hosts_at = hosts.facts_version
        every = np.arange(len(hosts))
        machines = frozenset(np.unique(hosts.machine[every]).tolist())
        cpus_per_gpu = _cpus_per_gpu(hosts)
        same = (machines, cpus_per_gpu) == (self._machines, self._cpus_per_gpu)
        self._machines, self._cpus_per_gpu = machines, cpus_per_gpu
        return not same

    def _most_frequent(self) -> tuple[TypicalTask, ...]:
        weights = self._learned.copy()
        total = sum(task.weight for task in self._prior)
        for task in self._prior:
            cpus = int(PRIOR_CPUS * self._cpus_per_gpu * task.gpus * task.percent / 100)
            asked = replace(task, cpus=cpus, weight=1.0)
            weights[asked] = weights.get(asked, 0.0) + PRIOR_TASKS * task.weight / total
        most = sorted(weights.items(), key=lambda one: (-one[1], str(one[0])))[:MAX_TASKS]
        return tuple(replace(task, weight=weight) for task, weight in most)

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


def _cpus_per_gpu(hosts: RegisteredHosts) -> float:
    """Return the CPUs per GPU on the host of the median GPU. 0 without GPUs."""
    with_gpus = np.flatnonzero(hosts.size[: len(hosts)])
    if not len(with_gpus):
        return 0.0
    gpus = hosts.size[with_gpus]
    ratio = hosts.cpus[with_gpus] / gpus
    order = np.argsort(ratio, kind="stable")
    return float(ratio[order[np.searchsorted(np.cumsum(gpus[order]), gpus.sum() / 2.0)]])


def tasks_of(resources: ResourceRequest, host_size: int = 8) -> Iterator[tuple[TypicalTask, int]]:
    """Yield what the job asks of one host, and of how many hosts it asks that.

    ``host_size``: GPUs of a host, for jobs that ask only for a number of GPUs.
    """
    sizes = {resources.gpus_per_host: resources.hosts}
    if resources.total is not None:
        full, rest = divmod(resources.total, host_size)
        sizes = {host_size: full, rest: 1 if rest else 0}
    for gpus, count in sizes.items():
        if count:
            one = resources.slices(gpus)
            task = TypicalTask(
                gpus=gpus,
                percent=percent_of(resources),
                cpus=one.cpus_per_host,
                ram_mib=one.ram_mib_per_host,
                model=resources.model,
                exclude_model=resources.exclude_model,
                memory_mib=resources.memory_mib,
                min_compute_capability=resources.min_compute_capability,
            )
            yield task, count

"""Which hosts, tasks and GPUs of its job a step gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpu_platform.slurm.hostlists import expand
from gpu_platform.steps.environ import Layout, spread

MAX_TASKS = 100_000


class GpuPool:
    """The GPUs of the job that no step has. Only steps that ask for a number of GPUs take some; the others see all."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        """``counts``: host -> its GPUs."""
        self.counts = dict(counts)
        self._free = {host: list(range(count)) for host, count in counts.items()}

    def free(self, host: str) -> int:
        """How many are free on a host."""
        return len(self._free[host])

    def take(self, hosts: Sequence[str], wanted: Sequence[int]) -> list[list[int]] | None:
        """Take so many of each host. Returns their numbers in the job, or None: not all are free now.

        Raises ``ValueError`` if a host has fewer.
        """
        for host, count in zip(hosts, wanted, strict=True):
            if count > self.counts[host]:
                raise ValueError(f"{count} GPUs were asked for on {host}, where this job has {self.counts[host]}")
        if any(count > self.free(host) for host, count in zip(hosts, wanted, strict=True)):
            return None
        taken = []
        for host, count in zip(hosts, wanted, strict=True):
            taken.append(self._free[host][:count])
            del self._free[host][:count]
        return taken

    def put_back(self, hosts: Sequence[str], taken: Sequence[Sequence[int]]) -> None:
        """The step has ended."""
        for host, numbers in zip(hosts, taken, strict=True):
            self._free[host] = sorted([*self._free[host], *numbers])


def wanted_gpus(asked: Mapping[str, Any], layout: Layout) -> list[int] | None:
    """How many GPUs of each host srun asked for. None: it named no number, so tasks see all. Raises ``ValueError``."""
    if (each := asked.get("gpus_per_node")) is not None:
        return [int(each)] * len(layout.hosts)
    if (total := asked.get("gpus")) is not None:
        if int(total) % len(layout.hosts):
            raise ValueError(f"{total} GPUs cannot be divided by {len(layout.hosts)} hosts: write --gpus-per-node")
        return [int(total) // len(layout.hosts)] * len(layout.hosts)
    if (of_task := asked.get("gpus_per_task")) is not None:
        return [int(of_task) * tasks for tasks in layout.tasks]
    return None


def choose(asked: Mapping[str, Any], job: Layout, of_job: int | None, pool: GpuPool) -> Layout:
    """The hosts and tasks of a step: what srun said, or else as the job.

    ``of_job``: the tasks of each host, if the job says them. Hosts with free GPUs come first where srun leaves it open.
    Raises ``ValueError``.
    """
    hosts = _named(asked, list(job.hosts))
    hosts = hosts[int(asked.get("relative") or 0) :]
    if asked.get("nodelist") is None and (least := _of_a_host(asked)) is not None:
        hosts.sort(key=lambda host: pool.free(host) < least)
    if (nodes := asked.get("nodes")) is not None:
        if int(nodes) > len(hosts):
            raise ValueError(f"{nodes} hosts were asked for, but this job has {len(hosts)} for the step")
        hosts = hosts[: int(nodes)]
    if not hosts:
        raise ValueError("no host of this job is left for the step")
    ntasks, per_node = asked.get("ntasks"), asked.get("ntasks_per_node")
    if ntasks is None and per_node is None:
        if tuple(hosts) == job.hosts:
            return job
        if asked.get("nodes") is None or of_job is not None:
            tasks = dict(zip(job.hosts, job.tasks, strict=True))
            return Layout(tuple(hosts), tuple(tasks[host] for host in hosts))
    for number in (ntasks, per_node):
        if number is not None and not 0 < int(number) <= MAX_TASKS:
            raise ValueError(f"{number} tasks: write 1 to {MAX_TASKS}")
    return spread(hosts, None if ntasks is None else int(ntasks), None if per_node is None else int(per_node))


def _named(asked: Mapping[str, Any], hosts: list[str]) -> list[str]:
    if wanted := asked.get("nodelist"):
        named = expand(str(wanted))
        if unknown := [name for name in named if name not in hosts]:
            raise ValueError(f"{unknown[0]} is no host of this job; it has {', '.join(hosts)}")
        hosts = named
    gone = set(expand(str(asked["exclude"]))) if asked.get("exclude") else set[str]()
    return [host for host in hosts if host not in gone]


def _of_a_host(asked: Mapping[str, Any]) -> int | None:
    """At least so many GPUs must be free on a host for the step to start there now."""
    if asked.get("gpus_per_node") is not None:
        return int(asked["gpus_per_node"])
    if asked.get("gpus") is not None:
        return -(-int(asked["gpus"]) // int(asked.get("nodes") or 1))
    if asked.get("gpus_per_task") is not None:
        return int(asked["gpus_per_task"]) * int(asked.get("ntasks_per_node") or 1)
    return None

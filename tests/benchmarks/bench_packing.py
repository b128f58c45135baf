"""How full a cluster gets: ``python -m tests.benchmarks.bench_packing --traces DIR [--seeds 42,43] [--variants a,b]``.

The protocol of Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent", USENIX ATC 2023, on the trace that it publishes (openb, Alibaba) and its variants: into the empty cluster of
1,213 hosts come tasks sampled from the trace until they have asked for 130 % of its GPUs. Each is tried once, none
leaves. Printed is what part of all GPUs is allocated when 100 % and 130 % have arrived. What decides is the scheduler
that runs in production, with the settings that ``--settings`` names, beside FirstFit and FGD on the same arrivals.
FGD is told the mix of tasks, as published. Seeds 42 to 51 of the variant ``default`` are the published orders of
arrival.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import os
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.hosts.gpu import GpuInfo, HostInventory
from gpu_platform.domain.hosts.share import GpuUse, Share, first_use
from gpu_platform.domain.jobs.placement import HostSlice, Placement
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import GpuRow, HostRow, HostUse
from gpu_platform.domain.states import GpuState, HostState
from gpu_platform.scheduling.cluster.snapshot import Snapshot
from gpu_platform.scheduling.plugins.stranding import TypicalTask
from gpu_platform.scheduling.policy import WEIGHTS, Policy, expected_tasks
from gpu_platform.scheduling.scheduler import Scheduler
from tests.benchmarks.packing_baselines import Demand, Fgd, Room, first_fit

SEEDS = tuple(range(42, 52))
PUBLISHED = {
    "Random": (86.30, 87.47),
    "DotProd": (90.62, 90.85),
    "GPU clustering": (91.65, 91.88),
    "GPU packing": (91.78, 92.00),
    "BestFit": (92.86, 93.08),
    "FGD": (95.23, 95.39),
}
NAMESPACE = "openb"


@dataclass(frozen=True)
class Task:
    """As the trace has it: CPUs in thousandths, which is all the same to the scheduler."""

    cpu_milli: int
    ram_mib: int
    gpus: int
    percent: int
    model: str | None = None

    @property
    def request(self) -> ResourceRequest:
        # Copied, not validated: thousandths of CPUs are more than a host may have of whole ones.
        asked = {"gpus_per_host": self.gpus, "cpus_per_host": self.cpu_milli, "ram_mib_per_host": self.ram_mib}
        asked |= {"model": self.model} if self.model else {}
        share = Share(percent=self.percent, memory_mib=1) if self.gpus and self.percent < 100 else None
        return ResourceRequest(gpus_per_host=1, allow_cross_numa=True, share=share).model_copy(update=asked)

    def demand(self, models: list[str]) -> Demand:
        accepted = [part for part in (self.model or "").split("|") if part]
        able = frozenset(n for n, model in enumerate(models) if any(part in model for part in accepted))
        return Demand(self.cpu_milli, self.ram_mib, self.gpus, self.percent, able if accepted else None)

    @property
    def typical(self) -> TypicalTask:
        return TypicalTask(self.gpus, self.percent or 100, self.cpu_milli, self.ram_mib, model=self.model)


class Trace:
    def __init__(self, folder: Path, variant: str = "default") -> None:
        packed, plain = (folder / f"openb_pod_list_{variant}.csv{end}" for end in (".gz", ""))
        with gzip.open(packed, "rt") if packed.is_file() else plain.open() as file:
            self.tasks = [_task(row) for row in csv.DictReader(file)]
        with (folder / "openb_node_list_gpu_node.csv").open() as file:
            self.nodes = list(csv.DictReader(file))
        published = folder / f"arrivals-{variant}.npz"
        self._arrivals: Mapping[str, NDArray[np.int64]] = np.load(published) if published.is_file() else {}

    @property
    def capacity(self) -> int:
        """Percent of all GPUs."""
        return 100 * sum(int(node["gpu"]) for node in self.nodes)

    def order(self, seed: int) -> list[int]:
        """The nodes in the order in which equals are taken."""
        if f"perm{seed}" in self._arrivals:
            return self._arrivals[f"perm{seed}"].tolist()
        return np.random.default_rng([seed, 0]).permutation(len(self.nodes)).tolist()

    def hosts(self, seed: int) -> list[HostRow]:
        """Named so that equals are taken in that order."""
        place = np.argsort(self.order(seed))
        return [_host(f"{place[number]:04d}-{node['sn']}", node) for number, node in enumerate(self.nodes)]

    def arrivals(self, seed: int) -> Iterator[Task]:
        if f"seq{seed}" in self._arrivals:
            for number in self._arrivals[f"seq{seed}"].tolist():
                yield self.tasks[number]
            return
        draw, arrived = np.random.default_rng([seed, 1]), 0
        while arrived < 1.3 * self.capacity:
            task = self.tasks[int(draw.integers(len(self.tasks)))]
            arrived += task.gpus * task.percent
            yield task

    def typical(self) -> tuple[TypicalTask, ...]:
        counts = Counter(self.tasks)
        return tuple(replace(task.typical, weight=float(count)) for task, count in counts.items())


@dataclass(frozen=True)
class Filled:
    at_100: float
    at_130: float
    decisions: int
    seconds: float


def fill(trace: Trace, seed: int, policy: Policy) -> Filled:
    scheduler = Scheduler(policy)
    hosts = trace.hosts(seed)
    for host in hosts:
        scheduler.upsert_host(host)
    store = _Store(hosts, scheduler)
    capacity = trace.capacity
    arrived = allocated = decisions = 0
    at_100, seconds, requests = 0.0, 0.0, dict[Task, ResourceRequest]()
    for number, task in enumerate(trace.arrivals(seed)):
        if task not in requests:
            requests[task] = task.request
        row = PlacementRequest(
            f"{number:06d}", 1, requests[task], 0, NAMESPACE, "anna", float(number), class_key=str(task)
        )
        begin = time.perf_counter()
        scheduler.add(row)
        placed = scheduler.decide(float(number)).placements
        seconds += time.perf_counter() - begin
        decisions += 1
        asked = task.gpus * task.percent
        arrived += asked
        for _, placement in placed:
            store.take(placement)
            scheduler.confirm(row.job_id, row.attempt)
            allocated += asked
        if not placed:
            scheduler.remove(row.job_id)
        if not at_100 and arrived >= capacity:
            at_100 = 100.0 * allocated / capacity
    return Filled(at_100, 100.0 * allocated / capacity, decisions, seconds)


def fill_plainly(trace: Trace, seed: int, how: str) -> Filled:
    """The same with FirstFit or FGD."""
    nodes = [trace.nodes[number] for number in trace.order(seed)]
    models = sorted({node["model"] for node in nodes})
    room = Room(
        np.array([[100 * (place < int(node["gpu"])) for place in range(8)] for node in nodes]),
        np.array([int(node["cpu_milli"]) for node in nodes]),
        np.array([int(node["memory_mib"]) for node in nodes]),
        np.array([models.index(node["model"]) for node in nodes]),
    )
    demands = {task: task.demand(models) for task in trace.tasks}
    counts = Counter(trace.tasks)
    place = first_fit(room) if how == "FirstFit" else Fgd(room, [(demands[task], n) for task, n in counts.items()])
    arrived = allocated = decisions = 0
    at_100, begin = 0.0, time.perf_counter()
    for task in trace.arrivals(seed):
        decisions += 1
        arrived += task.gpus * task.percent
        allocated += task.gpus * task.percent * place(demands[task])
        if not at_100 and arrived >= trace.capacity:
            at_100 = 100.0 * allocated / trace.capacity
    return Filled(at_100, 100.0 * allocated / trace.capacity, decisions, time.perf_counter() - begin)


class _Store:
    """Takes what is proposed as the database would, refuses what it would, and tells the scheduler."""

    def __init__(self, hosts: list[HostRow], scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._room = {host.name: (host.inventory.cpus or 0, host.inventory.ram_mib or 0) for host in hosts}
        self._host_use = {host.name: HostUse(host.name, 0, 0) for host in hosts}
        self._rows = {
            gpu.uuid: GpuRow(gpu.uuid, host.name, gpu.index, GpuState.AVAILABLE, free=True)
            for host in hosts
            for gpu in host.inventory.gpus
        }
        scheduler.upsert_gpus(self._rows.values())

    def take(self, placement: Placement) -> None:
        [part] = placement.slices
        rows = [self._taken(part, place) for place in range(len(part.gpu_uuids))]
        self._rows.update((row.uuid, row) for row in rows)
        before = self._host_use[part.host]
        use = HostUse(part.host, before.cpus + part.cpus, before.ram_mib + part.ram_mib)
        cpus, ram_mib = self._room[part.host]
        assert use.cpus <= cpus, f"{part.host} would have too few CPUs"
        assert use.ram_mib <= ram_mib, f"{part.host} would have too little memory"
        self._host_use[part.host] = use
        self._scheduler.upsert_gpus(rows)
        self._scheduler.upsert_use([use])

    def _taken(self, part: HostSlice, place: int) -> GpuRow:
        row, use = self._rows[part.gpu_uuids[place]], None
        if part.shares:
            use = self._added(row.use, part, place)
            assert use.percent <= 100, f"{row.uuid} would be given twice"
        assert row.free or (use is not None and row.use is not None), f"{row.uuid} would be given twice"
        return GpuRow(row.uuid, row.host, row.index, GpuState.IN_USE, free=False, use=use)

    def _added(self, before: GpuUse | None, part: HostSlice, place: int) -> GpuUse:
        return first_use(part.shares[place], NAMESPACE) if before is None else before.plus(part.shares[place])


def _task(row: dict[str, str]) -> Task:
    gpus = int(row["num_gpu"])
    percent = int(row["gpu_milli"]) // 10 if gpus else 0
    return Task(int(row["cpu_milli"]), int(row["memory_mib"]), gpus, percent, row.get("gpu_spec") or None)


def _host(name: str, node: dict[str, str]) -> HostRow:
    gpus = [
        GpuInfo(uuid=f"{name}/{n}", index=n, model=node["model"], memory_mib=16_384, compute_capability="7.0")
        for n in range(int(node["gpu"]))
    ]
    inventory = HostInventory(
        machine=node["model"], cpus=int(node["cpu_milli"]), ram_mib=int(node["memory_mib"]), mps=True, gpus=gpus
    )
    return HostRow(name, HostState.READY, inventory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", default=os.environ.get("TRACES", ""), help="Folder with the folder openb")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--variants", default="default", help="openb_pod_list_VARIANT.csv, several with commas")
    parser.add_argument("--settings", default="default,told,FirstFit,FGD", help=f"of {', '.join(SETTINGS)}")
    given = parser.parse_args()
    folder = Path(given.traces) / "openb"
    if not given.traces or not folder.is_dir():
        print(f"packing: left out, no folder openb in {given.traces or 'TRACES= or --traces, which is not given'}")
        return
    seeds = [int(seed) for seed in given.seeds.split(",")]
    print(f"GPU allocation ratio (openb, mean of seeds {given.seeds})     at 100 %   at 130 %   decisions/s")
    for variant in given.variants.split(","):
        trace = Trace(folder, variant)
        if variant == "default" and set(seeds) <= set(SEEDS):
            for name, (at_100, at_130) in PUBLISHED.items():
                print(f"  {variant + ', ' + name + ' (published, seeds 42 to 51)':<50} {at_100:>9.2f} {at_130:>10.2f}")
        for name in given.settings.split(","):
            runs = [_run(trace, seed, name) for seed in seeds]
            at_100, at_130 = (statistics.mean(getattr(run, field) for run in runs) for field in ("at_100", "at_130"))
            rate = sum(run.decisions for run in runs) / sum(run.seconds for run in runs)
            print(f"  {variant + ', ' + name:<50} {at_100:>9.2f} {at_130:>10.2f} {rate:>10.0f}", flush=True)


SETTINGS = {
    "FirstFit": "",
    "FGD": "",
    "default": "nothing is set",
    "prior": "the same, but nothing is learned",
    "told": "the same, but told the mix",
    "fragmentation": "the weights of that name",
    "tightest_fit": "the weights of that name",
}


def _run(trace: Trace, seed: int, name: str) -> Filled:
    if name in ("FirstFit", "FGD"):
        return fill_plainly(trace, seed, name)
    policy = Policy(weights=WEIGHTS.get(name, WEIGHTS["default"]))
    if name == "told":
        policy = replace(policy, typical_tasks=trace.typical())
    if name == "prior":
        policy = replace(policy, typical_tasks=_prior(trace))
    return fill(trace, seed, policy)


def _prior(trace: Trace) -> tuple[TypicalTask, ...]:
    snapshot, expected = Snapshot(), expected_tasks(Policy())
    for host in trace.hosts(0):
        snapshot.upsert_host(host)
    expected.renew(snapshot)
    return expected.tasks


if __name__ == "__main__":
    main()

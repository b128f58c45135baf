"""What a decision costs while many different requests wait: ``python -m tests.benchmarks.bench_many_requests``.

Each line is one world: a full cluster, and a queue in which every job asks for something of its own. In each cycle some
running jobs end, what can start starts, and new jobs arrive for those that started. Times are CPU times of the thread
that decides, in milliseconds, of the cycle as a whole: what the feed reports, the decision, and its reasons. What the
leader lets another thread do is done by another thread here, too. Arguments choose lines:
``1000x10``, ``easy``, ``conservative``, a number of requests, ``preempt``, ``defragment``, ``fair`` (fair share) and
``fair-conservative``. ``cycles=30``: at most so many. ``cpus``: all jobs ask for CPUs and memory, too. ``totals`` and
``groups``: all jobs are totals that may split, or gangs of two rank groups.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import GpuRow, HostRow, HostUse, RunningRow
from gpu_platform.domain.states import GpuState, HostState
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.scheduler import Scheduler
from gpu_platform.topology.description import load_description
from tests.benchmarks.machines import widened
from tests.builders import job
from workers.scheduler.garbage import spare_loaded_objects

MIX = ("dgx-h100", "dgx-a100-40gb", "dgx-b200", "rtx4090-8x-all-sys")
MODELS = (None, None, None, None, "H100", "A100", "B200", "4090")
LEAF_HOSTS = 32
CPUS, RAM_MIB = 96, 512 * 1024
SEED = 11
CYCLES = 200
POLL_S = 0.005
"""The leader's default. It decides again after this time if something is left."""
KINDS = ("cpus", "totals", "groups")
POLICIES = {
    "easy": Policy(),
    "conservative": Policy(backfill="conservative"),
    "preempt": Policy(preemption=True),
    "defragment": Policy(defragmentation=True, defragment_every_s=10.0),
    "fair": Policy(order="fair_share"),
    "fair-conservative": Policy(order="fair_share", backfill="conservative"),
}
CURVE = (1, 10, 100, 512, 1_000, 2_000, 5_000, 10_000, 20_000)


def main(arguments: list[str]) -> None:
    """Print the lines that the arguments choose, by default all of them."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)  # as in the service's processes: see workers/process.py
    numbers = [int(word) for word in arguments if word.isdigit()]
    cycles = next((int(word[7:]) for word in arguments if word.startswith("cycles=")), CYCLES)
    words = {word for word in arguments if not word.isdigit() and not word.startswith("cycles=")}
    kind = next((word for word in arguments if word in KINDS), "")
    print(f"{'cluster':>10} {'policy':>14} {'distinct':>8} {'first ms':>9} {'p50 ms':>8} {'p99 ms':>8} {'most ms':>8}")
    for hosts, gpus, requests in ((1_000, 10, CURVE), (12_500, 8, (2_000,))):
        if not words.isdisjoint({"1000x10", "12500x8"}) and f"{hosts}x{gpus}" not in words:
            continue
        for name in POLICIES:
            if not words.isdisjoint(POLICIES) and name not in words:
                continue
            for waiting in numbers or (requests if name in ("easy", "conservative") else (200,)):
                line(hosts, gpus, name, waiting, cycles, kind)


def line(hosts: int, gpus: int, name: str, waiting: int, cycles: int = CYCLES, kind: str = "") -> None:
    """Measure one world and print its line."""
    world = FullCluster(hosts, gpus, POLICIES[name])
    world.kind = kind
    for _ in range(waiting):
        world.arrive()
    world.scheduler.prepare(world.now)  # the leader does both once everything is loaded
    spare_loaded_objects()
    times = [world.cycle()]
    deadline = time.process_time() + 60.0
    while len(times) <= cycles and (len(times) < 4 or time.process_time() < deadline):
        times.append(world.cycle())
    later = sorted(times[1:])
    p50, p99 = later[len(later) // 2], later[min(int(len(later) * 0.99), len(later) - 1)]
    print(
        f"{f'{hosts}x{gpus}':>10} {name:>14} {waiting:8,} {times[0] * 1e3:9.1f} {p50 * 1e3:8.1f} {p99 * 1e3:8.1f}"
        f" {later[-1] * 1e3:8.1f} {world.starts} in {len(later)} cycles",
        flush=True,
    )


class FullCluster:
    """A scheduler whose cluster is 97 % taken, by jobs of which three quarters have a time limit."""

    kind = ""
    """One of KINDS: what the jobs that arrive ask for. Empty: for equal slices of whole GPUs."""

    def __init__(self, hosts: int, gpus: int, policy: Policy) -> None:
        self._rng, self._names, self._gpus = random.Random(SEED), count(), gpus
        self.now, self.starts = 1e6, 0
        self.scheduler = Scheduler(policy, aside=ThreadPoolExecutor(1))
        self._running: deque[RunningRow] = deque()
        self._use: dict[str, HostUse] = {}
        inventories = [widened(load_description(name), gpus) for name in MIX]
        for number in range(hosts):
            leaf = number // LEAF_HOSTS
            name = f"h{number:05d}"
            inventory = inventories[leaf % len(MIX)](name).model_copy(update={"cpus": CPUS, "ram_mib": RAM_MIB})
            self.scheduler.upsert_host(HostRow(name, HostState.READY, inventory, f"l{leaf}", f"s{leaf // 16}"))
            self._fill(name, [gpu.uuid for gpu in inventory.gpus])
        self._rng.shuffle(self._running)

    def _fill(self, host: str, uuids: list[str]) -> None:
        rng, at = self._rng, 0
        taken = len(uuids) - rng.choices((0, 1, 2, 4), (88, 6, 4, 2))[0]
        rows = [GpuRow(uuid, host, i, _STATE[i >= taken], free=i >= taken) for i, uuid in enumerate(uuids)]
        self.scheduler.upsert_gpus(rows)
        while at < taken:
            part = min(taken - at, rng.choice((1, 1, 2, 4, 8)))
            asked = replace(self._asked(part, 1), preemptible=rng.random() < 0.5, checkpoints=rng.random() < 0.5)
            since = self.now - rng.random() * (asked.time_limit_s or 40_000.0)
            row = RunningRow.of(asked, gpu_uuids=tuple(uuids[at : at + part]), started_at=since)
            self.scheduler.started(row)
            self._running.append(row)
            at += part

    def _asked(self, gpus: int, hosts: int) -> PlacementRequest:
        limit = self._rng.choice((None, 1_800.0, 3_600.0, 14_400.0, 86_400.0))
        asked = job(gpus, hosts, f"j{next(self._names):07d}").arrived(self.now - self._rng.randrange(10_000))
        return (asked if limit is None else asked.lasting(limit)).row

    def arrive(self) -> None:
        """A job arrives that asks for something that nobody else asks for."""
        rng = self._rng
        hosts = rng.choices((1, 2, 4, 16), (60, 20, 15, 5))[0]
        row = self._asked(rng.randint(1, self._gpus) if hosts == 1 else 8, hosts)
        asked = {"memory_mib": next(self._names) % 20_000 + 1, "model": rng.choice(MODELS)}
        if self.kind == "cpus":
            asked |= {"cpus_per_host": rng.randint(1, 32), "ram_mib_per_host": rng.randint(1, 64) * 1024}
        if self.kind == "totals":
            asked |= {"total": rng.randint(9, 200), "hosts": 1, "gpus_per_host": 1}
        row = row.asking_for(row.resources.model_copy(update=asked))
        if self.kind == "groups":
            other = row.resources.model_copy(update={"hosts": rng.randint(1, 3), "gpus_per_host": rng.randint(1, 8)})
            row = replace(row, groups=(("a", row.resources), ("b", other)))
        self.scheduler.add(replace(row, priority=rng.choice((0, 0, 0, 5))))

    def cycle(self) -> float:
        """Let running jobs end, and decide. Returns the CPU time in seconds."""
        scheduler = self.scheduler
        # A decision that left something is followed by the next one before anything else happens.
        ends = 0 if scheduler.unfinished else self._rng.randint(1, 4)
        ended = [self._running.popleft() for _ in range(ends)]
        self.now += 0.25
        begin = time.thread_time()
        for row in ended:
            scheduler.upsert_gpus([GpuRow(uuid, "", 0, _STATE[True], free=True) for uuid in row.gpu_uuids])
            scheduler.ended(row.job_id, row.attempt)
            self._uses(row.host_use, -1)
        decision = scheduler.decide(self.now)
        for row, placement in decision.placements:
            scheduler.upsert_gpus(GpuRow(uuid, "", 0, _STATE[False], free=False) for uuid in placement.gpu_uuids)
            scheduler.confirm(row.job_id, row.attempt)
            holder = scheduler.running_jobs.get((row.job_id, row.attempt))
            assert holder is not None
            self._uses(holder.host_use, 1)
            self._running.append(holder)
        spent = time.thread_time() - begin
        if scheduler.unfinished:
            time.sleep(POLL_S)
        for preemption in decision.preemptions:
            for key in preemption.victims:
                victim = scheduler.running_jobs.get(key)
                assert victim is not None
                self._running.remove(victim)
                self._running.appendleft(victim)
        self.starts += len(decision.placements)
        for _ in decision.placements:
            self.arrive()
        return spent

    def _uses(self, host_use: Iterable[HostUse], sign: int) -> None:
        for use in host_use:
            before = self._use.get(use.host, HostUse(use.host, 0, 0))
            now = HostUse(use.host, before.cpus + sign * use.cpus, before.ram_mib + sign * use.ram_mib)
            self._use[use.host] = now
            self.scheduler.upsert_use([now])


_STATE = {False: GpuState.IN_USE, True: GpuState.AVAILABLE}


if __name__ == "__main__":
    main(sys.argv[1:])

"""What a host costs: ``python -m tests.benchmarks.bench_hosts``. Budgets: design of the node worker."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.domain.hosts.share import ShareGrant, ShareMode
from gpu_platform.domain.jobs.attempt import FaultReport
from gpu_platform.domain.jobs.exec import ExecRequest
from gpu_platform.node.accounting.accounting import Accountant
from gpu_platform.node.health.fitness import GpuFitness
from gpu_platform.node.inventory.inventory import read_inventory
from gpu_platform.node.isolation.cgroups.cpus import CpuBinding
from gpu_platform.node.isolation.isolation import JAILED
from gpu_platform.node.isolation.scrub.scrub_policy import Scrubber
from gpu_platform.node.nvml.opening import has_gpus
from gpu_platform.node.processes.exec_sessions import ExecSessions
from gpu_platform.node.sharing.stage import Sharing
from gpu_platform.node.system import paths
from gpu_platform.settings import NodeSettings
from gpu_platform.topology.description import load_description
from tests.benchmarks.process_cpu import children_of, cpu_below, cpu_of
from tests.fake_nvml import FakeNvml, has_compiler
from tests.support.hosts_rig import HostRig, parent_of
from tests.support.waiting import eventually

TREE = 1_000


def show(what: str, values_ms: Sequence[float], target: str = "") -> None:
    ordered = sorted(values_ms)
    p50, p99 = statistics.median(ordered), ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
    print(f"{what:<58} p50 {p50:8.2f} ms   p99 {p99:8.2f} ms   n={len(ordered)}  {target}")


def memory_mib(pid: int) -> tuple[float, float]:
    """(RSS, PSS)."""
    fields = dict(line.split(":") for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return tuple(int(fields[name].split()[0]) / 1024 for name in ("Rss", "Pss"))  # type: ignore[return-value]


async def bench_launch(host: HostRig, count: int = 200) -> None:
    launches, ends, stops = [], [], []
    first = host.plan("true")
    host.launch(first)  # starts the spawner
    await host.stop(first.key)
    for _ in range(count):
        plan = host.plan("true")
        began = time.perf_counter()
        host.launch(plan)
        launches.append((time.perf_counter() - began) * 1e3)
        await host.watch(plan)
        ends.append((time.perf_counter() - began) * 1e3)
        began = time.perf_counter()
        await host.stop(plan.key)
        stops.append((time.perf_counter() - began) * 1e3)
    kind = host.inventory.isolation
    show(f"{kind}: prepare + launch one rank, until it executes", launches, "target < 10 ms" * (kind != JAILED))
    show(f"{kind}: launch -> `true` ended, recorded and seen", ends)
    show(f"{kind}: stop of an attempt that has ended", stops)
    gangs = []
    for _ in range(20):
        plan = host.plan("sleep", "600", ranks=8)
        began = time.perf_counter()
        host.launch(plan)
        gangs.append((time.perf_counter() - began) * 1e3)
        await host.stop(plan.key)
    show(f"{kind}: prepare + launch eight ranks", gangs)


async def bench_cpu(host: HostRig, count: int = 300) -> None:
    """CPU of one `true` from its launch to its end, by who uses it. The platform's part of an attempt on its host."""
    first = host.plan("true")
    host.launch(first)
    await host.stop(first.key)
    spawner = host.worker._launcher.spawner.pid
    before = cpu_of_spawner(spawner)
    began = time.process_time()
    for _ in range(count):
        plan = host.plan("/bin/true")
        host.launch(plan)
        await host.watch(plan)
        await host.stop(plan.key)
    own = time.process_time() - began
    after = cpu_of_spawner(spawner)
    parts = {"node worker": own, "spawner": after[0] - before[0], "supervisors and ranks": after[1] - before[1]}
    each = ", ".join(f"{who} {seconds / count * 1e3:.2f}" for who, seconds in parts.items())
    total = sum(parts.values()) / count * 1e3
    print(f"{host.inventory.isolation + ': CPU of one rank, ms':<58} {total:8.2f}: {each}   n={count}")


def cpu_of_spawner(pid: int) -> tuple[float, float]:
    """CPU seconds of the spawner itself, and of its children: those that live, and those that have ended."""
    own, ended = cpu_of(pid)
    return own, ended + sum(cpu_below(child) for child in children_of(pid))


async def bench_stop(host: HostRig) -> None:
    kills = []
    loop = f"i=0; while [ $i -lt {TREE} ]; do setsid sleep 600 & i=$((i+1)); done; echo up; wait"
    for _ in range(5):
        plan = host.plan("sh", "-c", loop)
        host.launch(plan)
        await eventually(lambda plan=plan: "up" in host.log(plan), f"{TREE} processes", within_s=60)
        began = time.perf_counter()
        stopped = await host.stop(plan.key)
        kills.append((time.perf_counter() - began) * 1e3)
        assert stopped.killed_processes >= TREE
    show(f"{host.inventory.isolation}: kill of {TREE:,} processes in as many sessions, verified", kills)


async def bench_memory(host: HostRig) -> None:
    plan = host.plan("sleep", "600")
    rank = host.launch(plan).ranks[0].pid
    for name, pid in (("spawner", host.worker._launcher.spawner.pid), ("supervisor", parent_of(rank))):
        rss, pss = memory_mib(pid)
        print(f"{name:<58} RSS {rss:8.1f} MiB  PSS {pss:8.1f} MiB")
    await host.stop(plan.key)


async def bench_health(host: HostRig, seconds: float = 10.0) -> None:
    faults: list[tuple[float, FaultReport]] = []
    monitor = host.monitor(lambda fault: faults.append((time.perf_counter(), fault)), interval_s=0.1)
    plan = host.plan("sleep", "600", ranks=8)
    host.launch(plan)
    monitor.start()
    await asyncio.sleep(0.5)
    cpu, began = time.process_time(), time.perf_counter()
    await asyncio.sleep(seconds)
    share = (time.process_time() - cpu) / (time.perf_counter() - began) * 100
    print(f"{'health: 8 busy simulated GPUs, 100 ms':<58} {share:12.2f} % of a core{'target < 2 %':>30}")
    delays = []
    for count in range(50):
        began = time.perf_counter()
        host.strike(count % 8, xid=1000 + count)  # unknown ones, each another: none is a repetition
        await eventually(lambda count=count: len(faults) > count, "the fault")
        delays.append((faults[count][0] - began) * 1e3)
    show("XID injected -> fault reported", delays)
    monitor.stop()
    await host.stop(plan.key)


def bench_inventory_of_library(directory: Path, gpus: int = 16) -> None:
    """Through the real pynvml on a library of ours: what NVML's own answers take comes on top."""
    if not has_compiler():
        print("no C compiler: the inventory through a library is not measured")
        return
    one = load_description("dgx-h100")
    slots = [one.gpus[index % len(one.gpus)].model_copy(update={"index": index}) for index in range(gpus)]
    slots = [slot.model_copy(update={"pci_bus_id": f"0000:{slot.index + 1:02x}:00.0"}) for slot in slots]
    fake = FakeNvml(directory / "fake", one.model_copy(update={"gpus": slots}))
    with mock.patch.dict(os.environ, FAKE_NVML_STATE=str(fake.state_file)):
        nvml = fake.load()
        values = []
        for _ in range(20):
            began = time.perf_counter()
            found = read_inventory(nvml, NodeSettings(name="box"))
            values.append((time.perf_counter() - began) * 1e3)
            assert (len(found.gpus), len(found.nvlinks)) == (gpus, gpus * (gpus - 1) // 2)
    show(f"inventory, {gpus} GPUs and NVSwitches, (fake) library", values, "target < 1 s")
    print(f"{'the same, the first time':<58} {values[0]:12.2f} ms{'target < 1 s':>30}")


async def bench_inventory(host: HostRig) -> None:
    values = []
    for _ in range(50):
        began = time.perf_counter()
        read_inventory(host.nvml, host.settings.node)
        values.append((time.perf_counter() - began) * 1e3)
    show("inventory, 8 GPUs", values)


async def bench_exec(host: HostRig, count: int = 20) -> None:
    """A command beside a running rank: from the request to its exit code."""
    plan = host.plan("sleep", "600")
    host.launch(plan)
    sessions = ExecSessions(
        host.home, host.settings.node.name, host.worker.start_helper, jailed=host.inventory.isolation == JAILED
    )
    times: list[float] = []
    for _ in range(count):
        began = time.perf_counter()
        session = sessions.get(plan.key, 0, await sessions.start(plan.key, ExecRequest(command=["true"])))
        async for _ in session.follow(0):
            pass
        times.append((time.perf_counter() - began) * 1e3)
    sessions.close()
    await host.stop(plan.key)
    show(f"{host.inventory.isolation}: exec `true` beside a rank, until its end is read", times)


async def bench_log(host: HostRig, megabytes: int = 1000) -> None:
    """What a rank can write at most, through its supervisor into bounded files."""
    plan = host.plan("sh", "-c", f"head -c {megabytes}000000 /dev/zero")
    began = time.perf_counter()
    host.launch(plan)
    await host.watch(plan, timeout_s=120)
    spent = time.perf_counter() - began
    await host.stop(plan.key)
    kept = sum(path.stat().st_size for path in paths.rank_dir(host.home, plan.key, 0).glob("output.log*")) / 1e6
    print(f"{'a rank that writes ' + str(megabytes) + ' MB':<58} {megabytes / spent:8.0f} MB/s   {kept:.0f} MB kept")


def with_stages(host: HostRig) -> HostRig:
    """All that a node worker does around an attempt."""
    node = host.settings.node
    fitness = GpuFitness(
        host.nvml,
        host.inventory,
        node,
        own_pids=lambda uuid: host.worker.attempt_pids(uuid),
        on_fault=lambda fault: None,
    )
    scrubber = Scrubber(node, host.nvml, host.home, reset=host.worker.reset_gpu, on_failure=fitness.report)
    sharing = Sharing(node, host.nvml, host.inventory, host.home, reset=host.worker.reset_gpu, scrubber=scrubber)
    host.restart([fitness, CpuBinding(host.inventory, host.home), sharing, Accountant(host.home)])
    return host


def bench_stages(host: HostRig, count: int = 200) -> None:
    share = ShareGrant(mode=ShareMode.MIG, percent=14, memory_mib=9_000, mig_profile="1g.10gb", mig_start=6, mig_size=1)
    plans = {
        "one whole GPU": host.plan("true"),
        "eight whole GPUs": host.plan("true", ranks=8),
        "a MIG instance (simulated)": host.plan("true", shares=[share]),
    }
    for what, plan in plans.items():
        (paths.attempt_dir(host.home, plan.key)).mkdir(parents=True)
        prepared, finished = [], []
        for _ in range(count):
            began = time.perf_counter()
            host.worker._launcher.stages.prepare(plan)
            prepared.append((time.perf_counter() - began) * 1e3)
            began = time.perf_counter()
            host.worker._launcher.stages.finish(plan)
            finished.append((time.perf_counter() - began) * 1e3)
        show(f"before a job: {what}", prepared)
        show(f"after a job: {what}", finished, "target < 1 ms" * ("whole" in what))


def bench_scrub() -> None:
    """The real program on the real memory, where there is a GPU."""
    done = subprocess.run(
        [sys.executable, "-m", "gpu_platform.node.isolation.scrub.scrub_process", "16"],
        capture_output=True,
        text=True,
        check=False,
    )
    print(f"scrub of a GPU's memory: {done.stdout.strip()}")


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        host = with_stages(HostRig(Path(directory)))
        try:
            await bench_inventory(host)
            bench_inventory_of_library(Path(directory))
            bench_stages(host)
            if has_gpus():
                bench_scrub()
            for rig in [host, *jailed_twin(Path(directory))]:
                await bench_launch(rig)
                await bench_cpu(rig)
                await bench_stop(rig)
                await bench_exec(rig)
                await bench_log(rig)
                await bench_work(rig)
                if rig is not host:
                    await rig.aclose()
            await bench_memory(host)
            await bench_health(host)
        finally:
            await host.aclose()


def jailed_twin(directory: Path) -> list[HostRig]:
    try:
        return [with_stages(HostRig(directory / "jailed", isolation="required"))]
    except HostUnavailable as error:
        print(f"no jails: {error}")
        return []


async def bench_work(host: HostRig) -> None:
    """What a jail costs a program that runs: nothing is expected but the price of page faults in its cgroup."""
    programs = {
        "a CPU-bound loop": "sum(i * i for i in range(6_000_000))",
        "a memory-bound loop": "[bytearray(64 << 20) for _ in range(10)]",
        "20,000 small files": "[open('/dev/shm/x', 'w').close() for _ in range(20_000)]",
    }
    for what, program in programs.items():
        code = f"import time; t = time.perf_counter(); {program}; print((time.perf_counter() - t) * 1e3)"
        values = []
        for _ in range(7):
            plan = host.plan("/usr/bin/env", "python3", "-c", code)
            host.launch(plan)
            await host.watch(plan)
            values.append(float(host.log(plan)))
            await host.stop(plan.key)
        show(f"{host.inventory.isolation}: {what}", values)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

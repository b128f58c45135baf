"""What looking after GPUs and jobs costs a host, and how fast an XID reaches a job's workflow.

Budget of the node worker: 2 % of a core with 8 GPUs at 100 ms, 150 MB.
"""

from __future__ import annotations

import asyncio
import cProfile
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC
from pathlib import Path

from temporalio.api.enums.v1 import EventType

from gpu_platform.domain.jobs.attempt import FaultReport, RankLimits
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.node.accounting.accounting import Accountant
from gpu_platform.node.attempt_watch import AttemptWatch
from gpu_platform.node.health.fault_policy import FaultPolicy
from gpu_platform.node.health.health import HealthMonitor
from gpu_platform.node.inventory.inventory import read_inventory
from gpu_platform.node.system import paths
from gpu_platform.settings import NodeSettings
from gpu_platform.store import Store
from tests.fake_nvml import FakeNvml, has_compiler
from tests.support.harness import Platform
from tests.support.hosts_rig import RESET_FOR_EVER, HostRig
from tests.support.temporal_server import temporal_server
from tests.support.waiting import eventually

_MEASURED_S = 20.0


def show(what: str, values_ms: Sequence[float], target: str = "") -> None:
    ordered = sorted(values_ms)
    p50, p99 = statistics.median(ordered), ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
    print(f"{what:<64} p50 {p50:8.2f} ms   p99 {p99:8.2f} ms   n={len(ordered)}  {target}", flush=True)


async def look_after(directory: Path, profile: bool) -> None:
    """In a process of its own: everything that a node worker loads, and all that runs in it but Temporal."""
    import workers.node.main  # noqa: F401  # for its size

    accountant = Accountant(paths.node_dir(directory.resolve(), "box"))
    host = HostRig(directory, stages=[accountant])
    monitor = host.monitor(lambda fault: None, interval_s=0.1)
    monitor.observe_with(accountant)
    watch = AttemptWatch(
        host.settings.node, host.nvml, host.home, accountant, FaultPolicy.load("platform"), lambda fault: None, {}
    )
    plan = host.plan("sleep", "600", ranks=8, limits=RankLimits(hang_limit_s=3600, idle_limit_s=3600))
    host.launch(plan)
    if profile:
        profiler = cProfile.Profile()
        profiler.enable()
        for _ in range(100):
            monitor.poll_once(steady=False, errors=False, hardware_status=False)
        profiler.disable()
        pstats.Stats(profiler).sort_stats("cumulative").print_stats(12)
    monitor.start()
    watching = asyncio.create_task(watch.run(host.worker))
    await asyncio.sleep(1.0)
    cpu, began = time.process_time(), time.perf_counter()
    await asyncio.sleep(_MEASURED_S)
    share = (time.process_time() - cpu) / (time.perf_counter() - began) * 100
    rss = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    print(f"{'8 busy simulated GPUs at 100 ms, 8 ranks looked after: CPU':<64} {share:8.2f} % of a core, target < 2 %")
    print(f"{'the same: memory, with all that a node worker loads':<64} {rss:8.1f} MB, target < 150 MB", flush=True)
    watching.cancel()
    monitor.stop()
    await host.aclose()


async def bench_library_to_fault(directory: Path) -> None:
    """Through the real pynvml on a library of ours, which waits for events in steps of 2 ms."""
    if not has_compiler():
        print("no C compiler: XID in the library -> fault is not measured")
        return
    fake = FakeNvml(directory / "fake")
    os.environ["FAKE_NVML_STATE"] = str(fake.state_file)
    nvml = fake.load()
    faults: list[tuple[float, FaultReport]] = []
    monitor = HealthMonitor(
        nvml,
        read_inventory(nvml, NodeSettings(name="box")),
        FaultPolicy.load("platform"),
        host="box",
        on_fault=lambda fault: faults.append((time.perf_counter(), fault)),
    )
    monitor.start()
    await asyncio.sleep(1.0)
    delays: list[float] = []
    for count in range(30):
        began = time.perf_counter()
        fake.strike(count % 8, xid=1000 + count)  # each another one: none is a repetition
        await eventually(lambda count=count: len(faults) > count, "the fault")
        delays.append((faults[count][0] - began) * 1e3)
    monitor.stop()
    show("XID in the (fake) library -> fault report", delays)


async def bench_xid_to_signal(directory: Path) -> None:
    """From the injection to the signal in the history of the job's workflow, by the clock of this machine."""
    store = Store(f"sqlite:///{directory / 'platform.db'}")
    store.migrate()
    delays: list[float] = []
    async with temporal_server() as client, Platform.start(client, store, directory, {"a": "dgx-h100"}) as platform:
        node = platform.nodes["a"]
        node.health._policy = FaultPolicy.load(str(RESET_FOR_EVER))
        for _ in range(20):
            spec = JobSpec(command=["sleep", "600"], gpus=ResourceRequest(gpus_per_host=1), max_hardware_retries=0)
            job_id = await platform.submit(spec)
            job = await platform.reaches(job_id, JobState.RUNNING)
            assert job.placement is not None
            struck = time.time()
            node.strike(job.placement.slices[0].gpu_indices[0], xid=13)
            await platform.ends(job_id, JobState.FAILED)
            async for event in platform.workflow(job_id).fetch_history_events():
                if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
                    at = event.event_time.ToDatetime(tzinfo=UTC).timestamp()
                    delays.append((at - struck) * 1e3)
                    break
            for gpu in node.health.gpus():
                node.health.was_reset(gpu.info.uuid)
    store.close()
    show("XID -> signal in the job's workflow", delays)


async def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        await bench_library_to_fault(directory)
        await bench_xid_to_signal(directory)


if __name__ == "__main__":
    if sys.argv[1:2] == ["look-after"]:
        with tempfile.TemporaryDirectory() as name:
            asyncio.run(look_after(Path(name), "--profile" in sys.argv))
    else:
        subprocess.run([sys.executable, "-m", "tests.benchmarks.bench_health", "look-after"], check=True)
        asyncio.run(main())

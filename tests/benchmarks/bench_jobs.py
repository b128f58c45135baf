"""The whole platform end to end, on real processes: ``python -m tests.benchmarks.bench_jobs [PART ...]``.

Eight simulated DGX H100 (64 GPUs), Temporal dev server on disk, SQLite. Budgets: docs/reference/measurements.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import ssl
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import httpx

from gpu_platform.client import AsyncClient
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import GpuState, JobState
from gpu_platform.node.nvml.fault_injection import inject_fault
from gpu_platform.node.system.paths import control_dir, node_dir
from gpu_platform.node.system.ports import free_port
from tests.benchmarks.process_cpu import children_of, cpu_below, cpu_of
from tests.support.hosts_rig import RESET_FOR_EVER
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec
from workers.local.forked.client import SERVER

HOSTS = 8
NOOP = JobSpec(name="noop", command=["/bin/true"], grace_s=1, gpus=ResourceRequest(gpus_per_host=1))
PRINTS_ITS_START = JobSpec(
    name="start", command=["/bin/date", "+%s%N"], grace_s=1, gpus=ResourceRequest(gpus_per_host=1)
)
SUBMITTERS = 8
LISTED = 200


def show(what: str, values_ms: list[float], budget: str) -> None:
    ordered = sorted(values_ms)
    p95 = ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))]
    print(f"{what}: p50 {statistics.median(ordered):.0f} ms, p95 {p95:.0f} ms, n={len(ordered)}   (budget {budget})")


async def start_latency(cluster: LocalCluster, client: AsyncClient) -> None:
    """From before the HTTP request to the time that the job's own process printed."""
    submit_to_process, submit_to_running = [], []
    for _ in range(50):
        began_ns = time.time_ns()
        job = await client.submit(PRINTS_ITS_START)
        job = await client.wait(job.id, timeout_s=30)
        printed_ns = int((await client.logs(job.id)).split()[0])
        submit_to_process.append((printed_ns - began_ns) / 1e6)
        assert job.started_at is not None
        submit_to_running.append(job.started_at.timestamp() * 1e3 - began_ns / 1e6)
    show("submit -> process running, idle", submit_to_process, "p50 <= 30 ms")
    show("submit -> job RUNNING in the API", submit_to_running, "-")


async def gang_latency(cluster: LocalCluster, client: AsyncClient) -> None:
    """From before the HTTP request to the time that the last rank of a gang on all hosts printed."""
    gang = PRINTS_ITS_START.model_copy(update={"gpus": ResourceRequest(hosts=HOSTS, gpus_per_host=8)})
    submit_to_last = []
    for _ in range(30):
        began_ns = time.time_ns()
        job = await client.wait((await client.submit(gang)).id, timeout_s=60)
        assert job.state is JobState.COMPLETED, job
        printed_ns = [int((await client.logs(job.id, rank=rank)).split()[0]) for rank in range(HOSTS)]
        submit_to_last.append((max(printed_ns) - began_ns) / 1e6)
    show(f"submit -> last rank of a gang on {HOSTS} hosts runs, idle", submit_to_last, "p50 <= 120 ms")


async def throughput(
    cluster: LocalCluster, client: AsyncClient, count: int, beside: Mapping[str, int] | None = None
) -> None:
    """All submitted at once by a few clients; ends when the last is COMPLETED. ``beside``: see :func:`cpu_seconds`."""
    target = await completed(cluster) + count
    before = cpu_seconds(cluster, beside)
    began = time.monotonic()
    numbers = iter(range(count))
    submitted: list[Job] = []

    async def submitter() -> None:
        for _ in numbers:
            submitted.append(await client.submit(NOOP))

    await asyncio.gather(*[submitter() for _ in range(SUBMITTERS)])
    accepted = time.monotonic() - began
    while await completed(cluster) < target:
        assert time.monotonic() - began < 600, "not all jobs ended"
        await asyncio.sleep(0.25)
    took = time.monotonic() - began
    after = cpu_seconds(cluster, beside)
    ended = [await client.get(job.id) for job in submitted]
    finished = sorted(job.finished_at.timestamp() for job in ended if job.finished_at is not None)
    assert len(finished) == count
    # The first and last tenths are ramp-up and drain.
    low, high = count // 10, count - count // 10
    steady = (high - low) / (finished[high - 1] - finished[low])
    print(
        f"{count} no-op jobs, {HOSTS * 8} GPUs: {count / took:.1f} jobs/s end to end, steady {steady:.1f}/s,"
        f" accepted at {count / accepted:.0f}/s   (budget >= 40/s, flat)"
    )
    each = {name: (after[name] - before[name]) / count * 1000 for name in after}
    parts = ", ".join(f"{name} {ms:.1f}" for name, ms in each.items())
    print(f"  CPU per job: {sum(each.values()):.1f} ms: {parts}   (budget <= 45 ms)")


async def two_services(cluster: LocalCluster, client: AsyncClient) -> None:
    """Lists a second that one service answers, and two: a service is one Python process, so it uses one processor."""
    port = free_port()
    second = cluster._module("service-2", "workers.service", {"GPU_PLATFORM_SERVICE__PORT": str(port)})
    first = await lists_per_s(cluster, [cluster.api_url])
    await second.start()
    try:
        url = cluster.api_url.replace(f":{cluster.config.port}", f":{port}")
        await eventually(lambda: is_ready(cluster, url), "the second service", 30)
        both = await lists_per_s(cluster, [cluster.api_url, url])
    finally:
        await second.stop()
    print(
        f"lists of {LISTED} jobs: one service {first:.0f}/s, two {both:.0f}/s: {both / first:.2f} times   (budget > 1)"
    )


async def lists_per_s(cluster: LocalCluster, urls: list[str]) -> float:
    """Eight clients ask these services in turn for ten seconds."""
    answers, ends = 0, time.monotonic() + 10

    async def asks(url: str) -> None:
        nonlocal answers
        async with httpx.AsyncClient(base_url=url, headers=cluster.headers, verify=trust(cluster), timeout=30) as http:
            while time.monotonic() < ends:
                (await http.get("/v1/jobs", params={"limit": LISTED})).raise_for_status()
                answers += 1

    began = time.monotonic()
    await asyncio.gather(*[asks(urls[index % len(urls)]) for index in range(8)])
    return answers / (time.monotonic() - began)


async def is_ready(cluster: LocalCluster, url: str) -> bool:
    try:
        async with httpx.AsyncClient(base_url=url, verify=trust(cluster)) as http:
            return (await http.get("/readyz")).is_success
    except httpx.HTTPError:
        return False


async def completed(cluster: LocalCluster) -> int:
    """Asked of the metrics, which costs the same for any number of jobs."""
    async with httpx.AsyncClient(base_url=cluster.api_url, headers=cluster.headers, verify=trust(cluster)) as http:
        text = (await http.get("/metrics")).text
    return int(float(text.split('gpu_platform_jobs{state="COMPLETED"} ')[1].split()[0]))


def trust(cluster: LocalCluster) -> ssl.SSLContext | bool:
    return ssl.create_default_context(cafile=cluster.ca_file) if cluster.config.tls else True


async def fault_recovery(cluster: LocalCluster, client: AsyncClient) -> None:
    """XID 31 on the job's GPU, 20 times: until the next attempt runs."""
    job = await client.submit(
        JobSpec(
            command=["/bin/sleep", "3600"], gpus=ResourceRequest(gpus_per_host=2), max_hardware_retries=100, grace_s=5
        )
    )
    recovery = []
    for attempt in range(1, 21):
        job = await running(client, job.id, attempt)
        assert job.placement is not None
        part = job.placement.slices[0]
        struck = time.time()
        inject_fault(control_dir(node_dir(cluster.config.state_dir, part.host)), part.gpu_indices[0], xid=31)
        job = await running(client, job.id, attempt + 1)
        assert job.started_at is not None
        recovery.append((job.started_at.timestamp() - struck) * 1000)
    show("XID -> next attempt running", recovery, "p50 < 2,000 ms")
    await client.kill(job.id)
    await client.wait(job.id, timeout_s=30)

    async def healed() -> bool:
        return {gpu.state async for gpu in client.gpus()} == {GpuState.AVAILABLE}

    await eventually(healed, "every GPU to be healed")


async def failover(cluster: LocalCluster, client: AsyncClient) -> None:
    """SIGKILL of both schedulers' leader, then a submission: until it runs."""
    times = []
    for _ in range(3):
        leader = max((child for child in cluster.schedulers if child.pid), key=lambda child: last_epoch(child.log_file))
        began = time.monotonic()
        os.kill(leader.pid or 0, signal.SIGKILL)
        job = await client.submit(NOOP)
        await client.wait(job.id, timeout_s=60)
        times.append((time.monotonic() - began) * 1000)
    show("leader killed -> next decision carried out", times, "< 10,000 ms")


async def host_loss(cluster: LocalCluster, client: AsyncClient) -> None:
    """A node worker frozen: until its job's next attempt runs elsewhere."""
    job = await client.submit(JobSpec(command=["/bin/sleep", "3600"], grace_s=1, gpus=ResourceRequest(gpus_per_host=1)))
    job = await running(client, job.id, 1)
    assert job.placement is not None
    pid = cluster.nodes[job.placement.hosts[0]].pid or 0
    began = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    try:
        await running(client, job.id, 2)
        print(f"host frozen -> next attempt running: {time.monotonic() - began:.1f} s   (budget < 20 s)")
    finally:
        os.kill(pid, signal.SIGCONT)
    await client.kill(job.id)
    await client.wait(job.id, timeout_s=30)


def memory(cluster: LocalCluster) -> None:
    """PSS counts a page that several processes share once in all: what a process adds to the machine."""
    total = 0.0
    pids = [(child.name, child.pid) for child in cluster.children]
    pids += [("fork server", SERVER.pid)] if SERVER.pid is not None else []
    for name, pid in pids:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        rss, pss = (int(rollup.split(f"{what}:")[1].split()[0]) / 1024 for what in ("Rss", "Pss"))
        total += 0.0 if name.startswith("node-") else pss
        print(f"  {name:14} RSS {rss:6.0f} MiB, PSS {pss:6.0f} MiB")
    print(f"  control plane: PSS {total:.0f} MiB   (budget < 600; a node worker < 100)")


def cpu_seconds(cluster: LocalCluster, beside: Mapping[str, int] | None = None) -> dict[str, float]:
    """User and system time of each kind of process, with its ended children. "ranks": spawners, supervisors and ranks
    of all hosts, which are below the node workers. ``beside``: name and pid of processes that are not the cluster's;
    what is below them counts with them."""
    found: dict[str, float] = {"nodes": 0.0, "ranks": 0.0}
    for child in cluster.children:
        kind = "nodes" if child.name.startswith("node-") else child.name
        found[kind] = found.get(kind, 0.0) + sum(cpu_of(child.pid or 0))
        if kind == "nodes":
            found["ranks"] += sum(cpu_below(pid) for pid in children_of(child.pid or 0))
    found.update({name: cpu_below(pid) for name, pid in (beside or {}).items()})
    own = os.times()
    return {**found, "this client": own.user + own.system}


async def running(client: AsyncClient, job_id: str, attempt: int) -> Job:
    async def there() -> Job | None:
        job = await client.get(job_id)
        return job if job.state is JobState.RUNNING and job.attempt == attempt else None

    return await eventually(there, f"attempt {attempt} to run", within_s=60)


def last_epoch(log: Path) -> int:
    found = [line for line in log.read_text().splitlines() if '"scheduler.leads"' in line]
    return int(found[-1].split('"epoch": ')[1].split(",")[0].rstrip("}")) if found else -1


def reference_loop() -> None:
    """How fast this machine is right now."""
    began = time.perf_counter()
    sum(i * i for i in range(3_000_000))
    print(f"reference loop: {(time.perf_counter() - began) * 1000:.0f} ms; load {os.getloadavg()[0]:.1f}")


PARTS = {
    "start": start_latency,
    "gang": gang_latency,
    "noop-500": lambda cluster, client: throughput(cluster, client, 500),
    "noop-2000": lambda cluster, client: throughput(cluster, client, 2000),
    "services": two_services,
    "fault": fault_recovery,
    "failover": failover,
    "host-loss": host_loss,
}


async def main(parts: list[str], tls: bool) -> None:
    state_dir = Path(tempfile.mkdtemp(prefix="gpu-platform-bench-"))
    nodes = tuple(NodeSpec(f"h{number}", "dgx-h100") for number in range(HOSTS))
    try:
        config = ClusterConfig(
            state_dir=state_dir,
            nodes=nodes,
            ui=False,
            tls=tls,
            settings={"GPU_PLATFORM_NODE__FAULT_POLICY": str(RESET_FOR_EVER)},
        )
        async with LocalCluster(config) as cluster:
            async with AsyncClient(cluster.api_url, retry_for_s=60, verify=trust(cluster)) as client:
                for part in parts:
                    reference_loop()
                    await PARTS[part](cluster, client)
            memory(cluster)
    finally:
        shutil.rmtree(state_dir, ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=", ".join(PARTS))
    parser.add_argument("--tls", action="store_true", help="certificates for everything")
    options = parser.parse_args()
    asyncio.run(main(options.parts or list(PARTS), options.tls))

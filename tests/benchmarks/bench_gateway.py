"""The node gateway: a thousand long polls at once, the time that it adds to a call, and its CPU time.

``python -m tests.benchmarks.bench_gateway [--polls 1000] [--calls 2000]``
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import grpc
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import GetSystemInfoRequest, PollActivityTaskQueueRequest

from gpu_platform.identity import key_ring, names
from gpu_platform.store import Store
from tests.support.temporal_server import temporal_server
from workers.gateway.rules import SERVICE
from workers.local.gateway import LocalGateway

HOSTS = 50


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def timed(channel: grpc.aio.Channel, calls: int) -> list[float]:
    """The times of calls, one after the other, in ms."""
    call = channel.unary_unary(SERVICE + "GetSystemInfo")
    request, found = GetSystemInfoRequest().SerializeToString(), []
    for _ in range(calls):
        begin = time.perf_counter()
        await call(request)
        found.append((time.perf_counter() - begin) * 1000)
    return found


def shown(what: str, times: list[float]) -> tuple[float, float]:
    cut = statistics.quantiles(times, n=100)
    print(f"{what:34} p50 {cut[49]:6.2f} ms   p99 {cut[98]:6.2f} ms")
    return cut[49], cut[98]


async def compared(direct: grpc.aio.Channel, gateway: grpc.aio.Channel, calls: int, when: str) -> None:
    """Calls on both ways, in turns of fifty, so that both meet the same load of the machine."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(max(1, calls // 50)):
        for channel, found in zip((direct, gateway), times, strict=True):
            found += await timed(channel, 50)
    before, through = shown(f"direct{when}", times[0]), shown(f"through the gateway{when}", times[1])
    added = [after - plain for plain, after in zip(before, through, strict=True)]
    print(f"{'added' + when:34} p50 {added[0]:6.2f} ms   p99 {added[1]:6.2f} ms   (wanted: p99 below 2 ms)")


async def main(polls: int, calls: int) -> None:
    with tempfile.TemporaryDirectory() as text:
        state = Path(text)
        store = Store(f"sqlite:///{state / 'platform.db'}")
        store.migrate()
        store.close()
        key_ring.create(state / "ring.json")
        local = LocalGateway(state / "gateway")
        hosts = [f"h{number}" for number in range(HOSTS)]
        local.make_certificates(hosts)
        async with temporal_server() as client:
            address = client.service_client.config.target_host
            env = {
                **os.environ,
                **local.env,
                "GPU_PLATFORM_STATE_DIR": str(state),
                "GPU_PLATFORM_KEY_RING": str(state / "ring.json"),
                "GPU_PLATFORM_TEMPORAL__ADDRESS": address,
                "GPU_PLATFORM_TEMPORAL__NAMESPACE": client.namespace,
            }
            process = subprocess.Popen([sys.executable, "-m", "workers.gateway"], env=env)  # noqa: ASYNC220
            try:
                channels = [channel_of(local, host) for host in hosts]
                await asyncio.gather(*[channel.channel_ready() for channel in channels])
                direct = grpc.aio.insecure_channel(address)
                await timed(direct, 50)
                await timed(channels[0], 50)
                await compared(direct, channels[0], calls, "")
                waiting = [
                    asyncio.ensure_future(poll(channels[n % HOSTS], hosts[n % HOSTS], client.namespace))
                    for n in range(polls)
                ]
                await asyncio.sleep(5)
                began = cpu_s(process.pid)
                await asyncio.sleep(10)
                print(f"{polls} long polls wait: {(cpu_s(process.pid) - began) * 10:.2f} % of a core")
                assert not any(task.done() for task in waiting)
                began = cpu_s(process.pid)
                await compared(direct, channels[1], calls, ", with the polls")
                print(f"CPU time of a call in the gateway: {(cpu_s(process.pid) - began) / calls * 1000:.2f} ms")
                memory = Path(f"/proc/{process.pid}/status").read_text().split("VmRSS:")[1].split("kB")[0]
                print(f"memory: {int(memory) >> 10} MiB")
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
                for channel in [direct, *channels]:
                    await channel.close()
            finally:
                process.terminate()
                process.wait()


def channel_of(local: LocalGateway, host: str) -> grpc.aio.Channel:
    """A connection with the certificate of a host."""
    env = local.env_of(host)
    own = Path(env["GPU_PLATFORM_TEMPORAL__TLS_CERT"]).read_bytes()
    secured = grpc.ssl_channel_credentials(Path(env["GPU_PLATFORM_TEMPORAL__TLS_CA"]).read_bytes(), own, own)
    name = names.dns_name(names.GATEWAY, names.DEFAULT_DOMAIN)
    options = [("grpc.ssl_target_name_override", name), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.secure_channel(env["GPU_PLATFORM_TEMPORAL__ADDRESS"], secured, options)


async def poll(channel: grpc.aio.Channel, host: str, namespace: str) -> bytes:
    """One long poll of a host's task queue."""
    request = PollActivityTaskQueueRequest(namespace=namespace, task_queue=TaskQueue(name=f"node-{host}"))
    return await channel.unary_unary(SERVICE + "PollActivityTaskQueue")(request.SerializeToString(), timeout=70)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--polls", type=int, default=1000)
    parser.add_argument("--calls", type=int, default=2000)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.polls, arguments.calls))

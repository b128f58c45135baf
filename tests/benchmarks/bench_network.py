"""What a network of its own costs the launch of an attempt: ``python -m tests.benchmarks.bench_network``. As root."""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.domain.jobs.attempt import HostPlan, LaunchRequest, Prepared
from gpu_platform.settings.node import NetworkSettings
from tests.support.hosts_rig import HostRig

LAUNCHES = 150
PAUSES_S = {"alone": 0.1, "while the network of the attempt before is removed": 0.0}
"""The kernel removes the links of an attempt that has ended in 10 to 40 ms, and lets nobody else change links then."""
NETWORKS = {
    "the host's": NetworkSettings(mode="host"),
    "its own, no way out": NetworkSettings(mode="isolated"),
    "its own, with an uplink": NetworkSettings(mode="isolated", allow=["192.0.2.0/24:443"]),
}


async def main() -> int:
    """One after the other in turn, so that a machine that changes its speed changes it for all."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            rigs = {
                name: HostRig(Path(directory) / str(number), name=f"box{number}", isolation="required", network=network)
                for number, (name, network) in enumerate(NETWORKS.items())
            }
        except HostUnavailable as error:
            print(f"no jails: {error}")
            return 0
        try:
            for when, pause_s in PAUSES_S.items():
                print(f"launched {when}:")
                show(await launches(rigs, pause_s))
        finally:
            for rig in rigs.values():
                await rig.aclose()
    return 0


async def launches(rigs: dict[str, HostRig], pause_s: float) -> dict[str, list[float]]:
    """Milliseconds of each launch, by the kind of network."""
    taken: dict[str, list[float]] = {name: [] for name in [*rigs, "with a gang of two hosts"]}
    for _ in range(LAUNCHES + 1):
        for name, rig in rigs.items():
            await asyncio.sleep(pause_s)
            taken[name].append(await launch(rig, rig.plan("true")))
        rig = rigs["its own, with an uplink"]
        plan = rig.plan("true", node_rank=0, world_size=2)
        meeting = Prepared(host=rig.settings.node.name, address="127.0.0.1", rendezvous_port=29_500)
        meeting = meeting.model_copy(update={"gang": ["127.0.0.1", "127.0.0.2"]})
        await asyncio.sleep(pause_s)
        taken["with a gang of two hosts"].append(await launch(rig, plan, meeting))
    return taken


def show(taken: dict[str, list[float]]) -> None:
    """Print each kind of network beside the host's."""
    base = statistics.median(taken["the host's"][1:])
    for name, values in taken.items():
        values = sorted(values[1:])  # the first starts the spawner
        p50, p95 = statistics.median(values), values[round(0.95 * len(values)) - 1]
        more = f"+{p50 - base:5.2f} ms (budget 10)"
        print(f"network: {name:<28} launch p50 {p50:6.2f} ms  p95 {p95:6.2f} ms  {more}  n={len(values)}")


async def launch(rig: HostRig, plan: HostPlan, rendezvous: Prepared | None = None) -> float:
    """Milliseconds until the rank executes."""
    began = time.perf_counter()
    rig.worker.launch(LaunchRequest(plan=plan, rendezvous=rendezvous))
    taken = (time.perf_counter() - began) * 1e3
    await rig.watch(plan)
    await rig.stop(plan.key)
    return taken


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

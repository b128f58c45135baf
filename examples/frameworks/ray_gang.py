"""Ray on a gang: rank 0 is the head and the driver, each other rank is a node of the cluster.

    gpu-platform submit --hosts 2 --gpus-per-host 2 --rank-per host -- python ray_gang.py

Ray opens ports of its own choice on every node, so the gang needs a network of its own, or hosts without a filter of
ports. Needs Ray on the hosts (pip install ray).
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from typing import Any

RANK, WORLD_SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
HEAD, PORT = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "6379"))
GPUS = len([gpu for gpu in os.environ.get("GPU_PLATFORM_GPUS", "").split(",") if gpu])
DEADLINE_S = 120.0


def start_node(*options: str) -> subprocess.Popen[bytes]:
    """A node of Ray, as a child that ends with this program. A ``/tmp`` that hosts share needs a directory for each."""
    directory = f"/tmp/ray-{os.environ.get('GPU_PLATFORM_JOB_ID', 'here')}-{RANK}"
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--num-gpus={GPUS}", *options]
    environ = {**os.environ, "RAY_TMPDIR": directory, "RAY_USAGE_STATS_ENABLED": "0"}
    return subprocess.Popen([*command, "--num-cpus=1", "--disable-usage-stats"], env=environ)


def lead(ray: Any) -> int:
    """Start the head, wait for the other nodes, and use all of them."""
    node = start_node("--head", f"--node-ip-address={HEAD}", f"--port={PORT}", "--include-dashboard=false")
    with socket.create_server((HEAD, PORT + 1)) as end:  # the other ranks stay as long as this connection
        links = [end.accept()[0] for _ in range(WORLD_SIZE - 1)]
        driver = connected(ray)
        deadline = time.monotonic() + DEADLINE_S
        while len(driver.nodes()) < WORLD_SIZE and time.monotonic() < deadline:
            time.sleep(0.2)

        @driver.remote(num_cpus=1)
        def where(number: int) -> tuple[int, str]:
            return number * number, os.environ.get("GPU_PLATFORM_HOST", "here")

        on = driver.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        nodes = [node["NodeID"] for node in driver.nodes()]
        calls = [where.options(scheduling_strategy=on(node, soft=False)) for node in nodes]
        answers = driver.get([call.remote(number) for number, call in enumerate(calls, start=1)])
        hosts = ", ".join(sorted({host for _, host in answers}))
        gpus = int(driver.cluster_resources().get("GPU", 0))
        total = sum(square for square, _ in answers)
        print(f"{total} computed by {len(driver.nodes())} nodes with {gpus} GPUs, on {hosts}", flush=True)
        driver.shutdown()
        for link in links:
            link.close()
    node.terminate()
    node.wait(30)
    return 0


def connected(ray: Any) -> Any:
    """Ray's module, as soon as the head answers."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            ray.init(address=f"{HEAD}:{PORT}", log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, RuntimeError, ValueError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
        else:
            return ray


def follow() -> int:
    """Be a node until rank 0 is done."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            link = socket.create_connection((HEAD, PORT + 1))
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    node = start_node(f"--address={HEAD}:{PORT}")
    link.recv(1)
    node.terminate()
    node.wait(30)
    return 0


def main() -> int:
    try:
        import ray  # pyright: ignore[reportMissingImports]  # not among the platform's dependencies
    except ImportError:
        print("Ray is not installed (pip install ray): there is no cluster to start", file=sys.stderr)
        return 1
    return lead(ray) if RANK == 0 else follow()


if __name__ == "__main__":
    sys.exit(main())

"""Dask on the platform: workers are jobs, and the tasks of this program run on them.

    python dask_pi.py

Needs ``pip install gpu-platform[dask]`` here and on the hosts.
"""

from __future__ import annotations

import os
import sys
from typing import Any

WORKERS, TASKS, STEPS = 2, 16, 100_000


def part(number: int) -> tuple[float, str]:
    """A part of the sum that gives pi, and the host that computed it."""
    width = 1.0 / (TASKS * STEPS)
    steps = range(number * STEPS, (number + 1) * STEPS)
    return sum(4.0 / (1.0 + ((i + 0.5) * width) ** 2) for i in steps) * width, os.environ["GPU_PLATFORM_HOST"]


def main() -> int:
    try:
        from distributed import Client  # pyright: ignore[reportMissingImports]

        from gpu_platform.integrations.dask import GpuPlatformCluster
    except ImportError:
        print("Dask is not installed (pip install gpu-platform[dask]): there is no cluster to start", file=sys.stderr)
        return 1
    gpus, host = int(os.environ.get("GPUS", "1")), os.environ.get("HOST")
    with GpuPlatformCluster(WORKERS, gpus=gpus, host=host) as cluster, Client(cluster) as client:
        client.wait_for_workers(WORKERS, timeout=120)
        parts: Any = client.gather(client.map(part, range(TASKS)))
        hosts = ", ".join(sorted({host for _, host in parts}))
        print(f"pi is {sum(value for value, _ in parts):.6f}, by {WORKERS} workers on {hosts}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

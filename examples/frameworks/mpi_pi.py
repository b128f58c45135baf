"""MPI under the platform: the processes of ``mpirun`` compute pi together, each a part of the sum.

    gpu-platform submit --hosts 2 --gpus-per-host 2 --launcher mpi -- mpirun python3 mpi_pi.py

Needs an MPI (Debian: apt-get install openmpi-bin) and mpi4py on the hosts.
"""

from __future__ import annotations

import os
import sys

STEPS = 1_000_000


def main() -> int:
    try:
        from mpi4py import MPI  # pyright: ignore[reportMissingImports]  # not among the platform's dependencies
    except ImportError:
        print("mpi4py is not installed (pip install mpi4py): nothing to compute", file=sys.stderr)
        return 1
    world = MPI.COMM_WORLD
    width = 1.0 / STEPS
    part = sum(4.0 / (1.0 + ((i + 0.5) * width) ** 2) for i in range(world.rank, STEPS, world.size)) * width
    pi = world.allreduce(part)
    hosts = world.gather(os.environ.get("GPU_PLATFORM_HOST", "here"))
    if world.rank == 0:
        print(f"pi is {pi:.6f}, by {world.size} processes on {', '.join(sorted(set(hosts)))}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Files and names of single processes that hang or fail, by a shim that each of them is started with.

The spawner, supervisors and ranks have an environment of their own, without the shim: see ``disks`` for a disk that
hangs for all processes of a host.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.clocks import built
from workers.local.cluster import LocalCluster

SOURCE = Path(__file__).with_name("io_shim.c")
ADDRESSES = {"GPU_PLATFORM_API_URL", "GPU_PLATFORM_TEMPORAL__ADDRESS", "GPU_PLATFORM_DATABASE_URL"}
HANGS, READ_ONLY, FAILING_SYNCS, NAMES_HANG = range(4)


@dataclass
class BadIo:
    """What one process meets."""

    path: Path

    def __post_init__(self) -> None:
        self.path.write_bytes(bytes(16))

    @contextlib.contextmanager
    def set(self, what: int, value: int = 1) -> Iterator[None]:
        """So it is in the block."""
        self._write(what, value)
        try:
            yield
        finally:
            self._write(what, 0)

    def left(self, what: int) -> int:
        """E.g. how many syncs have not failed yet."""
        return struct.unpack_from("i", self.path.read_bytes(), 4 * what)[0]

    def _write(self, what: int, value: int) -> None:
        # In place: processes have mapped it.
        with self.path.open("r+b") as file, mmap.mmap(file.fileno(), 16) as shape:
            struct.pack_into("i", shape, 4 * what, value)


def hand_out_io(cluster: LocalCluster, directory: Path) -> dict[str, BadIo]:
    """Before the cluster starts: by the name of the process. Empty where there is no C compiler."""
    shim = built(SOURCE, directory)
    found: dict[str, BadIo] = {}
    for child in cluster.children if shim else ():
        if child is cluster.temporal:
            continue
        bad = found[child.name] = BadIo(directory / f"io-{child.name}")
        before = child.env.get("LD_PRELOAD")
        child.env["LD_PRELOAD"] = f"{before}:{shim}" if before else str(shim)
        child.env["CHAOS_IO"] = str(bad.path)
        for name in ADDRESSES & child.env.keys():
            child.env[name] = child.env[name].replace("127.0.0.1", "localhost")  # a name, to be looked up
        child.env["CHAOS_IO_UNDER"] = str(cluster.config.state_dir)
    return found

"""A ``libcuda.so.1`` of our own, whose device memory is a file: one sees what a job left there, and that it is gone."""

from __future__ import annotations

import subprocess
from pathlib import Path

_SOURCE = Path(__file__).parent / "cuda.c"


class FakeCuda:
    """Programs with :attr:`environ` find one device with ``size_mib`` of memory, full of the bytes ``b"secret"``."""

    def __init__(self, directory: Path, size_mib: int = 70) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.memory = directory / "memory"
        self.soil()
        with self.memory.open("ab") as file:
            file.truncate(size_mib << 20)
        self.soil()
        library = directory / "libcuda.so.1"
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", library, _SOURCE], check=True
        )

    @property
    def environ(self) -> dict[str, str]:
        return {
            "LD_LIBRARY_PATH": str(self._directory),
            "FAKE_CUDA_MEMORY": str(self.memory),
            "FAKE_CUDA_FAULTS": str(self._directory / "faults"),
            "FAKE_CUDA_LOG": str(self._directory / "log"),
        }

    def soil(self) -> None:
        """Write what a job might leave, at the beginning and at the end."""
        with self.memory.open("r+b" if self.memory.exists() else "w+b") as file:
            file.write(b"secret" * 1000)
            file.seek(0, 2)
            if file.tell() > 6000:
                file.seek(-6, 2)
                file.write(b"secret")

    def fail(self, *faults: str) -> None:
        """See cuda.c."""
        (self._directory / "faults").write_text(" ".join(faults))

    @property
    def is_clean(self) -> bool:
        return not self.memory.read_bytes().strip(b"\0")

    @property
    def devices(self) -> list[str]:
        """``CUDA_VISIBLE_DEVICES`` of every program that used it."""
        log = self._directory / "log"
        return log.read_text().splitlines() if log.exists() else []

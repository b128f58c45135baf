from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.security.attacks import STAND_INS


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    """A directory with ``nvidia0``, ``nvidia1`` and ``nvidiactl``."""
    directory = tmp_path / "dev"
    directory.mkdir()
    names = ["nvidia0", "nvidia1", "nvidiactl"]
    for major, minor in STAND_INS:
        path = directory / names[0]
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        except OSError:
            path.unlink()
        else:
            names.pop(0)
        if not names:
            return directory
    pytest.skip(f"this kernel has too few of the devices {STAND_INS} to play GPUs")

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_platform.node.network.choice import choose_network
from gpu_platform.settings.node import NetworkSettings
from gpu_platform.store import Store
from tests.security.attacks import STAND_INS
from tests.security.hosts_on_lan import Host
from tests.security.tenants import Tenants, two_tenants
from tests.support.lan import Lan


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


@pytest.fixture(scope="session")
def networks(can_jail: None) -> None:
    """Skipped where attempts cannot have a network of their own; in CI that is an error."""
    found = choose_network(NetworkSettings())
    if not (found.isolated and found.gangs):
        assert not os.environ.get("CI"), found.missing
        pytest.skip(str(found.missing))


@pytest.fixture
def lan() -> Iterator[Lan]:
    lan = Lan()
    yield lan
    lan.close()


@pytest.fixture
async def hosts(lan: Lan, tmp_path: Path) -> AsyncIterator[Any]:
    """Makes hosts."""
    made: list[Host] = []

    def make(name: str, **node: Any) -> Host:
        made.append(Host(lan.machine(name), tmp_path / name, **node))
        return made[-1]

    yield make
    for host in made:
        await host.aclose()


@pytest.fixture
async def tenants(sqlite_store: Store) -> AsyncIterator[Tenants]:
    async with two_tenants(sqlite_store) as tenants:
        yield tenants

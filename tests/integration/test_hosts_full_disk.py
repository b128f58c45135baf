"""The disk that holds a host's records is full: clear words, no rank lost, and all goes on when there is room."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpu_platform.domain.errors import HostUnavailable
from tests.support.hosts_rig import HostRig


class Disk:
    def __init__(self, path: Path) -> None:
        self._ballast = path / "ballast"

    def fill(self) -> None:
        with self._ballast.open("ab", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1 << 9):
                with suppress(OSError):
                    while True:
                        file.write(bytes(size))

    def make_room(self) -> None:
        self._ballast.unlink(missing_ok=True)


@pytest.fixture
def disk(small_disk: Path) -> Disk:
    return Disk(small_disk)


@pytest.fixture
async def host(small_disk: Path, disk: Disk) -> AsyncIterator[HostRig]:
    rig = HostRig(small_disk)
    yield rig
    disk.make_room()
    await rig.aclose()


async def test_nothing_starts_until_there_is_room(host: HostRig, disk: Disk) -> None:
    plan = host.plan("echo", "hello")
    disk.fill()
    for operation in (lambda: host.worker.prepare(plan), lambda: host.launch(plan)):
        with pytest.raises(
            HostUnavailable,
            match=r"box cannot write its records: the disk of .* is full \(No space.*\): make",
        ):
            operation()
    disk.make_room()
    host.launch(plan)
    assert (await host.watch(plan)).first_failure is None
    assert host.log(plan) == "hello\n"


async def test_a_running_rank_goes_on_and_its_end_is_known(host: HostRig, disk: Disk) -> None:
    plan = host.plan("sh", "-c", "read x < $GO; echo went on; exit 5", env={"GO": str(host.home / "go")})
    os.mkfifo(host.home / "go")
    host.launch(plan)
    disk.fill()
    host.restart()
    assert host.worker.attempts() == [plan.key], "a node worker that starts on a full disk finds it"
    (host.home / "go").write_text("now\n")
    # Its supervisor tries for a minute to record the exit.
    disk.make_room()
    exits = await host.watch(plan)
    assert [(rank.exit_code, rank.vanished) for rank in exits.exits] == [(5, False)]


async def test_what_must_stop_dies_on_a_full_disk_too_and_is_only_released_when_that_is_recorded(
    host: HostRig, disk: Disk
) -> None:
    plan = host.plan("sh", "-c", "trap '' TERM; sleep 1000; sleep 1000")
    host.launch(plan)
    disk.fill()
    with pytest.raises(HostUnavailable, match="make room there"):
        await host.stop(plan.key)
    assert not host.processes(plan.key), "it is dead"
    assert host.worker.attempts() == [plan.key], "but not done with"
    disk.make_room()
    await host.stop(plan.key)
    assert host.worker.attempts() == []

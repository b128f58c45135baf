"""How a host asks for its lease: before a planned restart, and while no service answers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.hosts.lease import HostReport, LeaseAnswer
from gpu_platform.domain.hosts.lease_protocol import LeaseTimes, renews
from gpu_platform.node.system import lease_file
from gpu_platform.node.system.lease_file import Lease, LeaseFile
from gpu_platform.node.system.ports import free_port
from gpu_platform.node.system.records import boot_clock_s
from gpu_platform.settings import Settings
from tests.support.store_cluster import inventory
from tests.support.waiting import eventually
from workers.node.lease_keeper import LeaseKeeper
from workers.node.lease_metrics import WAYS, LeaseMetrics


def keeper_of_a_cluster(tmp_path: Path, members: int) -> LeaseKeeper:
    clock = SimpleNamespace(drain=lambda draining: None)
    worker = SimpleNamespace(host="h0", checkpointing=SimpleNamespace(clock=clock))
    path = LeaseFile(str(tmp_path / "lease.json"))
    keeper = LeaseKeeper(Settings(), cast(Any, worker), cast(Any, None), lambda _: None, cast(Any, None), path)
    keeper._lease = replace(keeper._lease, members=frozenset(f"h{number}" for number in range(members)))
    return keeper


async def test_an_answer_through_temporal_that_did_not_renew_the_lease_is_followed_up_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that stands still would cost a quarter of the lease, and no vote counts meanwhile."""
    keeper = keeper_of_a_cluster(tmp_path, 3)
    made = HostReport(name="h0", inventory=inventory("h0", 1), session="s", address="127.0.0.1", url="http://a:1")
    made = made.model_copy(update={"attempts": [AttemptKey(job_id="j-1", attempt=1)]})
    asked, renews = [], iter([False, True, True])

    async def temporal(report: HostReport) -> LeaseAnswer:
        asked.append("temporal")
        return LeaseAnswer(ttl_s=10, round=1, renewed=next(renews))

    async def stands_still(*_: object) -> LeaseAnswer:
        asked.append("service")
        raise TimeoutError

    monkeypatch.setattr(keeper, "_make_report", lambda: made)
    monkeypatch.setattr(keeper, "_temporal", temporal)
    monkeypatch.setattr(keeper, "_post", stands_still)
    for _ in range(3):
        assert await keeper._report(cast(Any, None)) is not None
    assert asked == ["service", "temporal", "temporal", "service", "temporal"]


@pytest.mark.parametrize(("members", "asks"), [(20, True), (21, False)])
async def test_a_host_without_ranks_is_not_lost_because_services_stand_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, members: int, asks: bool
) -> None:
    """In a large cluster it waits: services that are only slow would get slower by what Temporal costs."""
    keeper = keeper_of_a_cluster(tmp_path, members)
    asked = []

    async def temporal(report: HostReport) -> LeaseAnswer:
        asked.append(report.name)
        return LeaseAnswer(ttl_s=10, round=1)

    async def stands_still(*_: object) -> LeaseAnswer:
        raise TimeoutError

    made = HostReport(name="h0", inventory=inventory("h0", 1), session="s", address="127.0.0.1", url="http://a:1")
    monkeypatch.setattr(keeper, "_make_report", lambda: made)
    monkeypatch.setattr(keeper, "_temporal", temporal)
    monkeypatch.setattr(keeper, "_post", stands_still)
    monkeypatch.setattr(keeper._turns, "is_turn", lambda *_, **__: True)
    assert (await keeper._report(cast(Any, None)) is not None) == asks
    assert bool(asked) == asks


@pytest.mark.parametrize(
    ("lease", "replaced", "way"),
    [
        ({"run_until": 9.0, "leased_until": 9.0}, False, "service"),
        ({"run_until": 9.0, "leased_until": 9.0}, True, "temporal"),
        ({"run_until": 9.0, "leased_until": 7.0}, False, "votes"),
        ({"run_until": 7.0, "leased_until": 7.0}, True, "nothing"),
    ],
)
def test_metrics_say_what_keeps_the_lease(tmp_path: Path, lease: dict[str, float], replaced: bool, way: str) -> None:
    keeper = keeper_of_a_cluster(tmp_path, 3)
    keeper._lease = replace(keeper._lease, answered_at=1.0, **lease)
    keeper.services.are_replaced = replaced
    registry = CollectorRegistry()
    registry.register(LeaseMetrics(keeper, clock=lambda: 8.0))
    values = {one: registry.get_sample_value("gpu_platform_host_lease_kept_by", {"way": one}) for one in WAYS}
    assert values == {one: float(one == way) for one in WAYS}
    assert registry.get_sample_value("gpu_platform_host_lease_answer_age_seconds") == 7.0
    assert registry.get_sample_value("gpu_platform_host_lease_left_seconds") == max(0.0, lease["run_until"] - 8.0)


async def test_the_lease_of_a_restart_is_asked_for_until_it_is_given(tmp_path: Path) -> None:
    """A leader that began just now does not renew by a report that brings back a round from before it."""
    leader_round, reports = 0, []

    async def temporal(report: HostReport) -> LeaseAnswer:
        reports.append(report)
        return LeaseAnswer(ttl_s=10, round=leader_round, renewed=report.round == leader_round)

    async def end_ranks_without_lease() -> None:
        """The keeper may look before the first lease is given."""

    worker = SimpleNamespace(
        end_ranks_without_lease=end_ranks_without_lease,
        host="a",
        attempts=lambda: [AttemptKey(job_id="j-1", attempt=1)],
        checkpointing=SimpleNamespace(clock=SimpleNamespace(drain=lambda draining: None)),
    )
    path = tmp_path / "lease.json"
    settings = Settings(api_url=f"http://127.0.0.1:{free_port()}")  # no service answers: Temporal is the way
    fields = {"session": "s", "address": "127.0.0.1", "url": "http://127.0.0.1:1"}
    made = HostReport(name="a", inventory=inventory("a", 1), **fields)
    keeper = LeaseKeeper(settings, cast(Any, worker), lambda: made, lambda _: None, temporal, LeaseFile(str(path)))
    running = asyncio.create_task(keeper.run())

    async def is_renewed() -> bool:
        lease = lease_file.read_lease(str(path))
        return lease is not None and lease.run_until_s > 0

    await eventually(is_renewed, "the first lease")
    leader_round = 1_000
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert [(report.round, report.lease_s) for report in reports[-2:]] == [(0, 60.0), (1_000, 60.0)]
    assert lease_file.ends_in_s(str(path)) > 40


@pytest.mark.parametrize("keeps_file", [True, False])
async def test_a_node_worker_that_dies_after_its_first_report_keeps_its_host(tmp_path: Path, keeps_file: bool) -> None:
    """It brings back the round that its predecessor was answered. Else no report of a node worker that crashes again
    and again renews the lease, and its host is LOST although the service hears it."""
    path, renewed = tmp_path / "lease.json", []
    made = HostReport(name="a", inventory=inventory("a", 1), session="s", address="127.0.0.1", url="http://a:1")
    clock = SimpleNamespace(drain=lambda draining: None)
    worker = SimpleNamespace(host="a", checkpointing=SimpleNamespace(clock=clock))
    settings = Settings()
    for life in range(5):

        async def temporal(report: HostReport, round: int = 100 + 2 * life) -> LeaseAnswer:
            does = renews(LeaseTimes.of(10.0), report.round, round)
            renewed.append(does)
            return LeaseAnswer(ttl_s=10, round=round, term=1, renewed=does)

        keeper = LeaseKeeper(settings, cast(Any, worker), lambda: made, lambda _: None, temporal, LeaseFile(str(path)))
        await keeper._by_temporal(made, None)
        if not keeps_file:
            path.unlink()
    assert renewed == [False, *[keeps_file] * 4]
    assert not keeps_file or lease_file.ends_in_s(str(path)) > 5


def test_a_full_disk_does_not_end_the_lease(small_disk: Path) -> None:
    """Otherwise all ranks of a host would end some seconds after somebody filled its disk."""
    record, now = LeaseFile(str(small_disk / "lease.json")), boot_clock_s()
    record.write(Lease(now + 10, now + 9, 1))
    with (small_disk / "ballast").open("ab", buffering=0) as ballast:
        for size in (1 << 16, 1 << 9):
            with suppress(OSError):
                while True:
                    ballast.write(bytes(size))
    for number in range(1, 5):
        renewed = Lease(now + 10 + number, now + 9 + number, number)
        record.write(renewed)
        assert record.read() == renewed
    (small_disk / "ballast").unlink()
    record.write(Lease(now, now, 9))
    assert record.read() == Lease(now, now, 9)

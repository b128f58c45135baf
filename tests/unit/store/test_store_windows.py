"""Windows in the store: what two of them may keep, what the leader opens and closes, and whose drain stays."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from gpu_platform.domain.errors import InUse, InvalidRequest, NotFound, PlatformError, StaleEpoch
from gpu_platform.domain.states import HostState
from gpu_platform.domain.windows import WindowChanges, WindowRequest
from gpu_platform.store import Store, windows
from gpu_platform.store.hosts import hosts
from gpu_platform.store.leadership import leader
from tests.support.store_cluster import NOW, Cluster

HOUR = timedelta(hours=1)


def request(name: str = "w", **given: object) -> WindowRequest:
    usual: dict[str, object] = {"name": name, "start_at": NOW + HOUR, "duration_s": 3600, "users": ["anna"]}
    if not {"hosts", "host_count", "gpu_count"} & given.keys():
        usual["hosts"] = ["a"]
    if given.get("maintenance"):
        del usual["users"]
    return WindowRequest.model_validate(usual | given)


@pytest.fixture
def two_hosts(sqlite_store: Store) -> Store:
    Cluster(sqlite_store).host("a", gpus=4).host("b", gpus=4)
    return sqlite_store


def state_of(store: Store, name: str) -> HostState:
    return hosts.get_host(store, name, NOW).state


def test_two_windows_keep_the_same_gpu_only_at_different_times(two_hosts: Store) -> None:
    windows.create(two_hosts, request("first", repeat="weekly"), "op", NOW)
    with pytest.raises(InUse, match=r"second and first would keep the same GPUs at 2\d{3}-"):
        windows.create(two_hosts, request("second", start_at=NOW + timedelta(days=14, minutes=90)), "op", NOW)
    windows.create(two_hosts, request("second", start_at=NOW + 2 * HOUR), "op", NOW)
    windows.create(two_hosts, request("third", hosts=["b"]), "op", NOW)
    with pytest.raises(InUse, match="second and first"):
        windows.change(two_hosts, "second", WindowChanges(start_at=NOW + HOUR), "op", NOW)
    with pytest.raises(InUse, match="there is a window 'third'"):
        windows.create(two_hosts, request("third", hosts=["b"], start_at=NOW + 9 * HOUR), "op", NOW)


def test_as_many_as_are_asked_for_are_chosen_around_other_windows(two_hosts: Store) -> None:
    windows.create(two_hosts, request("some", gpu_count=6), "op", NOW)
    kept = {one.host: one.gpu_indices for one in windows.get_window(two_hosts, "some").hosts}
    assert sorted(map(len, kept.values())) == [2, 4]  # type: ignore[arg-type]
    windows.create(two_hosts, request("rest", gpu_count=2), "op", NOW)
    with pytest.raises(InvalidRequest, match="asked for 1 GPUs; 0 are not kept"):
        windows.create(two_hosts, request("more", gpu_count=1), "op", NOW)
    with pytest.raises(InvalidRequest, match="asked for 1 hosts with T4; 0"):
        windows.create(two_hosts, request("more", host_count=1, gpu_model="T4", start_at=NOW + 9 * HOUR), "op", NOW)
    with pytest.raises(InvalidRequest, match="no host has a name like x"):
        windows.create(two_hosts, request("x", hosts=["a", "x*"]), "op", NOW)


def test_of_two_made_at_once_one_is_refused(store: Store) -> None:
    Cluster(store).host("a", gpus=1).host("b", gpus=1)
    together, found = threading.Barrier(2), list[str]()

    def make(name: str, order: list[str]) -> None:
        together.wait(10)
        try:
            windows.create(store, request(name, hosts=order), "op", NOW)
            found.append("made")
        except InUse:
            found.append("refused")

    threads = [threading.Thread(target=make, args=given) for given in (("one", ["a", "b"]), ("two", ["b", "a"]))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(found) == ["made", "refused"]


def test_the_leader_opens_closes_and_repeats(two_hosts: Store) -> None:
    epoch = leader.begin_epoch(two_hosts, "me", NOW)
    windows.create(
        two_hosts, request("w", maintenance=True, repeat="daily", until_at=NOW + timedelta(days=2)), "op", NOW
    )
    assert windows.advance(two_hosts, epoch, NOW) == []
    begin = NOW + HOUR
    assert windows.advance(two_hosts, epoch, begin) == ["w"]
    assert (state_of(two_hosts, "a"), state_of(two_hosts, "b")) == (HostState.DRAINED, HostState.READY)
    # A clock that was set back closes nothing.
    assert windows.advance(two_hosts, epoch, begin + HOUR / 2) == []
    assert windows.advance(two_hosts, epoch, NOW) == []
    assert windows.read_rows(two_hosts)[0].is_open
    with pytest.raises(StaleEpoch):
        windows.advance(two_hosts, epoch - 1, begin + HOUR)
    assert windows.advance(two_hosts, epoch, begin + HOUR) == ["w"]
    assert state_of(two_hosts, "a") is HostState.READY
    [row] = windows.read_rows(two_hosts)
    assert (row.start, row.is_open) == ((begin + timedelta(days=1)).timestamp(), False)
    # Nobody led from the beginning to the end of the second one, which was the last.
    later = NOW + timedelta(days=30)
    assert windows.advance(two_hosts, epoch, later) == ["w"]
    assert windows.read_rows(two_hosts) == []
    assert state_of(two_hosts, "a") is HostState.READY


def test_a_simulation_knows_what_the_leader_will_have_done(two_hosts: Store) -> None:
    """``WindowRow.as_of`` is what simulations and dry runs at later moments go by."""
    epoch = leader.begin_epoch(two_hosts, "me", NOW)
    draw = Random(1)
    windows.create(two_hosts, request("once", hosts=["a"]), "op", NOW)
    windows.create(two_hosts, request("daily", hosts=["b"], repeat="daily", until_at=NOW + 75 * HOUR), "op", NOW)
    at = NOW
    while rows := windows.read_rows(two_hosts):
        at += draw.choice([HOUR / 4, HOUR, 10 * HOUR, 40 * HOUR])
        foreseen = [then for row in rows if (then := row.as_of(at.timestamp())) is not None]
        while windows.advance(two_hosts, epoch, at):
            pass  # what is closed is opened again at the next look, if that is due
        assert windows.read_rows(two_hosts) == foreseen


@pytest.mark.parametrize("drained", ["before", "meanwhile", "online meanwhile"])
def test_what_an_operator_ordered_stays(two_hosts: Store, drained: str) -> None:
    epoch = leader.begin_epoch(two_hosts, "me", NOW)
    windows.create(two_hosts, request("w", maintenance=True), "op", NOW)

    def order(state: HostState) -> None:
        hosts.set_host_state(two_hosts, "a", state, reason="smoke", actor="op", now=NOW)

    if drained == "before":
        order(HostState.DRAINING)
    windows.advance(two_hosts, epoch, NOW + HOUR)
    if drained != "before":
        order(HostState.READY if drained == "online meanwhile" else HostState.DRAINING)
    windows.remove(two_hosts, "w", "op", NOW + HOUR)
    found = hosts.get_host(two_hosts, "a", NOW)
    expected = HostState.READY if drained == "online meanwhile" else HostState.DRAINED
    assert (found.state, found.reason) == (expected, None if expected is HostState.READY else "smoke")


def test_jobs_in_the_way_are_named_unless_they_are_to_be_stopped(two_hosts: Store) -> None:
    cluster = Cluster(two_hosts)
    cluster.queued("j-endless")
    cluster.reserve("j-endless", {"a": [0]})
    with pytest.raises(InUse, match="j-endless may still run when w begins"):
        windows.create(two_hosts, request(), "op", NOW)
    windows.create(two_hosts, request("other", gpu_count=3), "op", NOW)
    assert windows.describe(two_hosts, "other").to_stop == [], "GPUs that nobody has are chosen first"
    windows.remove(two_hosts, "other", "op", NOW)
    windows.create(two_hosts, request(stop_running=True), "op", NOW)
    assert windows.describe(two_hosts, "w").to_stop == ["j-endless"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"duration_s": 90_000, "repeat": "daily"}, "make it shorter"),
        ({"maintenance": True, "users": ["anna"]}, "nobody's jobs"),
        ({"users": []}, "say whose jobs"),
        ({"maintenance": True, "gpu_count": 1}, "whole hosts"),
        ({"hosts": ["a"], "host_count": 2}, "say one of"),
        ({"until_at": NOW + HOUR}, "say repeat"),
        ({"end_at": NOW}, "later than start_at|either end_at"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        request(**given)


def test_it_must_end_in_the_future_and_be_there(two_hosts: Store) -> None:
    past = datetime(2000, 1, 1, tzinfo=UTC)
    with pytest.raises(InvalidRequest, match="end it later"):
        windows.create(two_hosts, request(start_at=past, duration_s=None, end_at=past + HOUR), "op", NOW)
    lost: list[type[PlatformError]] = []
    for ask in (
        lambda: windows.remove(two_hosts, "w", "op", NOW),
        lambda: windows.change(two_hosts, "w", WindowChanges(duration_s=5), "op", NOW),
        lambda: windows.describe(two_hosts, "w"),
    ):
        with pytest.raises(NotFound) as refused:
            ask()
        lost.append(refused.type)
    assert lost == [NotFound] * 3

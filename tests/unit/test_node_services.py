"""Which service a host asks, and for how long it waits."""

from __future__ import annotations

import threading

import pytest

from workers.node import services
from workers.node.services import Services

A, B = "https://a.example:8700", "http://b:8700/"


def reached(found: Services) -> list[str]:
    return [one.reached_at for one in found.in_order()]


async def looked_up(found: Services, monkeypatch: pytest.MonkeyPatch, **names: list[str]) -> None:
    monkeypatch.setattr(services, "lookup_all", lambda name: names.get(name.partition(".")[0], []))
    await found.look_up()


async def test_each_address_of_a_name_is_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Services([A, B, A])
    assert reached(found) == [A, "http://b:8700"]
    await looked_up(found, monkeypatch, a=["10.0.0.1", "10.0.0.2", "fd00::1"], b=["10.0.0.9"])
    assert reached(found) == [
        "https://10.0.0.1:8700",
        "https://10.0.0.2:8700",
        "https://[fd00::1]:8700",
        "http://10.0.0.9:8700",
    ]
    first = found.in_order()[0]
    assert first.headers == {"host": "a.example:8700"}
    assert first.extensions == {"sni_hostname": "a.example"}, "its certificate has the name"


async def test_what_answered_stays_first_and_a_name_server_may_be_away(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Services([A, B])
    await looked_up(found, monkeypatch, a=["10.0.0.1", "10.0.0.2"])
    found.answered(found.in_order()[1])
    assert reached(found)[:2] == ["https://10.0.0.2:8700", "https://10.0.0.1:8700"]
    await looked_up(found, monkeypatch)
    assert reached(found)[:2] == ["https://10.0.0.2:8700", "https://10.0.0.1:8700"]
    await looked_up(found, monkeypatch, a=["10.0.0.2", "10.0.0.3"])
    assert sorted(reached(found)) == ["http://b:8700", "https://10.0.0.2:8700", "https://10.0.0.3:8700"]
    await looked_up(found, monkeypatch, a=["10.0.0.3"])
    assert sorted(reached(found)) == ["http://b:8700", "https://10.0.0.3:8700"]


async def test_a_name_server_that_never_answers_takes_no_address_away(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Services([A])
    await looked_up(found, monkeypatch, a=["10.0.0.1"])
    hangs = threading.Event()
    monkeypatch.setattr(services, "lookup_all", lambda name: hangs.wait(60))
    monkeypatch.setattr(found._names_lane, "_patience_s", 0.05)
    try:
        for _ in range(3):
            await found.look_up()
        assert reached(found) == ["https://10.0.0.1:8700"]
        assert sum(thread.name.startswith("names") for thread in threading.enumerate()) == 1
    finally:
        hangs.set()


@pytest.mark.parametrize("count", [1, 2, 3, 10])
def test_all_are_asked_within_half_a_lease(count: int) -> None:
    found = Services([f"http://10.0.0.{number}:8700" for number in range(count)])
    assert found.patience_s(10.0) * count == pytest.approx(2.5 if count == 1 else 5.0)
    found.are_replaced = True
    assert found.patience_s(10.0) * count <= 5.0, "Temporal answers in their place"
    assert found.patience_s(10.0) <= 0.7
    found.answered(found.in_order()[-1])
    assert not found.are_replaced

"""The result of a watch reaches Temporal, however long Temporal is away."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.activity import _CompleteAsyncError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment

from activities.node import delivery
from activities.node.delivery import delivered


class Temporal:
    """Answers each completion with the next of ``answers``; None accepts it."""

    def __init__(self, *answers: RPCStatusCode | None) -> None:
        self.answers, self.results = list(answers), list[Any]()

    def get_async_activity_handle(self, *, task_token: bytes) -> Temporal:
        assert task_token
        return self

    async def complete(self, result: object) -> None:
        self.results.append(result)
        if (status := self.answers.pop(0)) is not None:
            raise RPCError("no", status, b"")


async def deliver(temporal: Temporal) -> object:
    environment = ActivityEnvironment(client=temporal)  # pyright: ignore[reportArgumentType]
    return await environment.run(delivered, "exits")


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "PAUSE_S", 0.0)


async def test_it_is_said_again_until_temporal_answers() -> None:
    away = RPCStatusCode.UNAVAILABLE
    temporal = Temporal(away, RPCStatusCode.DEADLINE_EXCEEDED, away, None)
    with pytest.raises(_CompleteAsyncError):
        await deliver(temporal)
    assert temporal.results == ["exits"] * 4


async def test_a_watch_that_is_no_more_is_left() -> None:
    temporal = Temporal(RPCStatusCode.UNAVAILABLE, RPCStatusCode.NOT_FOUND)
    with pytest.raises(_CompleteAsyncError):
        await deliver(temporal)


async def test_what_temporal_refuses_is_left_to_the_sdk() -> None:
    assert await deliver(Temporal(RPCStatusCode.INVALID_ARGUMENT)) == "exits"

"""The loaded state is spared by later collections, and an earlier state does not stay."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from workers.scheduler.garbage import spare_loaded_objects


class State:
    """It refers to itself, as the scheduler's core does."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_later_collections_pass_over_what_was_loaded() -> None:
    state = State()
    spare_loaded_objects()
    assert all(one is not state for one in gc.get_objects())


def test_an_earlier_state_goes_when_another_one_is_loaded() -> None:
    state = State()
    seen = weakref.ref(state)
    spare_loaded_objects()
    del state
    gc.collect()
    assert seen() is not None, "it is spared"
    spare_loaded_objects()
    assert seen() is None

"""The service does without a plugin whose call does not return."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_platform.domain.errors import PluginFailed
from gpu_platform.domain.plugin import DOES_NOT_RETURN
from gpu_platform.scheduling.cluster.snapshot import ChangeKind
from gpu_platform.scheduling.placing.framework import FilterText
from gpu_platform.scheduling.plugin_loading import SiteFilter
from service.operations import plugin_calls
from service.operations.plugin_calls import hanging, in_time


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin_calls, "PATIENCE_S", 0.3)
    monkeypatch.setattr(plugin_calls, "_hung", {})


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    goes_on = threading.Event()
    yield goes_on
    goes_on.set()


def filter_that(waits: Any) -> SiteFilter:
    text = FilterText("strange", "something else", "wait")
    plugin = SimpleNamespace(can_change_by=ChangeKind.USE, text=text, applies_to=lambda query: waits())
    return SiteFilter("slow", cast(Any, plugin))


def test_one_that_hangs_is_named_and_not_tried_again_for_a_while(
    stuck: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = filter_that(stuck.wait)
    with pytest.raises(PluginFailed) as found:
        in_time(partial(site.applies_to, cast(Any, None)))
    assert (found.value.fault.name, found.value.fault.error) == ("slow", DOES_NOT_RETURN)
    assert hanging() == [found.value.fault]
    monkeypatch.setattr(plugin_calls, "TRIED_AGAIN_S", 0.0)
    assert hanging() == []


def test_who_computes_for_long_and_calls_plugins_that_return_is_waited_for() -> None:
    site = filter_that(lambda: time.sleep(0.05))

    def computes() -> str:
        until = time.monotonic() + 3 * plugin_calls.PATIENCE_S
        while time.monotonic() < until:
            site.applies_to(cast(Any, None))
        return "done"

    assert in_time(computes) == "done"
    assert hanging() == []


def test_an_error_of_the_call_is_its_own() -> None:
    def late() -> None:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        in_time(late)

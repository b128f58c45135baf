"""A plugin does what it likes: it becomes a fault with its name, and the scheduler goes on without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_platform.domain.errors import PluginFailed
from gpu_platform.domain.plugin import DOES_NOT_RETURN, PluginFault, PluginKind
from gpu_platform.scheduling import plugin_loading
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.policy_file import is_broken, read_policy
from tests.builders import cluster, job
from tests.support.plugins import BINDERS, FILTERS, ORDER_FACTORS, SCORES, install

KINDS: dict[PluginKind, tuple[str, dict[str, object]]] = {
    "filter": (FILTERS, {"filters": ["wild"]}),
    "score": (SCORES, {"weights": {"wild": 1.0}}),
    "order": (ORDER_FACTORS, {"order_weights": {"wild": 1.0}}),
    "binder": (BINDERS, {"binder": "wild"}),
}
"""Kind -> where it is announced, and a policy that names it."""
MODULE = """
import asyncio, os, sys
import numpy as np
from gpu_platform.scheduling.cluster.snapshot import ChangeKind
from gpu_platform.scheduling.placing.framework import FilterText
from gpu_platform.scheduling.plugin_loading import plugin_at_work

class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")

class Odd(BaseException):
    pass

{at_import}

class Wild:
    name = "wild"
    can_change_by = ChangeKind.USE
    text = FilterText("strange", "something else", "wait")
    def __init__(self):
        {at_begin}
    def applies_to(self, query):
        return True
    def __call__(self, *given):
        {at_call}
"""
RAISES = {
    "sys.exit(3)": "SystemExit: 3",
    "exit()": "SystemExit",
    "raise GeneratorExit": "GeneratorExit",
    "raise asyncio.CancelledError('x')": "CancelledError: x",
    "raise Odd('x')": "Odd: x",
    "raise Mute": "Mute: its text cannot be read",
    "raise ValueError('x\\x1b[2J\\nforged')": "ValueError: x\\x1b[2J\\nforged",
    "raise ValueError('x' * 100_000)": "ValueError: xxx",
    "raise RecursionError": "RecursionError",
    "raise StopIteration": "StopIteration",
    "raise MemoryError": "MemoryError",
}
RETURNS = (
    *("None", "'a'", "1", "[]", "object()", "np.zeros(0)", "np.zeros((1, 1, 1), np.uint64)", "np.array(['x'])"),
    *("float('nan')", "float('inf')", "np.full(99, np.nan)", "(one for one in ())", "Wild", "{}", "b''"),
)
AT_WORK = "raise ValueError(plugin_at_work().brief)"


@pytest.fixture
def announce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def write(kind: PluginKind, module: str = "wild", **parts: str) -> None:
        file = tmp_path / module / f"{module}.py"
        file.parent.mkdir()
        begin = {"at_import": "", "at_begin": "pass", "at_call": "pass"}
        file.write_text(MODULE.format(**{**begin, **parts}))
        install(monkeypatch, file.parent / "site", file, KINDS[kind][0], wild="Wild")

    return write


def used(policy: Policy) -> PluginFault:
    """The fault of the plugin when jobs are placed. They are placed without it."""
    machines = cluster().hosts(3)
    with pytest.raises(PluginFailed) as failed:
        placements(machines, policy)
    assert placements(machines, policy.without(failed.value.fault)) == 2
    return failed.value.fault


def placements(machines: cluster, policy: Policy) -> int:
    scheduler = machines.scheduler(policy)
    for name in ("a", "b"):
        scheduler.add(job(1, name=name).row)
    return len(scheduler.decide(0.0).placements)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("code", RAISES)
def test_whatever_a_call_raises_is_a_fault_with_its_name(
    announce: Callable[..., None], kind: PluginKind, code: str
) -> None:
    announce(kind, at_call=code)
    fault = used(read_policy(KINDS[kind][1]))
    assert (fault.kind, fault.name) == (kind, "wild")
    assert fault.error.startswith(RAISES[code])
    assert fault.error.isprintable()
    assert len(fault.error) <= 200
    assert plugin_loading.plugin_at_work() is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["at_import", "at_begin"])
@pytest.mark.parametrize("code", RAISES)
def test_whatever_loading_raises_is_a_fault_with_its_name(
    announce: Callable[..., None], kind: PluginKind, place: str, code: str
) -> None:
    announce(kind, **{place: code})
    (fault,) = read_policy(KINDS[kind][1], do_without=is_broken).plugin_faults
    assert (fault.kind, fault.name) == (kind, "wild")
    assert fault.error.startswith(RAISES[code])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", RETURNS)
def test_whatever_a_call_returns_is_checked(announce: Callable[..., None], kind: PluginKind, value: str) -> None:
    if (kind, value) in (("binder", "None"), ("order", "1")):
        return  # the platform chooses; a number
    announce(kind, at_call=f"return {value}")
    fault = used(read_policy(KINDS[kind][1]))
    assert (fault.kind, fault.name) == (kind, "wild")


@pytest.mark.parametrize("kind", KINDS)
def test_two_packages_with_one_name_are_a_fault(announce: Callable[..., None], kind: PluginKind) -> None:
    announce(kind, "first")
    announce(kind, "second")
    (fault,) = read_policy(KINDS[kind][1], do_without=is_broken).plugin_faults
    assert fault.error == "ValueError: several packages announce it: first:Wild, second:Wild"


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_does_not_return_can_be_named(announce: Callable[..., None], kind: PluginKind) -> None:
    announce(kind, at_call=AT_WORK)
    error = used(read_policy(KINDS[kind][1])).error
    assert error == f"ValueError: the {kind} plugin wild is switched off ({DOES_NOT_RETURN})"


@pytest.mark.parametrize("kind", KINDS)
def test_only_a_plugin_that_hung_is_not_tried_again(announce: Callable[..., None], kind: PluginKind) -> None:
    announce(kind)
    policy = read_policy(KINDS[kind][1])
    hung = PluginFault(kind=kind, name="wild", error=DOES_NOT_RETURN)
    others = [hung.model_copy(update={"error": "KeyError: 1"}), hung.model_copy(update={"name": "another"})]
    assert policy.without_hanging(others) == policy
    assert policy.without_hanging([*others, hung]) == policy.without(hung) != policy


def test_ctrl_c_is_not_the_plugins(announce: Callable[..., None]) -> None:
    announce("score", at_call="raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        placements(cluster().hosts(2), read_policy(KINDS["score"][1]))

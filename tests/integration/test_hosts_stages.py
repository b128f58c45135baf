"""What a host does around an attempt: in order, once, and not forgotten when the node worker dies."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from gpu_platform.domain.errors import IllegalTransition, PreflightFailed
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.node.stages import Provision, Stage
from gpu_platform.node.system import records
from gpu_platform.node.system.paths import rank_dir
from tests.support.hosts_rig import HostRig


class Diary(Stage):
    """Writes down what it is called for; ``failing`` calls raise."""

    def __init__(self, name: str, pages: list[str], failing: Sequence[str] = ()) -> None:
        self._name, self._pages, self.failing = name, pages, list(failing)

    def recover(self, attempts: Sequence[HostPlan]) -> None:
        self._write("recover" + "".join(f" {plan.key}" for plan in attempts))

    def prepare(self, plan: HostPlan) -> None:
        self._write("prepare")

    def provides(self, plan: HostPlan) -> Provision:
        name = f"FROM_{self._name.upper()}"
        return Provision(environ={name: "all"}, rank_environ={1: {name: "second"}})

    def finish(self, plan: HostPlan) -> None:
        self._write("finish")

    def _write(self, what: str) -> None:
        self._pages.append(f"{self._name} {what}")
        if what in self.failing:
            self.failing.remove(what)
            raise PreflightFailed(f"{self._name} cannot {what}", kind="hardware")


@pytest.fixture
def pages() -> list[str]:
    return []


@pytest.fixture
async def host(tmp_path: Path, pages: list[str]) -> AsyncIterator[HostRig]:
    rig = HostRig(tmp_path, stages=[Diary("a", pages), Diary("b", pages)])
    pages.clear()
    yield rig
    await rig.aclose()


async def test_stages_prepare_in_order_provide_and_finish_backwards_once(host: HostRig, pages: list[str]) -> None:
    plan = host.plan("sh", "-c", "echo $FROM_A $FROM_B", ranks=2)
    host.worker.prepare(plan)
    host.launch(plan)
    await host.watch(plan)
    assert [host.log(plan, rank) for rank in (0, 1)] == ["all all\n", "second second\n"]
    assert pages == ["a prepare", "b prepare"]
    await host.stop(plan.key)
    await host.stop(plan.key)
    assert pages == ["a prepare", "b prepare", "b finish", "a finish"]


async def test_a_failed_preparation_is_finished_and_may_be_repeated(tmp_path: Path, pages: list[str]) -> None:
    host = HostRig(tmp_path, stages=[Diary("a", pages), Diary("b", pages, ["prepare"])])
    pages.clear()
    plan = host.plan("true")
    with pytest.raises(PreflightFailed, match="b cannot prepare"):
        host.launch(plan)
    assert pages == ["a prepare", "b prepare", "b finish", "a finish"]
    assert host.worker.attempts() == []
    host.launch(plan)
    await host.watch(plan)
    await host.aclose()
    assert pages[4:] == ["a prepare", "b prepare", "b finish", "a finish"]


async def test_an_attempt_whose_end_failed_stays_open_until_it_succeeds(tmp_path: Path, pages: list[str]) -> None:
    host = HostRig(tmp_path, stages=[Diary("a", pages), Diary("b", pages, ["finish"])])
    plan = host.plan("true")
    host.launch(plan)
    await host.watch(plan)
    with pytest.raises(PreflightFailed, match="b cannot finish"):
        await host.stop(plan.key)
    assert host.worker.attempts() == [plan.key]
    pages.clear()
    assert host.restart().attempts() == [plan.key]  # a node worker that died in between
    assert pages == [f"a recover {plan.key}", f"b recover {plan.key}"]
    with pytest.raises(IllegalTransition):
        host.launch(plan)
    await host.stop(plan.key)
    assert pages[2:] == ["b finish", "a finish"]
    assert host.restart().attempts() == []
    await host.aclose()


async def test_an_attempt_that_ended_without_a_node_worker_is_finished_by_the_next(
    host: HostRig, pages: list[str]
) -> None:
    plan = host.plan("sleep", "0.1")
    host.launch(plan)
    host.restart()
    await host.watch(plan)
    pages.clear()
    await host.stop(plan.key)
    assert pages == ["b finish", "a finish"]


async def test_an_attempt_whose_end_was_run_is_not_shown_to_the_stages_again(host: HostRig, pages: list[str]) -> None:
    """Else a stage would keep it for ever: its end is not run twice."""
    plan = host.plan("true")
    host.launch(plan)
    await host.watch(plan)
    await host.stop(plan.key)
    left = records.take_lock(str(rank_dir(host.home, plan.key, 0)))  # as a supervisor that was late with its end
    assert left is not None
    pages.clear()
    assert host.restart().attempts() == [plan.key], "what is left of it is still stopped"
    assert pages == ["a recover", "b recover"]
    os.close(left)
    await host.stop(plan.key)
    assert host.worker.attempts() == []
    assert pages == ["a recover", "b recover"]

"""A search for jobs to move goes on over several decisions. What it finds is done only if it still helps then."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pytest

from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.preempting import move_searches
from gpu_platform.scheduling.preempting.preemption import PreemptionReason
from gpu_platform.scheduling.scheduler import Decision, Scheduler
from tests.builders import cluster, job
from tests.property.test_scheduling_moves import NOW, run

POLICY = Policy(defragmentation=True, defragment_after_s=0.0, min_run_s=0.0, defragment_every_s=60.0)


class BusyThread:
    """A thread for the solver, as the leader has one. It does something else until it is released."""

    def __init__(self) -> None:
        self.executor = ThreadPoolExecutor(1)
        self._released = threading.Event()
        self.executor.submit(self._released.wait)

    def release(self) -> None:
        self._released.set()

    def does_all(self) -> None:
        """Return when it has done everything that it was given."""
        self.executor.submit(int).result()


@pytest.fixture
def aside() -> Iterator[BusyThread]:
    thread = BusyThread()
    yield thread
    thread.release()
    thread.executor.shutdown()


class World:
    """A gang needs host 0 as a whole. ``a`` and ``b`` are there, with free GPUs beside them, and fit on host 1."""

    def __init__(self, aside: BusyThread, policy: Policy = POLICY) -> None:
        self.aside, self.machines = aside, cluster().hosts(3, "dgx-h100")
        self.running = [
            run(self.machines, "a", "dgx-h100-0", 0, 1),
            run(self.machines, "b", "dgx-h100-0", 2, 3),
            run(self.machines, "c", "dgx-h100-1", 0, 1, 2, 3, checkpoints=False),
            run(self.machines, "d", "dgx-h100-2", *range(8), checkpoints=False),
        ]
        self.scheduler = self.machines.tell(Scheduler(policy, aside=aside.executor))
        for row in self.running:
            self.scheduler.started(row)
        self.scheduler.add(job(8, name="gang").arrived(0.0).row)

    def end(self, name: str) -> RunningRow:
        """Let a job end, and tell the scheduler."""
        row = next(row for row in self.running if row.job_id == name)
        for uuid in row.gpu_uuids:
            gpu = self.machines.gpu_rows[uuid]
            self.machines.free(gpu.host, gpu.index)
        self.machines.tell(self.scheduler)
        self.scheduler.ended(name, 1)
        return row

    def decide_all(self, now: float) -> list[Decision]:
        """Decide until nothing is left, with a thread that is not busy any more."""
        self.aside.release()
        decisions = [self.scheduler.decide(now)]
        while self.scheduler.unfinished:
            self.aside.does_all()
            decisions.append(self.scheduler.decide(now))
        return decisions


def victims(decisions: list[Decision]) -> list[set[str]]:
    return [{name for name, _ in one.victims} for decision in decisions for one in decision.preemptions]


def test_decisions_do_not_wait_for_the_solver(aside: BusyThread) -> None:
    world = World(aside)
    for _ in range(3):
        assert not world.scheduler.decide(NOW).preemptions
        assert world.scheduler.unfinished
    assert victims(world.decide_all(NOW)) == [{"a", "b"}]


def test_a_decision_that_only_waits_for_the_solver_gives_nobody_a_turn(aside: BusyThread) -> None:
    world = World(aside)
    world.scheduler.decide(NOW)
    before = world.scheduler.round
    world.scheduler.decide(NOW)
    assert world.scheduler.round is before


def test_what_a_search_tries_changes_no_reason(aside: BusyThread) -> None:
    world = World(aside)
    world.scheduler.decide(NOW)
    world.scheduler.started(run(world.machines, "quick", "dgx-h100-1", 4, checkpoints=False))
    world.machines.tell(world.scheduler)
    world.scheduler.decide(NOW + 1)
    while world.scheduler.unexplained:
        world.scheduler.decide(NOW + 1)
    before = world.scheduler.snapshot.version
    assert not victims(world.decide_all(NOW + 2))
    assert world.scheduler.snapshot.version > before, "moves were tried"
    assert world.scheduler._book._estimated_at == NOW + 1, "no start was estimated again"


def test_a_busy_cluster_gets_an_answer(aside: BusyThread) -> None:
    world = World(aside)
    aside.release()
    found: list[set[str]] = []
    with patch.object(move_searches, "ALLOWANCE", 1):
        for number in range(200):
            world.scheduler.add(job(8, name=f"comes-{number}").needs(memory_gib=70).arrived(NOW).row)
            found += victims([world.scheduler.decide(NOW + number / 10)])
            world.scheduler.remove(f"comes-{number}")
            aside.does_all()
            if found:
                break
    assert found == [{"a", "b"}]


def test_nobody_is_moved_if_one_of_the_jobs_ended_meanwhile(aside: BusyThread) -> None:
    world = World(aside)
    world.scheduler.decide(NOW)
    world.end("a")
    assert not victims(world.decide_all(NOW + 1))
    assert victims(world.decide_all(NOW + 61)) == [{"b"}], "at the next look"


def test_nobody_is_moved_if_the_gang_left_meanwhile(aside: BusyThread) -> None:
    world = World(aside)
    world.scheduler.decide(NOW)
    world.scheduler.remove("gang")
    assert not victims(world.decide_all(NOW + 1))


def test_nobody_is_moved_if_the_gang_is_another_attempt_now(aside: BusyThread) -> None:
    world = World(aside)
    world.scheduler.decide(NOW)
    row = world.scheduler.queue.get("gang")
    assert row is not None
    world.scheduler.remove("gang")
    world.scheduler.add(job(8, name="gang").arrived(NOW).attempt(row.attempt + 1).row)
    assert not victims(world.decide_all(NOW + 1))


def test_nobody_is_moved_if_the_other_place_was_taken_meanwhile(aside: BusyThread) -> None:
    world = World(aside)
    world.scheduler.decide(NOW)
    world.scheduler.started(run(world.machines, "quick", "dgx-h100-1", 4, checkpoints=False))
    world.machines.tell(world.scheduler)
    assert not victims(world.decide_all(NOW + 1))


def test_nobody_is_moved_if_more_work_would_be_lost_by_now(aside: BusyThread) -> None:
    world = World(aside)
    world.scheduler.decide(NOW)
    assert not victims(world.decide_all(NOW + 8 * 3600.0))


def test_a_preemption_ends_the_search(aside: BusyThread) -> None:
    policy = Policy(preemption=True, defragmentation=True, defragment_after_s=0.0, min_run_s=0.0)
    world = World(aside, policy)
    world.scheduler.decide(NOW)
    assert world.scheduler.unfinished
    world.scheduler.add(job(8, name="urgent").priority(9).arrived(NOW).row)
    decisions = world.decide_all(NOW + 1)
    assert [one.reason for decision in decisions for one in decision.preemptions] == [PreemptionReason.PREEMPTION]


def test_a_lost_host_ends_the_search(aside: BusyThread) -> None:
    """What the search knows of a lost host is of no use, and jobs that lost their host come first."""
    world = World(aside, Policy(defragmentation=True, recovery=True, defragment_after_s=0.0, min_run_s=0.0))
    world.scheduler.decide(NOW)
    world.machines.lost("dgx-h100-2").tell(world.scheduler)
    world.scheduler.ended("d", 1)
    world.scheduler.add(world.running[3].requeued())
    [preemption] = [one for decision in world.decide_all(NOW + 1) for one in decision.preemptions]
    assert (preemption.job_id, preemption.reason) == ("d", PreemptionReason.RECOVERY)

"""Room is made for jobs that lost GPUs as for those that lost hosts, unless their own GPUs heal sooner."""

from __future__ import annotations

from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.preempting.displaced_jobs import HEAL_PATIENCE_S
from gpu_platform.scheduling.preempting.preemption import PreemptionReason
from gpu_platform.scheduling.scheduler import Scheduler
from tests.builders import cluster
from tests.property.test_scheduling_moves import NOW, run, scheduler_of


def three_hosts() -> tuple[cluster, list[RunningRow], Scheduler]:
    """``broken`` has all of host 0; it fits nowhere else unless ``a`` is moved from host 1 to host 2."""
    machines = cluster().hosts(3, "dgx-h100")
    running = [
        run(machines, "broken", "dgx-h100-0", *range(8)),
        run(machines, "a", "dgx-h100-1", 0, 1),
        run(machines, "b", "dgx-h100-2", 0, 1, 2),
    ]
    scheduler = scheduler_of(machines, running, Policy(recovery=True, min_run_s=0.0))
    scheduler.decide(NOW)
    return machines, running, scheduler


def test_a_job_whose_gpu_is_out_of_service_gets_room_at_once() -> None:
    machines, running, scheduler = three_hosts()
    machines.offline("dgx-h100-0", 3).tell(scheduler)
    scheduler.ended("broken", 1)
    scheduler.add(running[0].requeued())
    [preemption] = scheduler.decide(NOW + 1).preemptions
    assert (preemption.job_id, preemption.reason) == ("broken", PreemptionReason.RECOVERY)
    assert preemption.victims == (("a", 1),)


def test_nobody_is_moved_while_the_gpu_is_healed_but_when_that_takes_long() -> None:
    machines, running, scheduler = three_hosts()
    machines.resetting("dgx-h100-0", 3).tell(scheduler)
    scheduler.ended("broken", 1)
    scheduler.add(running[0].requeued())
    assert not scheduler.decide(NOW + 1).preemptions
    assert not scheduler.decide(NOW + HEAL_PATIENCE_S - 1).preemptions
    [preemption] = scheduler.decide(NOW + HEAL_PATIENCE_S + 6).preemptions
    assert preemption.victims == (("a", 1),)


def test_a_reset_that_fails_ends_the_wait() -> None:
    machines, running, scheduler = three_hosts()
    machines.resetting("dgx-h100-0", 3).tell(scheduler)
    scheduler.ended("broken", 1)
    scheduler.add(running[0].requeued())
    assert not scheduler.decide(NOW + 1).preemptions
    machines.offline("dgx-h100-0", 3).tell(scheduler)
    assert len(scheduler.decide(NOW + 2).preemptions) == 1


def test_a_healed_gpu_takes_its_job_back() -> None:
    machines, running, scheduler = three_hosts()
    machines.resetting("dgx-h100-0", 3).tell(scheduler)
    scheduler.ended("broken", 1)
    machines.free("dgx-h100-0", *range(8)).resetting("dgx-h100-0", 3).tell(scheduler)
    scheduler.add(running[0].requeued())
    assert not scheduler.decide(NOW + 1).placements
    machines.free("dgx-h100-0", 3).tell(scheduler)
    decision = scheduler.decide(NOW + 2)
    assert [placement.hosts for _, placement in decision.placements] == [["dgx-h100-0"]]
    assert not decision.preemptions

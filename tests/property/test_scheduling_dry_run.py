"""What a dry run answers is what the scheduler does when the job is really submitted."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from gpu_platform.domain.jobs.placement import EstimateBasis
from gpu_platform.domain.placing.cluster_state import ClusterState
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.quota import AllocationPolicy, Namespace, Quotas
from gpu_platform.scheduling.dry_run import DryRunResult, simulate_submission
from gpu_platform.scheduling.loading import load_cluster_state
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.scheduler import Scheduler
from tests.builders import cluster, job
from tests.support.examples import few
from tests.support.virtual_time import VirtualTime

LAB = Quotas(
    policy=AllocationPolicy.HYBRID,
    reserved_ratio=0.0,
    namespaces=(Namespace(name="prod", guaranteed_gpus=8), Namespace(name="lab")),
)


@dataclass
class Live:
    """A scheduler with a past. Jobs that are preempted stop at once."""

    play: VirtualTime

    def submit(self, row: PlacementRequest) -> None:
        self.play.submit(row)
        self.settle()

    def settle(self) -> None:
        for _ in range(40):
            if not self.play.last.preemptions:
                return
            self.stop_preempted()
        raise AssertionError(f"they stop each other for ever: {self.play.last.preemptions}")

    def stop_preempted(self) -> None:
        """The jobs that were just preempted stop and wait again."""
        keys = [key for preemption in self.play.last.preemptions for key in preemption.victims]
        rows = [self.play.scheduler.running_jobs.get(key) for key in keys]
        for row in rows:
            assert row is not None
            self.play._end(row.job_id)
            self.play._ends = [(at, name) for at, name in self.play._ends if name != row.job_id]
            self.play.scheduler.add(replace(row.requeued(), enqueued_at=self.play.now))
        self.play.decide()

    def state(self) -> ClusterState:
        machines, core = self.play.machines, self.play.scheduler
        return ClusterState(
            at=self.play.now,
            hosts=list(machines.host_rows.values()),
            gpus=list(machines.gpu_rows.values()),
            running=list(core.running_jobs),
            queue=list(core.queue),
        )

    def ask(self, row: PlacementRequest) -> DryRunResult:
        core = load_cluster_state(Scheduler(self.play.scheduler.policy, explains=False), self.state())
        return simulate_submission(core, row, self.play.now)


@st.composite
def rows(
    draw: st.DrawFn, name: str = "probe", at: float = 0.0, priorities: tuple[int, ...] = (0, 5)
) -> PlacementRequest:
    gpus, hosts = draw(st.sampled_from([(2, 1), (4, 1), (8, 1), (8, 1), (8, 2)]))
    made = job(gpus, hosts=hosts, name=name).priority(draw(st.sampled_from(priorities))).arrived(at)
    made = made.of(draw(st.sampled_from(["prod", "lab"])))
    return made.lasting(draw(st.sampled_from([60.0, 500.0, 3000.0]))).row


@given(
    order=st.sampled_from(["priority", "fcfs"]),
    backfill=st.sampled_from(["easy", "conservative", "keep"]),
    preemption=st.sampled_from([True, True, False]),
    min_run_s=st.sampled_from([0.0, 0.0, 50.0, 400.0]),
    quotas=st.sampled_from([Quotas(), LAB]),
    data=st.data(),
)
@settings(max_examples=few(60), deadline=None)
def test_what_the_dry_run_says_happens(
    order: str, backfill: str, preemption: bool, min_run_s: float, quotas: Quotas, data: st.DataObject
) -> None:
    policy = Policy(order=order, backfill=backfill, preemption=preemption, min_run_s=min_run_s, quotas=quotas)
    machines = cluster().hosts(2)
    live = Live(VirtualTime(machines, machines.scheduler(policy), lambda row: row.time_limit_s or 1e6))
    for number in range(data.draw(st.integers(3, 8))):
        live.play.now += data.draw(st.sampled_from([0.0, 5.0, 30.0]))
        live.submit(data.draw(rows(f"j{number}", live.play.now)))
    live.play.now += 5.0
    # Whoever should have ended meanwhile has.
    assume(not live.play._ends or live.play._ends[0][0] > live.play.now)
    live.play.decide()
    live.settle()
    probe = data.draw(rows(at=live.play.now, priorities=(0, 9, 9)))
    said = live.ask(probe)
    live.play.submit(probe)
    if said.placement is not None:
        event("starts now")
        placed = {row.job_id: placement for row, placement in live.play.last.placements}
        assert placed["probe"].slices == said.placement.slices
    elif said.preempts:
        event("preempts now" if said.preempts_at is None else "preempts later")
        assert said.reason is not None
        assert said.reason.estimate is EstimateBasis.PREEMPTING
        assert said.reason.starts_by is None, "no date that others' time limits give"
        if said.preempts_at is not None:
            assert "probe" not in live.play.running
            assume(live.play._ends[0][0] > said.preempts_at)
            assert not live.play.last.preemptions
            live.play.now = said.preempts_at
            live.play.decide()
        [told] = live.play.last.preemptions
        assert (told.job_id, tuple(name for name, _ in told.victims)) == ("probe", said.preempts)
        live.stop_preempted()
        assert "probe" in live.play.running, "it starts as soon as they have stopped"
    else:
        event("waits")
        assert said.reason is not None
        assert "probe" not in live.play.running
        assert not [told for told in live.play.last.preemptions if told.job_id == "probe"]
        if said.reason.starts_by is not None and not preemption:
            event("waits for a promised date")
            starts_by = live.play.scheduler.promises.get("probe")
            assert starts_by is not None
            # With conservative backfill the leader remembers dates that it gave before. They are in no database, so
            # a dry run does not know them, and the leader's own date may be another one. That one must hold.
            assert backfill == "conservative" or starts_by == said.reason.starts_by
            while "probe" not in live.play.started and live.play.step():
                pass
            assert live.play.started["probe"] <= starts_by + 1e-6


def test_a_dry_run_gives_no_date_an_hour_away_where_a_job_is_stopped_at_once() -> None:
    machines = cluster().hosts(1)
    scheduler = machines.scheduler(Policy(preemption=True, min_run_s=0.0))
    live = Live(VirtualTime(machines, scheduler, lambda row: 3600.0))
    live.submit(job(8, name="low").lasting(3600.0).row)
    live.play.now = 8.0
    said = live.ask(job(8, name="probe").priority(9).arrived(8.0).row)
    assert said.preempts == ("low",)
    assert said.reason is not None
    assert (said.reason.starts_by, said.reason.estimate) == (None, EstimateBasis.PREEMPTING)


def test_a_dry_run_says_when_the_guaranteed_run_time_is_over() -> None:
    machines = cluster().hosts(1)
    scheduler = machines.scheduler(Policy(preemption=True, min_run_s=300.0))
    live = Live(VirtualTime(machines, scheduler, lambda row: 3600.0))
    live.submit(job(8, name="low").lasting(3600.0).row)
    live.play.now = 100.0
    said = live.ask(job(8, name="probe").priority(9).arrived(100.0).row)
    assert (said.preempts, said.preempts_at) == (("low",), 300.0)


def test_a_waiting_job_for_which_others_are_stopped_is_promised_no_date_either() -> None:
    machines = cluster().hosts(1)
    scheduler = machines.scheduler(Policy(preemption=True, min_run_s=0.0))
    play = VirtualTime(machines, scheduler, lambda row: 3600.0)
    play.submit(job(8, name="low").lasting(3600.0).row)
    play.now = 10.0
    play.submit(job(8, name="high").priority(9).arrived(10.0).row)
    play.now = 11.0
    play.submit(job(8, name="other").arrived(11.0).row)
    reason = scheduler.why("high", 11.0)
    assert reason is not None
    assert (reason.starts_by, reason.estimate) == (None, EstimateBasis.PREEMPTING)


def _conservative(*rows: PlacementRequest, quotas: Quotas) -> VirtualTime:
    """Two hosts of 8 GPUs; all jobs come at once or when they arrive, and run to their time limits."""
    machines = cluster().hosts(2)
    scheduler = machines.scheduler(Policy(backfill="conservative", quotas=quotas))
    play = VirtualTime(machines, scheduler, lambda row: row.time_limit_s or 1e9)
    for row in rows:
        play.now = row.enqueued_at
        play.submit(row)
    return play


def test_a_borrower_that_waited_without_a_date_puts_no_promise_off() -> None:
    """It had none because nothing was free to borrow; it is ahead once the namespace has used its guarantee up."""
    small = [job(2, name=f"j{number}").of("prod").arrived(0.0).lasting(60.0).row for number in range(1, 7)]
    play = _conservative(
        job(8, hosts=2, name="all").of("lab").arrived(0.0).lasting(60.0).row,
        *small,
        job(2, name="j7").of("lab").arrived(0.0).lasting(60.0).row,
        job(4, name="probe").of("prod").arrived(5.0).lasting(60.0).row,
        quotas=LAB,
    )
    assert play.scheduler.promises["probe"] == 60.0
    play.step()
    assert play.started.get("probe") == 60.0


def test_who_is_beyond_its_guarantee_by_now_keeps_the_date_that_it_was_promised() -> None:
    play = _conservative(
        job(8, hosts=2, name="all").of("lab").arrived(5.0).lasting(60.0).row,
        job(4, name="a").of("prod").arrived(10.0).lasting(60.0).row,
        job(2, name="b").of("prod").arrived(15.0).lasting(3000.0).row,
        job(8, name="borrower").of("lab").priority(5).arrived(20.0).lasting(3000.0).row,
        job(8, name="c").of("prod").arrived(25.0).lasting(60.0).row,
        job(8, name="probe").of("prod").arrived(30.0).lasting(3000.0).row,
        quotas=LAB,
    )
    assert play.scheduler.promises["probe"] == 125.0
    play.step()
    reason = play.scheduler.why("probe", play.now)
    assert reason is not None
    assert (reason.starts_by, reason.estimate) == (125.0, EstimateBasis.PROMISED)
    play.step()
    assert play.started.get("probe") == 125.0


def test_promises_of_others_leave_no_cluster_empty() -> None:
    """When nothing runs, the first gets a date beside what the others were promised; it keeps no hosts from them."""
    play = _conservative(
        job(8, hosts=2, name="j0").arrived(30.0).lasting(3000.0).row,
        job(8, hosts=2, name="j1").arrived(60.0).lasting(500.0).row,
        job(8, name="j2").arrived(60.0).lasting(3000.0).row,
        job(2, name="j3").arrived(60.0).lasting(60.0).row,
        job(8, hosts=2, name="j4").priority(5).arrived(60.0).lasting(60.0).row,
        job(8, name="j5").arrived(90.0).lasting(60.0).row,
        job(2, name="j6").arrived(95.0).lasting(3000.0).row,
        quotas=Quotas(),
    )
    while play.step():
        pass
    assert set(play.started) == {f"j{number}" for number in range(7)}

"""Every kind of violation, planted once: the audit finds it, and finds nothing in a run that is as it should be."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpu_platform.domain.events import Event
from gpu_platform.domain.jobs.blame import FailureKind
from gpu_platform.domain.jobs.job import Failure, Job
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.jobs.usage import AttemptUsage
from gpu_platform.domain.states import JobState
from tests.chaos import facts
from tests.chaos.checks import find_violations
from tests.chaos.facts import Facts, Kind
from tests.chaos.faults import Fault
from tests.chaos.feed import Promise, Seen
from tests.chaos.monkey import VERBS
from tests.chaos.plan import DISRUPTIONS, NEW, OLDER, POWER, JobPlan
from tests.chaos.story import story
from tests.chaos.truth import Run, Truth

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOST_LOST = Fault("partition", "a", 28.0, 40.0, hosts=frozenset({"a"}))
LEADER_CHANGED = Fault("two_leaders", "scheduler-1", 28.0, 29.0)


def gang(kind: str, job: str, attempt: int, at: float, *gpus: str, host: str = "a") -> Seen:
    data = {"gpus": list(gpus), "hosts": [host]}
    event = Event(seq=0, at=NOW, kind=f"gang.{kind}", actor="test", job_id=job, attempt=attempt, data=data)
    return Seen(event, at - 0.05, at + 0.05)


def used(job: str, attempt: int, gpu_seconds: float) -> dict[tuple[str, int], AttemptUsage]:
    row = AttemptUsage(
        job_id=job, attempt=attempt, namespace="d", user="u", gpus=1, ended_at=NOW, gpu_seconds=gpu_seconds
    )
    return {(job, attempt): row}


def right() -> Facts:
    """Job j ran on a/x until a was cut off at 28 s, was ended there at 32 s, and ran on b/y from 34 s to 60 s."""
    job = Job(
        id="j",
        spec=JobSpec(command=["x"], gpus=ResourceRequest(gpus_per_host=1)),
        state=JobState.COMPLETED,
        attempt=2,
        hardware_retries=1,
        created_at=NOW,
    )
    return Facts(
        now=100.0,
        truth=Truth(
            runs=(
                Run("j", 1, 0, "a", ("x",), 10.0, 32.0),
                Run("j", 2, 0, "b", ("y",), 34.0, 60.0, exit_code=0),
            )
        ),
        events=[
            gang("reserved", "j", 1, 9.0, "x"),
            gang("released", "j", 1, 33.0, "x"),
            gang("reserved", "j", 2, 33.5, "y", host="b"),
            gang("released", "j", 2, 60.2, "y", host="b"),
        ],
        faults=[HOST_LOST, LEADER_CHANGED],
        jobs={"j": job},
        plans={"j": JobPlan(26.0)},
        usage={**used("j", 1, 24.0), **used("j", 2, 26.7)},
    )


def test_what_is_right_is_found_right() -> None:
    assert find_violations(right()) == []


def change_run(index: int, **fields: Any) -> Callable[[Facts], None]:
    def plant(facts: Facts) -> None:
        runs = list(facts.truth.runs)
        runs[index] = replace(runs[index], **fields)
        facts.truth = replace(facts.truth, runs=tuple(runs))

    return plant


def change_job(**fields: Any) -> Callable[[Facts], None]:
    def plant(facts: Facts) -> None:
        facts.jobs["j"] = facts.jobs["j"].model_copy(update=fields)

    return plant


def add_neighbour(facts: Facts) -> None:
    """Job k, told to end, on GPU y while j has it."""
    facts.truth = replace(facts.truth, runs=(*facts.truth.runs, Run("k", 1, 0, "b", ("y",), 50.0, 55.0)))
    facts.events = [*facts.events[:3], gang("reserved", "k", 1, 49.0, "y", host="b"), *facts.events[3:]]


def second_begin(facts: Facts) -> None:
    facts.truth = replace(facts.truth, repeated=(Run("j", 1, 0, "a", ("x",), 9.5, 9.9),))


def no_hold(facts: Facts) -> None:
    facts.events = facts.events[2:]


def late_begin(facts: Facts) -> None:
    facts.truth = replace(facts.truth, runs=(*facts.truth.runs, Run("j", 1, 1, "a", (), 33.4, 33.45)))


def idle_hold(facts: Facts) -> None:
    facts.faults = []
    facts.truth = Truth(runs=(facts.truth.runs[0], replace(facts.truth.runs[1], begin=55.0)))


def no_fault(facts: Facts) -> None:
    facts.faults = [LEADER_CHANGED]


def fault_elsewhere(facts: Facts) -> None:
    facts.faults = [Fault("partition", "c", 28.0, 40.0, hosts=frozenset({"c"}))]


def one_path_cut(facts: Facts) -> None:
    facts.faults = [Fault("cut_link", "node-a>service", 28.0, 40.0, hosts=frozenset({"a"}))]


def fault_too_early(facts: Facts) -> None:
    facts.events[0] = gang("reserved", "j", 1, 90.0, "x")
    facts.events[1] = gang("released", "j", 1, 95.0, "x")


def broken_promise(facts: Facts) -> None:
    facts.faults = []
    facts.promises = [Promise("j", due=2.0, seen=0.5)]


def unknown(facts: Facts) -> None:
    facts.plans["lost"] = JobPlan(1.0)


def usage(seconds: float) -> Callable[[Facts], None]:
    return lambda facts: facts.usage.update(used("j", 2, seconds))


FAILED_BY_HARDWARE = Failure(kind=FailureKind.HARDWARE, message="its workflow was not known to Temporal")
PLANTED: dict[str, tuple[Kind, Callable[[Facts], None]]] = {
    "the first attempt outlives the start of the second": (Kind.TWO_ATTEMPTS, change_run(0, end=40.0)),
    "the first attempt still lives": (Kind.TWO_ATTEMPTS, change_run(0, end=None)),
    "a neighbour on the same GPU": (Kind.GPU_TWICE, add_neighbour),
    "a rank begins again in its attempt": (Kind.RANK_REPEATED, second_begin),
    "a rank that was never given GPUs": (Kind.RANK_UNBACKED, no_hold),
    "a launch that comes after the release": (Kind.RANK_UNBACKED, late_begin),
    "a rank outlives its allocation": (Kind.RANK_UNBACKED, change_run(1, end=90.0)),
    "GPUs held for nothing": (Kind.ALLOCATION_IDLE, idle_hold),
    "an acknowledged job is unknown": (Kind.JOB_UNKNOWN, unknown),
    "a healthy job is FAILED": (Kind.END_UNCAUSED, change_job(state=JobState.FAILED, failure=FAILED_BY_HARDWARE)),
    "a job is CANCELLED that nobody cancelled": (Kind.END_UNCAUSED, change_job(state=JobState.CANCELLED)),
    "COMPLETED by ranks that were killed": (Kind.END_UNCAUSED, change_run(1, exit_code=None)),
    "COMPLETED in an attempt that never ran": (Kind.END_UNCAUSED, change_job(attempt=3, hardware_retries=2)),
    "a restart without a fault": (Kind.RESTART_UNJUSTIFIED, no_fault),
    "a restart with a fault of another host": (Kind.RESTART_UNJUSTIFIED, fault_elsewhere),
    "a restart though one path held": (Kind.RESTART_UNJUSTIFIED, one_path_cut),
    "a restart long after the fault": (Kind.RESTART_UNJUSTIFIED, fault_too_early),
    "more attempts than reasons": (Kind.RESTART_UNJUSTIFIED, change_job(hardware_retries=0)),
    "a promised start that was missed": (Kind.PROMISE_BROKEN, broken_promise),
    "an attempt without usage": (Kind.USAGE_WRONG, lambda facts: facts.usage.clear()),
    "less usage than ranks lived": (Kind.USAGE_WRONG, usage(10.0)),
    "more usage than was held": (Kind.USAGE_WRONG, usage(40.0)),
    "GPUs that are never released": (Kind.GPU_TWICE, lambda facts: facts.events.pop() and None),
}


def struck(kind: str, *hosts: str) -> Callable[[Facts], None]:
    """Nothing else was done than this; no hosts: to the control plane."""

    def plant(facts: Facts) -> None:
        facts.faults = [Fault(kind, "one", 28.0, 45.0, hosts=frozenset(hosts))]

    return plant


def both(*plants: Callable[[Facts], None]) -> Callable[[Facts], None]:
    def plant(facts: Facts) -> None:
        for one in plants:
            one(facts)

    return plant


LIVES_ON = change_run(0, end=40.0)
IS_FAILED = change_job(state=JobState.FAILED, failure=FAILED_BY_HARDWARE)
BROKEN_BY: dict[str, tuple[Kind, Callable[[Facts], None]]] = {
    "hung_disk": (Kind.TWO_ATTEMPTS, both(struck("hung_disk", "a"), LIVES_ON)),
    "freeze_agents": (Kind.TWO_ATTEMPTS, both(struck("freeze_agents", "a"), LIVES_ON)),
    "hung_files": (Kind.TWO_ATTEMPTS, both(struck("hung_files", "a"), LIVES_ON)),
    "read_only": (Kind.JOB_UNKNOWN, both(struck("read_only"), unknown)),
    "failed_sync": (Kind.JOB_UNKNOWN, both(struck("failed_sync"), unknown)),
    "hung_names": (Kind.RESTART_UNJUSTIFIED, struck("hung_names", "a")),
    "machine_clock": (Kind.RESTART_UNJUSTIFIED, struck("machine_clock", "a")),
    "short_memory": (Kind.RESTART_UNJUSTIFIED, struck("short_memory")),
    "lying_host": (Kind.RESTART_UNJUSTIFIED, struck("lying_host", "liar")),
    "poison": (Kind.END_UNCAUSED, both(struck("poison"), IS_FAILED)),
}
"""What hangs, multiplies or lies -> what it would break, and the audit must see although that fault was on its way."""


@pytest.mark.parametrize("kind", BROKEN_BY)
def test_a_promise_that_such_a_fault_breaks_is_found(kind: str) -> None:
    facts = right()
    expected, plant = BROKEN_BY[kind]
    plant(facts)
    assert expected in {violation.kind for violation in find_violations(facts)}


def test_every_such_fault_is_planted_and_has_its_promise_on_the_page() -> None:
    assert BROKEN_BY.keys() == NEW.keys() | {"hung_disk"}
    page = (Path(__file__).parents[2] / "docs/explanation/faults.md").read_text()
    assert [verb for verb in (*DISRUPTIONS, *OLDER, *POWER) if f"`{verb}`" not in page] == []
    assert VERBS.keys() >= DISRUPTIONS.keys()


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found(name: str) -> None:
    kind, plant = PLANTED[name]
    facts = right()
    plant(facts)
    found = find_violations(facts)
    assert kind in {violation.kind for violation in found}, [str(violation) for violation in found]


def test_every_kind_is_planted() -> None:
    # Two kinds are read from a running cluster: test_audit has them.
    assert {kind for kind, _ in PLANTED.values()} | {Kind.HISTORY, Kind.LEFTOVER} == set(Kind)


def test_a_relaxed_job_may_run_twice() -> None:
    facts = right()
    change_run(0, end=40.0, relaxed=True)(facts)
    assert find_violations(facts) == []


def test_two_paths_that_are_cut_justify_a_restart() -> None:
    facts = right()
    one_path_cut(facts)
    facts.faults.append(Fault("cut_temporal", "all", 20.0, 29.0))
    assert find_violations(facts) == []


@pytest.mark.parametrize("away", ["control plane and half of the hosts", "half of the hosts", "control plane"])
def test_a_host_that_nobody_could_tell_that_it_was_not_alone_may_give_up(away: str) -> None:
    facts = right()
    registered = [Event(seq=0, at=NOW, kind="host.registered", actor="test", host=name, data={}) for name in "abc"]
    failure = {"message": "host a was cut off: its lease ended, so the job may start elsewhere"}
    retrying = Event(
        seq=0, at=NOW, kind="job.retrying", actor="workflow", job_id="j", attempt=1, data={"failure": failure}
    )
    facts.events += [Seen(event, 33.0, 33.0) for event in [*registered, retrying]]
    control = Fault("lossy_link", "service>database", 20.0, 31.0)
    others = (
        Fault("kill_host", "b", 25.0, 32.0, hosts=frozenset("b")),
        Fault("cut_host", "c", 20.0, 29.0, hosts=frozenset("c")),
    )
    facts.faults = [control] * ("control" in away) + [*others] * ("half" in away)
    expected = [] if away == "control plane and half of the hosts" else [Kind.RESTART_UNJUSTIFIED]
    assert [violation.kind for violation in find_violations(facts)] == expected


@pytest.mark.parametrize(("struck", "told", "is_right"), [(1, 1, True), (0, 1, False), (1, 2, False)])
def test_a_fault_that_a_host_notices_late_justifies_one_restart(struck: int, told: int, is_right: bool) -> None:
    facts = right()
    facts.faults = [Fault("xid", "31 on a:0", -100.0, -100.0, gpus=frozenset("x"))] * struck
    for number in range(told):
        event = Event(
            seq=0,
            at=NOW,
            kind="gpu.fault",
            actor="node/a",
            job_id="j",
            attempt=1,
            gpu_uuid="x",
            data={"fault_id": str(number)},
        )
        facts.events.append(Seen(event, 31.0, 31.1))
    assert [violation.kind for violation in find_violations(facts)] == [Kind.RESTART_UNJUSTIFIED] * (not is_right)


def test_a_start_that_a_power_cut_took_back_may_come_again() -> None:
    facts = right()
    second_begin(facts)
    facts.faults.append(Fault("power_cut", "everything", 9.8, 9.95, hosts=frozenset("abc")))
    assert find_violations(facts) == []
    running = Event(seq=0, at=NOW, kind="job.running", actor="control", job_id="j", attempt=1, data={})
    facts.events.append(Seen(running, 9.6, 9.7))
    assert [violation.kind for violation in find_violations(facts)] == [Kind.RANK_REPEATED], "it was acknowledged"


def test_a_rank_that_a_power_cut_did_not_end_may_not_begin_again() -> None:
    facts = right()
    second_begin(facts)
    for begin in (9.6, 9.95):
        facts.faults = [HOST_LOST, LEADER_CHANGED, Fault("power_cut", "everything", begin, begin + 0.1)]
        assert [violation.kind for violation in find_violations(facts)] == [Kind.RANK_REPEATED]


def test_the_story_of_a_violation() -> None:
    facts = right()
    late_begin(facts)
    lines = story(facts, find_violations(facts))
    assert lines[0] == "  -18.95 s event gang.reserved j#1 by test {'gpus': ['x'], 'hosts': ['a']}"
    assert [line.split()[2] for line in lines].count("rank") == 3


def test_ranks_that_stand_still_run_nothing_twice() -> None:
    facts = right()
    change_run(0, end=40.0)(facts)
    frozen = Fault("freeze_host", "a", 28.0, 39.9, hosts=frozenset({"a"}), stopped=True)
    facts.faults = [frozen]
    assert find_violations(facts) == []
    facts.faults = [replace(frozen, end=37.0)]
    (found,) = find_violations(facts)
    assert (found.kind, round(found.seconds, 3)) == (Kind.TWO_ATTEMPTS, 3.0)


def test_an_overlap_shorter_than_the_observer_is_late_counts_where_the_locks_prove_it() -> None:
    facts = right()
    change_run(0, end=34.1)(facts)
    assert find_violations(facts) == []
    facts.truth = replace(facts.truth, together=frozenset({("j", 1, 2)}))
    assert [violation.kind for violation in find_violations(facts)] == [Kind.TWO_ATTEMPTS]


def test_what_the_log_has_not_released_is_held_for_ever() -> None:
    (hold,) = facts.holds_of([gang("reserved", "j", 1, 9.0, "x")])
    assert hold.released == (math.inf, math.inf)

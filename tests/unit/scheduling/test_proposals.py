from __future__ import annotations

from dataclasses import replace

from gpu_platform.scheduling.scheduler import Decision, Scheduler
from tests.builders import cluster, job


def one_host() -> tuple[cluster, Scheduler]:
    machines = cluster().hosts(1)
    return machines, machines.scheduler()


def ids(decision: Decision) -> list[str]:
    return [row.job_id for row, _ in decision.placements]


def test_proposed_gpus_are_not_proposed_again() -> None:
    _, scheduler = one_host()
    scheduler.add(job(8, name="a").row)
    scheduler.add(job(8, name="b").row)
    assert ids(scheduler.decide(0.0)) == ["a"]
    assert ids(scheduler.decide(5.0)) == []


def test_a_rejected_proposal_frees_its_gpus_at_once() -> None:
    _, scheduler = one_host()
    scheduler.add(job(8, name="a").row)
    scheduler.add(job(8, name="b").row)
    scheduler.decide(0.0)
    scheduler.reject("a", 1)
    assert ids(scheduler.decide(0.0)) == ["b"]


def test_a_confirmed_proposal_lives_on_in_the_stores_rows() -> None:
    machines, scheduler = one_host()
    scheduler.add(job(8, name="a").row)
    scheduler.add(job(8, name="b").row)
    scheduler.decide(0.0)
    machines.busy("dgx-h100-0").tell(scheduler)
    scheduler.confirm("a", 1)
    scheduler.remove("a")
    assert ids(scheduler.decide(100.0)) == []
    machines.free("dgx-h100-0").tell(scheduler)
    assert ids(scheduler.decide(100.0)) == ["b"]


def test_a_proposal_that_nobody_confirmed_is_made_again() -> None:
    _, scheduler = one_host()
    scheduler.add(job(8, name="a").row)
    scheduler.decide(0.0)
    assert ids(scheduler.decide(9.9)) == []
    decision = scheduler.decide(10.0)
    assert [row.job_id for row in decision.expired] == ["a"]
    assert ids(decision) == ["a"]


def test_a_job_that_left_is_not_proposed_again_at_expiry() -> None:
    _, scheduler = one_host()
    scheduler.add(job(8, name="a").row)
    scheduler.decide(0.0)
    scheduler.remove("a")
    scheduler.add(job(8, name="b").row)
    assert ids(scheduler.decide(5.0)) == [], "whether the store took the proposal is not known yet"
    decision = scheduler.decide(10.0)
    assert (ids(decision), decision.expired) == (["b"], [])


def test_reading_the_queue_again_does_not_ask_an_answered_question_again() -> None:
    _, scheduler = one_host()
    row = job(4, name="a").row
    scheduler.add(row)
    scheduler.decide(0.0)
    scheduler.add(row)
    assert ids(scheduler.decide(0.0)) == []


def test_a_new_token_is_a_new_question() -> None:
    _, scheduler = one_host()
    row = job(8, name="a").row
    scheduler.add(row)
    scheduler.decide(0.0)
    scheduler.add(replace(row, task_token=b"new"))
    assert ids(scheduler.decide(0.0)) == ["a"]


def test_a_new_attempt_replaces_the_old_one() -> None:
    _, scheduler = one_host()
    scheduler.add(job(9, name="a").row)
    scheduler.decide(0.0)
    scheduler.add(job(8, name="a").attempt(2).row)
    decision = scheduler.decide(0.0)
    assert [(row.job_id, row.attempt) for row, _ in decision.placements] == [("a", 2)]
    assert scheduler.proposed() == [("a", 2)]


def test_unknown_answers_are_ignored() -> None:
    _, scheduler = one_host()
    scheduler.confirm("nobody", 1)
    scheduler.reject("nobody", 1)
    scheduler.remove("nobody")
    assert scheduler.decide(0.0) == Decision()


def test_gpu_rows_may_come_before_their_host() -> None:
    machines, scheduler = cluster().hosts(1).busy("dgx-h100-0", 0), Scheduler()
    scheduler.upsert_gpus(machines.gpu_rows.values())
    scheduler.upsert_host(machines.host_rows["dgx-h100-0"])
    scheduler.add(job(7, name="a").row)
    assert ids(scheduler.decide(0.0)) == ["a"]

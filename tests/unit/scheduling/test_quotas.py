from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from gpu_platform.domain.jobs.placement import EstimateBasis, WaitCode
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.quota import AllocationPolicy, Namespace, Quotas
from gpu_platform.scheduling.dry_run import simulate_submission
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.queueing.quota import QuotaUsage
from tests.builders import cluster, job
from tests.support.examples import few
from tests.support.virtual_time import VirtualTime


def quotas(policy: str, *namespaces: Namespace, reserved_ratio: float = 0.5) -> Quotas:
    return Quotas(policy=AllocationPolicy(policy), reserved_ratio=reserved_ratio, namespaces=namespaces)


def gpus_of(rules: Quotas, *rows: PlacementRequest) -> dict[str, int]:
    """What each namespace gets of two hosts with 8 GPUs each."""
    machines = cluster().hosts(2)
    scheduler = machines.scheduler(Policy(quotas=rules))
    for row in rows:
        scheduler.add(row)
    got = dict.fromkeys((row.namespace for row in rows), 0)
    for row, placement in scheduler.decide(0.0).placements:
        got[row.namespace] += len(placement.gpu_uuids)
    return got


def ones(namespace: str, count: int, user: str = "anna") -> list[PlacementRequest]:
    return [job(1).of(namespace, user).row for _ in range(count)]


A, B = Namespace(name="a", guaranteed_gpus=8), Namespace(name="b", guaranteed_gpus=4)


def test_dynamic_gives_what_is_free() -> None:
    assert gpus_of(quotas("dynamic", A, B), *ones("a", 20), *ones("b", 20)) == {"a": 16, "b": 0}


def test_static_gives_the_guarantee_and_nothing_else() -> None:
    assert gpus_of(quotas("static", A, B), *ones("a", 20), *ones("b", 20), *ones("c", 9)) == {"a": 8, "b": 4, "c": 0}


@pytest.mark.parametrize(("ratio", "a"), [(0.0, 16), (0.5, 14), (1.0, 12)])
def test_hybrid_lends_out_what_is_not_reserved(ratio: float, a: int) -> None:
    assert gpus_of(quotas("hybrid", A, B, reserved_ratio=ratio), *ones("a", 20))["a"] == a


def test_hybrid_serves_guarantees_before_it_lends() -> None:
    assert gpus_of(quotas("hybrid", A, B), *ones("a", 20), *ones("b", 20)) == {"a": 12, "b": 4}


def test_a_limit_holds_for_all_below() -> None:
    lab = Namespace(name="lab", limit_gpus=6)
    x, y = Namespace(name="x", parent="lab"), Namespace(name="y", parent="lab")
    assert gpus_of(quotas("dynamic", lab, x, y), *ones("x", 4), *ones("y", 4)) == {"x": 4, "y": 2}


def test_a_user_has_a_limit_of_their_own() -> None:
    rules = quotas("dynamic", Namespace(name="a", max_gpus_per_user=3))
    assert gpus_of(rules, *ones("a", 5, "anna"), *ones("a", 2, "bert")) == {"a": 5}


def test_whoever_waits_for_a_quota_is_told_and_keeps_nothing() -> None:
    scheduler = cluster().hosts(1).scheduler(Policy(quotas=quotas("dynamic", Namespace(name="a", limit_gpus=4))))
    scheduler.add(job(8, name="large").of("a").row)
    scheduler.add(job(8, name="other").of("b").row)
    decision = scheduler.decide(0.0)
    assert [row.job_id for row, _ in decision.placements] == ["other"]
    (reason,) = decision.reasons.values()
    assert reason.code == "over_quota"
    assert reason.message.endswith("namespace a holds 0 of at most 4 GPUs")


def test_what_ends_may_be_had_again() -> None:
    rules = quotas("static", Namespace(name="a", guaranteed_gpus=2))
    machines = cluster().hosts(1)
    play = VirtualTime(machines, machines.scheduler(Policy(quotas=rules)), lambda row: 1.0)
    play.submit(*ones("a", 6))
    assert len(play.running) == 2
    play.step()
    assert (len(play.running), len(play.ended)) == (2, 2)


def test_a_proposal_that_came_to_nothing_is_given_back() -> None:
    scheduler = cluster().hosts(1).scheduler(Policy(quotas=quotas("static", Namespace(name="a", guaranteed_gpus=8))))
    for name in ("first", "second"):
        scheduler.add(job(8, name=name).of("a").row)
    scheduler.decide(0.0)
    scheduler.reject("first", 1)
    assert [row.job_id for row, _ in scheduler.decide(0.0).placements] == ["second"]


@pytest.mark.parametrize(
    ("limit", "waiting", "refusal"),
    [
        (60.0, 0, None),
        (None, 0, "no time limit was asked for; namespace lab allows at most 3600 s: set time_limit_s"),
        (7200.0, 0, "a time limit of 7200 s was asked for; namespace lab allows at most 3600 s: set time_limit_s"),
        (60.0, 5, "5 jobs of namespace x wait; at most 5 may: try later"),
    ],
)
def test_submissions_beyond_the_limits_are_refused(limit: float | None, waiting: int, refusal: str | None) -> None:
    lab = Namespace(name="lab", max_job_duration_s=3600)
    x = Namespace(name="x", parent="lab", max_queue_size=5)
    assert Quotas(namespaces=(lab, x)).refusal("x", limit, waiting) == refusal


def test_a_tree_that_is_none_is_refused() -> None:
    with pytest.raises(ValidationError, match="below itself"):
        Quotas(namespaces=(Namespace(name="a", parent="b"), Namespace(name="b", parent="a")))
    with pytest.raises(ValidationError, match="is no namespace"):
        Quotas(namespaces=(Namespace(name="a", parent="x"),))


@given(
    policy=st.sampled_from(list(AllocationPolicy)),
    asks=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("uv"), st.integers(1, 6)), max_size=20),
    guarantees=st.tuples(st.integers(0, 8), st.integers(0, 8)),
    limit=st.none() | st.integers(0, 10),
    ratio=st.sampled_from([0.0, 0.3, 1.0]),
)
@settings(max_examples=few(200), deadline=None)
def test_no_quota_is_ever_broken(
    policy: AllocationPolicy,
    asks: list[tuple[str, str, int]],
    guarantees: tuple[int, int],
    limit: int | None,
    ratio: float,
) -> None:
    rules = Quotas(
        policy=policy,
        reserved_ratio=ratio,
        namespaces=(
            Namespace(name="a", guaranteed_gpus=guarantees[0], limit_gpus=limit),
            Namespace(name="b", guaranteed_gpus=guarantees[1], max_gpus_per_user=3),
        ),
    )
    book, held, total = QuotaUsage(rules), dict.fromkeys("abc", 0), 16
    of_user: dict[tuple[str, str], int] = {}
    for namespace, user, gpus in asks:
        free = total - sum(held.values())
        if gpus > free or book.denial(namespace, user, gpus, free) is not None:
            continue
        if policy is AllocationPolicy.HYBRID and not book.is_guaranteed(namespace, gpus):
            # Who borrows leaves the others what of their reserve is still to come.
            others = [(g, n) for g, n in zip(guarantees, "ab", strict=True) if n != namespace]
            assert free - gpus >= sum(max(0, -(-int(10 * ratio * g) // 10) - held[n]) for g, n in others)
        book.charge(namespace, user, gpus)
        held[namespace] += gpus
        of_user[namespace, user] = of_user.get((namespace, user), 0) + gpus
    assert limit is None or held["a"] <= limit
    assert all(count <= 3 for (namespace, _), count in of_user.items() if namespace == "b")
    if policy is AllocationPolicy.STATIC:
        assert (held["a"], held["b"], held["c"]) <= (guarantees[0], guarantees[1], 0)
        assert held["b"] <= guarantees[1]
        assert held["c"] == 0


def hybrid_lab(priority: int, low_namespace: str = "lab", min_run_s: float = 0.0) -> VirtualTime:
    """A low job of ``low_namespace`` holds the whole host; one of ``lab`` with ``priority`` asks for half of it."""
    rules = quotas("hybrid", Namespace(name="prod", guaranteed_gpus=8), Namespace(name="lab"), reserved_ratio=0.0)
    machines = cluster().hosts(1)
    policy = Policy(quotas=rules, preemption=True, min_run_s=min_run_s)
    play = VirtualTime(machines, machines.scheduler(policy), lambda row: 1e6)
    play.submit(job(8, name="low").of(low_namespace).row)
    assert list(play.running) == ["low"]
    play.now = 10.0
    play.submit(job(4, name="high").of("lab").priority(priority).row)
    return play


def victims(play: VirtualTime) -> list[str]:
    return [job_id for preemption in play.last.preemptions for job_id, _ in preemption.victims]


def test_priority_preempts_inside_a_namespace_without_a_guarantee() -> None:
    play = hybrid_lab(priority=10)
    assert victims(play) == ["low"]
    play.end("low")
    assert list(play.running) == ["high"]


def owner_at_work(asked: int) -> VirtualTime:
    """A job within the guarantee of ``prod`` runs. An important one of ``prod`` asks for so many GPUs."""
    rules = quotas("hybrid", Namespace(name="prod", guaranteed_gpus=6), Namespace(name="lab"), reserved_ratio=0.0)
    machines = cluster().hosts(1)
    policy = Policy(quotas=rules, preemption=True, min_run_s=0.0)
    play = VirtualTime(machines, machines.scheduler(policy), lambda row: 1e6)
    play.submit(job(6, name="owner").of("prod").row)
    play.now = 10.0
    play.submit(job(asked, name="important").of("prod").priority(5).row)
    return play


def test_who_would_borrow_stops_nobody_within_the_guarantee_of_its_namespace() -> None:
    """Otherwise "owner" would reclaim GPUs of a borrower of another namespace, that one would stop "important", and so
    on without an end."""
    assert victims(owner_at_work(8)) == []


def test_who_stays_within_the_guarantee_stops_less_important_jobs_of_its_namespace() -> None:
    assert victims(owner_at_work(4)) == ["owner"]


def test_who_waits_for_a_job_to_have_run_long_enough_is_told_when_that_is() -> None:
    play = hybrid_lab(priority=10, min_run_s=60.0)
    assert victims(play) == []
    told = [reason for reason in play.scheduler.explain(play.now).values() if reason.first_job == "high"]
    for reason in [*told, play.scheduler.why("high", play.now)]:
        assert reason is not None
        assert (reason.code, reason.estimate) == (WaitCode.OVER_QUOTA, EstimateBasis.PREEMPTING)
        assert reason.estimated_start == 60.0
        assert "min_run_s" in reason.next_step
    play.now = 60.0
    play.decide()
    assert victims(play) == ["low"]


def test_a_dry_run_says_the_same() -> None:
    play = hybrid_lab(priority=0, min_run_s=60.0)
    row = job(4, name="probe").of("lab").priority(10).row
    found = simulate_submission(play.scheduler, row, play.now)
    assert (found.preempts, found.preempts_at) == (("low",), 60.0)
    assert found.reason is not None
    assert found.reason.estimated_start == 60.0


def test_who_may_borrow_but_finds_too_little_free_is_told_so() -> None:
    play = hybrid_lab(priority=0)
    reason = play.scheduler.why("high", play.now)
    assert reason is not None
    has, may = "namespace lab holds 8 GPUs and is guaranteed 0", "it may have 0 more now"
    assert reason.message.endswith(f"{has}; {may}: 0 are free")
    assert reason.next_step == "wait until jobs end, of any namespace, or have the guarantee raised"


def test_equal_priority_preempts_nobody_under_hybrid_quotas() -> None:
    assert victims(hybrid_lab(priority=0)) == []


def test_a_borrower_of_higher_priority_preempts_a_borrower_of_another_namespace() -> None:
    assert victims(hybrid_lab(priority=10, low_namespace="other")) == ["low"]


def test_a_borrower_does_not_preempt_who_is_within_a_guarantee() -> None:
    assert victims(hybrid_lab(priority=10, low_namespace="prod")) == []


def test_inside_a_namespace_priority_decides_who_has_the_guarantee() -> None:
    rules = quotas(
        "hybrid", Namespace(name="a", guaranteed_gpus=4), Namespace(name="b", guaranteed_gpus=4), reserved_ratio=1.0
    )
    machines = cluster().hosts(1)
    play = VirtualTime(
        machines, machines.scheduler(Policy(quotas=rules, preemption=True, min_run_s=0.0)), lambda row: 1e6
    )
    play.submit(job(4, name="low").of("a").row)
    play.now = 10.0
    play.submit(job(4, name="high").of("a").priority(10).row)
    assert victims(play) == ["low"], "nothing may be borrowed, so the guarantee goes to the job of higher priority"
    play.submit(job(2, name="passer").of("a").priority(5).row)
    play.end("low")
    assert list(play.running) == ["high"], "the quota that was made is had by whom it was made for"


def test_at_a_limit_the_job_of_higher_priority_gets_the_quota() -> None:
    rules = quotas("dynamic", Namespace(name="lab", limit_gpus=4))
    machines = cluster().hosts(2)
    play = VirtualTime(
        machines, machines.scheduler(Policy(quotas=rules, preemption=True, min_run_s=0.0)), lambda row: 1e6
    )
    play.submit(job(2, name="x").of("lab").row, job(2, name="y").of("lab").row, job(2, name="z").of("other").row)
    play.now = 10.0
    play.submit(job(2, name="high").of("lab").priority(10).row, job(1, name="small").of("lab").row)
    [victim] = victims(play)
    assert victim in ("x", "y")
    play.end(victim)
    assert "high" in play.running
    assert "small" not in play.running


@pytest.mark.parametrize(
    ("rules", "advice"),
    [
        (quotas("dynamic", Namespace(name="a", limit_gpus=4)), "namespace a may have at most 4: ask for at most 4"),
        (quotas("dynamic", Namespace(name="a", max_gpus_per_user=2)), "a user of namespace a may have at most 2"),
        (quotas("dynamic", Namespace(name="top", limit_gpus=4), Namespace(name="a", parent="top")), "namespace top"),
        (quotas("static", Namespace(name="a", guaranteed_gpus=4)), "is guaranteed 4, and nobody gets more"),
        (quotas("dynamic", Namespace(name="a", limit_gpus=0)), "at most 0: ask for none"),
    ],
)
def test_a_job_that_alone_exceeds_a_limit_is_refused(rules: Quotas, advice: str) -> None:
    refusal = rules.refusal("a", None, 0, 8)
    assert refusal is not None
    assert "8 GPUs were asked for" in refusal
    assert advice in refusal
    assert rules.refusal("a", None, 0, 0) is None, "limits of GPUs are not the business of jobs without any"

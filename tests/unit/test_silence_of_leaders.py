"""Who leads is judged by signs that change, not by clocks of other machines."""

from __future__ import annotations

import pytest

from gpu_platform.domain.jobs.placement import Reason, WaitCode
from gpu_platform.domain.leader_silence import SILENT_AFTER_S, LeaderLoop, LeaderSigns, SignWatch

ALL = set(LeaderLoop)


def watched(seconds: float, beating: set[LeaderLoop], *, clock_s: float = 0.0, epoch: int = 3) -> SignWatch:
    """A reader that looks every 2 s, while only some loops come round."""
    watch = SignWatch()
    now = 0.0
    while now <= seconds:
        at = {loop: clock_s + (now if loop in beating else 0.0) for loop in LeaderLoop}
        watch.observe(LeaderSigns(epoch, "control-1/1/1", at), now)
        now += 2.0
    return watch


@pytest.mark.parametrize("clock_s", [0.0, -86_400.0, 86_400.0], ids=["same", "a day behind", "a day ahead"])
def test_a_leader_that_comes_round_leads_whatever_its_clock_says(clock_s: float) -> None:
    assert watched(300, ALL, clock_s=clock_s).silence(300) is None


@pytest.mark.parametrize(
    ("still", "says"),
    [
        (ALL, "no scheduler leads since 14 s: nothing is placed"),
        ({LeaderLoop.DECISIONS}, "the leading scheduler control-1 (epoch 3) has decided nothing since 14 s"),
        ({LeaderLoop.LEASES}, "has not looked at the hosts' leases since 14 s: no host becomes LOST"),
        ({LeaderLoop.DECISIONS, LeaderLoop.LEASES}, "no scheduler leads since 14 s"),
    ],
)
def test_what_stands_still_is_said_within_15_s(still: set[LeaderLoop], says: str) -> None:
    silence = watched(14, ALL - still).silence(14)
    assert silence is not None
    assert says in silence.message
    assert silence.nothing_is_placed is (LeaderLoop.DECISIONS in still)


def test_upkeep_that_stands_still_is_said_after_a_minute() -> None:
    others = ALL - {LeaderLoop.UPKEEP}
    assert watched(58, others).silence(58) is None
    silence = watched(62, others).silence(62)
    assert silence is not None
    assert "has repaired nothing" in silence.message
    assert not silence.nothing_is_placed


def test_a_change_of_leaders_is_not_said() -> None:
    """A leader that dies is replaced after its heartbeat timeout and a start of some seconds."""
    assert watched(8, set()).silence(8) is None


def test_a_reader_that_could_not_read_knows_nothing() -> None:
    watch = watched(14, set())
    watch.forget()
    assert watch.silence(60) is None
    watch.observe(LeaderSigns(3, "", {}), 60)
    assert watch.silence(62) is None
    assert watch.silence(60 + SILENT_AFTER_S[LeaderLoop.DECISIONS]) is not None


def test_a_platform_without_any_leader_says_so() -> None:
    silence = watched(14, set(), epoch=0).silence(14)
    assert silence is not None
    assert silence.message.startswith("no scheduler has led yet")


def test_a_waiting_job_is_told_first() -> None:
    reason = Reason(code=WaitCode.WAITING_FOR_GPUS, message="8 GPUs are busy")
    silence, upkeep = watched(14, set()).silence(14), watched(62, ALL - {LeaderLoop.UPKEEP}).silence(62)
    assert silence is not None
    assert upkeep is not None
    told = silence.said_before(reason).message
    assert told.startswith("no scheduler leads since")
    assert told.endswith("Before that: 8 GPUs are busy")
    assert upkeep.said_before(reason) == reason

"""A gang starts when it was promised, whatever fills the gap before it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_platform.domain.rows import QueueRow
from gpu_platform.scheduling.policy import Policy
from tests.builders import cluster, job
from tests.virtual_time import VirtualTime

limits = st.integers(1, 40).map(float)
# All with a limit: before the gang heads the queue it has no reservation yet, and a job without end
# that passes it then may keep it from ever having a date.
small = st.tuples(st.sampled_from([1, 2, 3, 4, 8]), st.sampled_from([1, 1, 2]), limits)


def rows(jobs: list[tuple[int, int, float | None]], prefix: str) -> list[QueueRow]:
    made = []
    for number, (gpus, hosts, limit) in enumerate(jobs):
        wanted = job(gpus, hosts=hosts, name=f"{prefix}{number}").arrived(float(ord(prefix[0])))
        made.append((wanted.lasting(limit) if limit is not None else wanted).row)
    return made


@given(
    before=st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.just(1), limits), min_size=1, max_size=8),
    gang=st.tuples(st.sampled_from([4, 8, 8]), st.sampled_from([2, 3, 3]), st.sampled_from([None, "leaf"])),
    after=st.lists(st.lists(small, max_size=4), min_size=1, max_size=6),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_a_gang_starts_by_the_promised_time(
    before: list[tuple[int, int, float]],
    gang: tuple[int, int, str | None],
    after: list[list[tuple[int, int, float | None]]],
    data: st.DataObject,
) -> None:
    machines = cluster().hosts(3, leaf="l").hosts(1, leaf="m")
    lengths: dict[str, float] = {}

    def duration(row: QueueRow) -> float:
        limit = row.time_limit_s or 1000.0
        return lengths.setdefault(row.job_id, data.draw(st.sampled_from([limit, limit, limit / 2, 0.5])))

    play = VirtualTime(machines, machines.scheduler(), duration)
    play.submit(*rows(list(before), "a"))
    gpus, hosts, level = gang
    wanted = job(gpus, hosts=hosts, name="gang").arrived(float(ord("b"))).lasting(5.0)
    play.submit((wanted.requires(level) if level else wanted).row)
    promised = None
    for burst in after:
        if "gang" in play.started:
            break
        play.submit(*rows(burst, f"c{len(play.started)}-{len(play.ended)}-"))
        ahead = any(row.enqueued_at < ord("b") for row in play.scheduler.queue)
        reservation = [reason.starts_by for reason in play.scheduler.reasons.values() if reason.starts_by is not None]
        if not ahead and "gang" not in play.started:
            assert len(reservation) == 1, "everything before it has a time limit, so it has a date"
            assert promised is None or reservation[0] <= promised, "a promise is never put off"
            promised = reservation[0]
            assert play.now <= promised
        play.step()
    while "gang" not in play.started:
        assert play.step()
    if promised is not None:
        assert play.started["gang"] <= promised


def test_a_gang_of_the_whole_cluster_starts_on_time_and_small_jobs_fill_the_gap() -> None:
    machines = cluster().hosts(4)
    play = VirtualTime(machines, machines.scheduler(), lambda row: row.time_limit_s or 1e9)
    play.submit(job(8, name="runs").lasting(100).row)
    play.submit(job(8, hosts=4, name="gang").lasting(50).row)
    (reason,) = play.last.reasons.values()
    assert reason.starts_by == 100.0
    play.submit(*(job(2, name=f"short{n}").lasting(100).row for n in range(20)))
    play.submit(job(1, name="long").lasting(101).row, job(1, name="endless").row)
    assert sum(name.startswith("short") for name in play.started) == 12, "every GPU of the gap is used"
    assert not {"long", "endless"} & set(play.started)
    while "gang" not in play.started:
        assert play.step()
    assert play.started["gang"] == 100.0


def test_who_waits_behind_a_reservation_is_told_for_whom() -> None:
    machines = cluster().hosts(2)
    play = VirtualTime(machines, machines.scheduler(), lambda row: row.time_limit_s or 1e9)
    play.submit(job(8, name="runs").lasting(100).row)
    play.submit(job(8, hosts=2, name="gang").lasting(50).row)
    play.submit(job(1, name="endless").row)
    (reason,) = play.last.reasons.values()
    assert reason.code == "behind_higher_priority"
    assert reason.next_step == "starts once gang, ahead in the queue, has started"


def test_a_long_job_may_use_what_the_gang_does_not_need() -> None:
    machines = cluster().hosts(2)
    play = VirtualTime(machines, machines.scheduler(), lambda row: row.time_limit_s or 1e9)
    play.submit(job(8, name="runs").lasting(100).row)
    play.submit(job(4, hosts=2, name="gang").lasting(50).row)
    play.submit(job(4, name="endless").row)
    assert "endless" in play.started
    play.step()
    assert play.started["gang"] == 100.0


def test_without_a_time_limit_of_those_ahead_the_gang_keeps_its_hosts() -> None:
    machines = cluster().hosts(2)
    play = VirtualTime(machines, machines.scheduler(), lambda row: row.time_limit_s or 1e9)
    play.submit(job(8, name="runs").row)
    play.submit(job(8, hosts=2, name="gang").lasting(50).row)
    play.submit(job(1, name="short").lasting(1).row)
    assert "short" not in play.started


def test_without_backfill_nothing_passes() -> None:
    machines = cluster().hosts(2)
    play = VirtualTime(machines, machines.scheduler(Policy(backfill="none")), lambda row: row.time_limit_s or 1e9)
    play.submit(job(8, name="runs").lasting(100).row)
    play.submit(job(8, hosts=2, name="gang").row, job(1, name="short").lasting(1).row)
    assert set(play.started) == {"runs"}


def test_another_leader_knows_when_jobs_end() -> None:
    machines = cluster().hosts(2)
    first = VirtualTime(machines, machines.scheduler(), lambda row: row.time_limit_s or 1e9)
    first.submit(job(8, name="runs").lasting(100).row)
    second = machines.scheduler()
    for row in first.scheduler.ledger:
        second.started(row)
    second.add(job(8, hosts=2, name="gang").row)
    (reason,) = second.decide(10.0).reasons.values()
    assert reason.starts_by == 100.0

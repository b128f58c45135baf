"""What the terminal shows, where the words matter: made up answers, no service."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console

from gpu_platform.client.wire import DryRun
from gpu_platform.domain.events import Event
from gpu_platform.domain.hosts.gpu import Host
from gpu_platform.domain.hosts.samples import Figures, MetricsHistory, Point
from gpu_platform.domain.jobs.job import Job, QueueEntry
from gpu_platform.domain.jobs.placement import BlockingJob, EstimateBasis, Reason, WaitCode
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.run_time import RunTime
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import HostState, JobState
from service.cli.show import job_rows, list_columns, show_job, show_metrics, show_waiting, tables
from service.cli.show.listing import Listing
from tests.store_cluster import NOW, placement
from workers.local import demo


def shown(thing: Any, width: int = 200) -> str:
    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        console.print(thing)
    return captured.get()


def test_a_dry_run_says_which_hosts_are_spare() -> None:
    spec = JobSpec(command=["true"], gpus=ResourceRequest(hosts=2, gpus_per_host=1), spare_hosts=1)
    answer = DryRun(accepted=True, message="would start now", placement=placement({"a": [0], "b": [0], "c": [0]}))
    lines = shown(show_waiting.dry_run(answer, spec)).splitlines()
    assert [line.strip() for line in lines if ": GPU" in line] == ["a: GPU 0", "b: GPU 0", "c: GPU 0 (spare)"]


def test_what_never_fits_is_not_told_to_wait_for_hosts_to_come_back() -> None:
    reason = Reason(code=WaitCode.NEVER_FITS, message="needs 8 GPUs", estimate=EstimateBasis.REPAIR)
    assert show_waiting.start_text(reason) == "never, unless it asks for less or hosts are added that can hold it"
    away = reason.model_copy(update={"code": WaitCode.NO_HOSTS})
    assert show_waiting.start_text(away) == "nobody can say when: hosts or GPUs must come back first"


def test_a_job_without_gpus_released_none() -> None:
    event = Event(seq=1, at=NOW + timedelta(seconds=1), kind="gang.released", actor="control", data={"gpus": []})
    assert tables.event_text(event) == "released"
    assert tables.event_text(event.model_copy(update={"data": {"gpus": ["x"]}})) == "1 GPU released"


def test_a_start_for_which_jobs_are_stopped_comes_before_a_promise_that_is_later() -> None:
    at = NOW.timestamp()
    reason = Reason(
        code=WaitCode.WAITING_FOR_GPUS,
        message="needs 8 GPUs",
        starts_by=at + 600,
        estimated_start=at + 60,
        estimate=EstimateBasis.PREEMPTING,
    )
    text = show_waiting.start_text(reason, NOW)
    assert text is not None
    assert text.startswith("estimated: ")
    assert text.endswith("(in 1m00s), when jobs are stopped for it, or up to their grace later")


def test_a_holder_without_a_time_limit_does_not_end_never() -> None:
    holder = BlockingJob(job_id="j-1", attempt=1, gpus=2, hosts=["a"], ends_by=None)
    reason = Reason(code=WaitCode.WAITING_FOR_GPUS, message="needs 8 GPUs", holders=[holder])
    [_, table] = show_waiting.reason_parts(reason)
    assert "no time limit" in shown(table)
    assert "never" not in shown(table)


def test_a_connection_that_counts_the_spare_hosts_in_says_so() -> None:
    spec = JobSpec(command=["true"], gpus=ResourceRequest(hosts=2, gpus_per_host=1), spare_hosts=1)
    made = Job(
        id="j-1",
        spec=spec,
        state=JobState.RUNNING,
        attempt=1,
        placement=placement({"a": [0], "b": [0], "c": [0]}),
        created_at=NOW,
    )
    [line] = [line for line in shown(show_job.job_details(made, [])).splitlines() if line.startswith("connected")]
    assert "its spare hosts counted in" in line
    alone = made.model_copy(update={"spec": spec.model_copy(update={"spare_hosts": 0})})
    assert "spare" not in shown(show_job.job_details(alone, []))


def test_a_job_says_how_long_such_jobs_usually_run() -> None:
    made = Job(id="j-1", spec=JobSpec(command=["true"]), state=JobState.QUEUED, created_at=NOW)
    assert "usually" not in shown(show_job.job_details(made, []))
    told = made.model_copy(update={"run_time": RunTime(7800.0, 4800.0, 10800.0, 12)})
    [line] = [line for line in shown(show_job.job_details(told, [])).splitlines() if line.startswith("runs")]
    assert line.split(maxsplit=1)[1].strip() == "usually 2h10m (80 %: 1h20m to 3h00m)"


def test_an_estimate_from_run_times_is_told_beside_a_promise_that_is_later() -> None:
    at = NOW.timestamp()
    reason = Reason(
        code=WaitCode.WAITING_FOR_GPUS,
        message="needs 8 GPUs",
        starts_by=at + 600,
        estimated_start=at + 60,
        estimate=EstimateBasis.RUN_TIMES,
        estimated_between=(at + 30, at + 90),
    )
    text = show_waiting.start_text(reason, NOW)
    assert text is not None
    assert text.startswith("promised: by ")
    assert "(in 10m00s), if jobs keep their time limits; usually " in text
    assert text.endswith(", if jobs run as long as earlier ones did")
    alone = show_waiting.start_text(reason.model_copy(update={"starts_by": None}), NOW)
    assert alone is not None
    assert alone.startswith("usually: ")
    assert alone.endswith("(in 1m00s) (80 %: in 30s to 1m30s), if jobs run as long as earlier ones did")
    assert "promised" not in alone


def test_the_queue_shows_the_interval_of_a_start_below_it_and_what_is_promised() -> None:
    at, spec = NOW.timestamp(), JobSpec(command=["true"])
    reason = Reason(
        code=WaitCode.WAITING_FOR_GPUS,
        message="needs 8 GPUs",
        estimated_start=at + 60,
        estimate=EstimateBasis.RUN_TIMES,
        estimated_between=(at + 30, at + 90),
    )
    reasons = [reason, reason.model_copy(update={"starts_by": at + 600}), None]
    queue = [
        QueueEntry(position=n, job_id=f"j{n}", attempt=1, waiting_since=NOW, spec=spec, reason=one)
        for n, one in enumerate(reasons)
    ]
    table = show_waiting.queue_table(queue, NOW)
    usual, promised, unknown = table.columns[7].cells
    assert str(usual).endswith("(in 1m00s)\n80 %: in 30s to 1m30s")
    assert "by" not in str(usual)
    assert str(promised).startswith("by ")
    assert str(promised).endswith("(in 10m00s)\n80 %: in 30s to 1m30s")
    assert unknown == "-"


def test_the_demonstration_names_the_attempt_once() -> None:
    event = Event(seq=1, at=NOW, kind="job.resumed", actor="workflow", attempt=2, data={"message": "attempt 2 goes on"})
    assert demo.describe(event) == "attempt 2 goes on"
    assert demo.describe(event.model_copy(update={"data": {"message": "begins"}})) == "attempt 2, begins"


def test_a_certificate_that_was_not_renewed_is_in_the_list_of_hosts() -> None:
    now = datetime.now(UTC) + timedelta(seconds=30)
    for hours, shown in ((20.0, ""), (3.0, "its certificate ends in 3h"), (-1.0, "its certificate ended 59m")):
        host = Host(
            name="a",
            state=HostState.READY,
            machine="m",
            address="x",
            simulated=False,
            isolation="jailed",
            lease_remaining_s=1,
            gpus_total=0,
            gpus_free=0,
            certificate_ends_at=now + timedelta(hours=hours),
        )
        table = Listing(list_columns.HOSTS).table([host.model_dump(mode="json")])
        [note] = list(table.columns[-1].cells)
        assert str(note).startswith(shown), note
        assert bool(shown) is bool(str(note))


def test_a_job_says_when_it_begins() -> None:
    begin = datetime(2026, 12, 1, 8, tzinfo=UTC)
    spec = JobSpec(command=["true"], begin_at=begin)
    waiting = Job(id="j", spec=spec, state=JobState.QUEUED, created_at=NOW)
    row = waiting.model_dump(mode="json")
    told = job_rows.begin_text(row, now=begin - timedelta(hours=3))
    assert told == "2026-12-01 08:00:00 UTC (in 3h00m), as was asked for"
    assert job_rows.begin_text(row, now=begin) is None
    assert job_rows.begin_text(row | {"state": "CANCELLED"}, now=begin - timedelta(hours=3)) is None
    later = datetime.now(UTC) + timedelta(hours=3, minutes=1)
    row["spec"]["begin_at"] = later.isoformat()
    assert "(in 3h00m), as was asked for" in shown(Listing(job_rows.COLUMNS).table([row]))


def test_elements_that_wait_side_by_side_have_one_row() -> None:
    spec = JobSpec(name="sweep", command=["true"])
    ids = ["j-1", "a-x.0", "a-x.1", "a-x.7", "a-y.1", "j-2", "a-x.8"]
    queue = [
        QueueEntry(position=place, job_id=job_id, attempt=1, waiting_since=NOW, spec=spec)
        for place, job_id in enumerate(ids, start=1)
    ]
    lines = shown(show_waiting.queue_table(queue, NOW)).splitlines()[1:]
    assert [line.split("sweep")[0].split() for line in lines] == [
        ["1", "j-1"],
        ["2-4", "a-x.0", "to", "7", "(3)"],
        ["5", "a-y.1"],
        ["6", "j-2"],
        ["7", "a-x.8"],
    ]


def test_a_job_whose_hosts_set_it_up_says_that_it_waits_for_that() -> None:
    job = Job(id="j-1", spec=JobSpec(command=["true"]), state=JobState.ALLOCATED, created_at=NOW)
    assert "memory of its GPUs that another job used is overwritten first" in shown(show_job.job_details(job, []))


def test_bars_fit_into_the_terminal_and_gaps_stay_gaps() -> None:
    means = [None] * 60 + [0.0] * 30 + [100.0] * 30
    points = [Point(at=NOW, mean=mean, max=None if mean is None else int(mean)) for mean in means]
    figures = Figures(count=60, mean=50.0, p50=0, p90=100, p99=100, max=100, points=points)
    found = MetricsHistory(
        since=NOW - timedelta(hours=1), until=NOW, point_s=30, gpus=1, hosts=["a"], utilization_percent=figures
    )
    for width, columns in ((200, 120), (70, 45)):
        lines = shown(show_metrics.history("a:0", found), width).splitlines()
        assert max(map(len, lines[1:])) <= width
        [bars] = [line for line in lines if "▁" in line]
        for bar in "▁█":
            assert abs(bars.count(bar) - columns / 4) <= 1
        assert abs(bars.index("▁") - len("utilisation  ") - columns / 2) <= 1
        assert bars.rstrip().endswith("0 to 100 %")
    one = Figures(count=1, mean=0.0, p50=0, p90=0, p99=0, max=0, points=[Point(at=NOW, mean=0.0, max=0)])
    assert "▁" in shown(show_metrics.history("a:0", found.model_copy(update={"power_w": one})))

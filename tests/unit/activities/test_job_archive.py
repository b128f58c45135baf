"""Jobs that ended long ago go into the archive, whole and once, and nothing that something else names goes."""

from __future__ import annotations

import gzip
import json
import signal
import stat
import subprocess
import sys
import threading
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, insert, select, text, update

from gpu_platform.domain.errors import NotFound
from gpu_platform.domain.jobs.array import ArraySpec
from gpu_platform.domain.jobs.dependency import Dependency, DependencyKind
from gpu_platform.domain.states import ArrayState, JobState, PipelineState
from gpu_platform.scheduling.policy_file import read_policy
from gpu_platform.settings import SchedulerSettings, Settings
from gpu_platform.store import Store, archiving, events, models, retention
from gpu_platform.store.archiving import Kind
from gpu_platform.store.jobs import arrays, jobs, owners
from gpu_platform.store.jobs.jobs import record_submission
from gpu_platform.store.jobs.usage import usage_report
from gpu_platform.store.reservations import attempts
from gpu_platform.store.reservations.attempts import AttemptResult
from tests.support.store_cluster import NOW, Cluster, set_job_state, spec
from tests.support.waiting import DEADLINE_S
from workers.scheduler.job_archive import JobArchive
from workers.scheduler.retention import Retention

KEEP = timedelta(days=30)
LATER = NOW + timedelta(days=32)
"""What ended at ``NOW`` may go, and there is more than a day to archive."""
SMALL: dict[Kind, int] = {"pipeline": 5, "array": 5, "job": 20}


def cancelled(store: Store, *job_ids: str) -> None:
    for job_id in job_ids:
        jobs.submit_job(store, job_id, spec(), actor="ada", now=NOW, idempotency_key=None)
        set_job_state(store, job_id, JobState.CANCELLED, now=NOW, actor="ada")


def lines(directory: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in sorted(directory.glob("jobs-*.jsonl.gz"))
        for line in gzip.decompress(path.read_bytes()).splitlines()
    ]


def rows(store: Store, table: str) -> set[str]:
    with store.read() as session:
        return set(session.scalars(select(getattr(models, table).c.id)))


def archived(store: Store, directory: Path, at_once: dict[Kind, int] | None = None) -> list[dict[str, Any]]:
    """Archive all that may go, and return the lines of the archive."""
    archive = JobArchive(store, KEEP, directory, at_once)
    while archive.look(LATER):
        pass
    return lines(directory)


def test_a_job_is_in_the_archive_with_usage_and_events_and_its_user_is_told_where(store: Store, tmp_path: Path) -> None:
    cluster = Cluster(store).host("a")
    attempts.end_attempt(
        store, cluster.running("old", {"a": [0]}), [JobState.COMPLETED], now=NOW, actor="test", result=AttemptResult()
    )
    cluster.running("living", {"a": [1]})
    directory = tmp_path / "archive"
    assert archived(store, directory) == [], "its reservation is kept, so it is"
    assert retention.prune(store, LATER)
    [line] = archived(store, directory)
    assert (line["entry"], line["id"], line["state"], line["user"]) == ("job", "old", "COMPLETED", spec().user)
    assert line["spec"]["command"] == ["true"]
    assert line["placement"]["slices"][0]["host"] == "a"
    assert [row["attempt"] for row in line["usage"]] == [1]
    assert [row["kind"] for row in line["events"]][-1] == "job.completed"
    assert line["events"][0]["data"] == {"name": spec().name, "gpus": 1}
    [path] = directory.iterdir()
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(directory.stat().st_mode)) == (0o600, 0o700)

    assert [job.id for job in jobs.list_jobs(store)[0]] == ["living"]
    with pytest.raises(
        NotFound, match=r"old ended long ago and was moved to the archive on .*jobs-00000001\.jsonl\.gz"
    ):
        jobs.get_job(store, "old")
    with pytest.raises(NotFound, match="moved to the archive"):
        jobs.submit_job(store, "next", spec(after=[Dependency(job_id="old")]), actor="ada", now=LATER)
    assert owners.owners_of(store, ["old"])["old"].user == spec().user, "its user is told, others learn nothing"
    assert usage_report(store).total.attempts == 1, "the sums of the last months stay"
    assert retention.prune_usage(store, LATER, 100) == 1
    assert jobs.get_job(store, "living").state is JobState.RUNNING


def test_what_something_else_names_stays(store: Store, tmp_path: Path) -> None:
    names = ["free", "awaited", "waited", "keyed", "fired", "watched", "of-pipeline"]
    cancelled(store, *names)
    jobs.submit_job(
        store, "waiter", spec(after=[Dependency(job_id="awaited", kind=DependencyKind.ANY)]), actor="ada", now=NOW
    )
    run = {"schedule_id": "s", "workflow_id": "w", "due_at": NOW, "job_id": "fired"}
    step = {"pipeline_id": "p-1", "step": "a", "number": 0, "tries": 0, "superseded": False, "job_id": "of-pipeline"}
    step |= {"directory": "", "cached": False, "output_read": False, "output": '{"loss": 1}'}
    line = {"id": "p-1", "namespace": "default", "user": "ada", "actor": "ada", "name": "p", "spec": "{}"}
    line |= {"state": "RUNNING", "uses_cache": True, "created_at": NOW}
    released = {"job_id": "waited", "after_job": "free", "kind": "any", "recorded_at": NOW, "released_at": NOW}
    named = [
        insert(models.idempotency).values(key="k", job_id="keyed", created_at=NOW),
        insert(models.dependency).values(released),
        insert(models.schedule_run).values(run),
        insert(models.job_watch).values(job_id="watched", workflow_id="w"),
        insert(models.pipeline).values(line),
        insert(models.pipeline_job).values(step),
    ]
    with store.write() as session:
        for statement in named:
            session.execute(statement)
    assert [one["id"] for one in archived(store, tmp_path)] == ["free"]
    with store.write() as session:
        session.execute(update(models.pipeline).values(state=PipelineState.COMPLETED.value, finished_at=NOW))
        for table in (models.idempotency, models.dependency, models.schedule_run, models.job_watch):
            session.execute(table.delete())
    found = archived(store, tmp_path)
    assert Counter(one["id"] for one in found) == Counter([*names, "p-1"])
    [pipeline] = [one for one in found if one["entry"] == "pipeline"]
    assert (pipeline["jobs"][0]["job_id"], pipeline["jobs"][0]["output"]) == ("of-pipeline", {"loss": 1})
    assert rows(store, "job") == {"waiter"}
    assert owners.owner_of_pipeline(store, "p-1") == owners.Owner("default", "ada")


def test_an_array_goes_before_its_elements_and_only_when_all_have_ended(store: Store, tmp_path: Path) -> None:
    arrays.submit_array(store, "a-1", spec(), ArraySpec(indices="0-3"), actor="ada", now=NOW, idempotency_key=None)
    cancelled(store, "a-1.0", "a-1.1", "a-1.2")
    jobs.submit_job(store, "a-1.3", spec(), actor="ada", now=NOW, idempotency_key=None)
    ended = {"state": ArrayState.CANCELLED.value, "finished_at": NOW}
    with store.write() as session:
        session.execute(update(models.job).values(array_id="a-1"))
        session.execute(update(models.job_array).values(ended))
    assert archived(store, tmp_path) == [], "an element has not ended"
    set_job_state(store, "a-1.3", JobState.CANCELLED, now=NOW, actor="ada")
    found = archived(store, tmp_path, {"pipeline": 1, "array": 1, "job": 2})
    assert [one["id"] for one in found] == ["a-1", "a-1.0", "a-1.1", "a-1.2", "a-1.3"]
    assert found[0]["shape"]["indices"] == "0-3"
    with pytest.raises(NotFound, match="a-1 ended long ago"):
        arrays.get_array(store, "a-1")


CHILD = """
import os, signal, sys
from datetime import datetime, timedelta
from pathlib import Path
from workers.scheduler import job_archive
from gpu_platform.store import Store, archiving

point, url, directory, now = sys.argv[1:]
remove, calls = archiving.remove, []

def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)

def remove_once(*given: object) -> int:
    if calls:
        die()
    calls.append(given)
    return remove(*given)

if point == "before it has its name":
    os.link = die
elif point == "before anything is removed":
    archiving.remove = die
elif point == "when some are removed":
    archiving.remove = remove_once
else:
    archiving.finish = die
job_archive._REMOVED_AT_ONCE = 5
at_once = {"pipeline": 5, "array": 5, "job": 20}
job_archive.JobArchive(Store(url), timedelta(days=30), Path(directory), at_once).look(datetime.fromisoformat(now))
"""


@pytest.mark.long
def test_a_leader_that_is_killed_loses_nothing_and_writes_nothing_twice(sqlite_store: Store, tmp_path: Path) -> None:
    store, address = sqlite_store, str(sqlite_store.url)
    ids = {f"j-{number:02}" for number in range(50)}
    cancelled(store, *sorted(ids))
    directory = tmp_path / "archive"
    for point in (
        "before it has its name",
        "before anything is removed",
        "when some are removed",
        "before the file is done",
    ):
        command = [sys.executable, "-c", CHILD, point, address, str(directory), LATER.isoformat()]
        killed = subprocess.run(command, capture_output=True, text=True, check=False)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        in_files, left = {line["id"] for line in lines(directory)}, rows(store, "job")
        assert in_files | left == ids, f"killed {point}, jobs are lost"
    assert in_files
    assert left
    # A leader looks at another moment, at which something else might come first.
    cancelled(store, "j-000")
    found = archived(store, directory, SMALL)
    assert Counter(line["id"] for line in found) == Counter([*ids, "j-000"])
    assert rows(store, "job") == set()
    assert [path.name for path in sorted(directory.iterdir())] == [
        f"jobs-{number:08}.jsonl.gz" for number in range(1, archiving.last_number(store) + 1)
    ], "nothing half written is left"


def test_a_file_that_is_damaged_or_cannot_be_written_lets_nothing_go(sqlite_store: Store, tmp_path: Path) -> None:
    store = sqlite_store
    cancelled(store, "j-1", "j-2")
    (tmp_path / "jobs-00000001.jsonl.gz").write_bytes(gzip.compress(b'{"entry":"job","id":"j-1"')[:20])
    with pytest.raises(OSError, match=r"jobs-00000001\.jsonl\.gz is damaged"):
        JobArchive(store, KEEP, tmp_path).look(LATER)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(OSError, match="file"):
        JobArchive(store, KEEP, file / "archive").look(LATER)
    assert rows(store, "job") == {"j-1", "j-2"}
    settings = SchedulerSettings(job_keep_days=30)
    assert not Retention(store, settings, file / "archive", lambda: read_policy({}, "policy")).look(LATER), "it goes on"


def test_a_submission_that_names_an_old_job_keeps_it(postgres_databases: Any, postgres_template: str) -> None:
    """Both at the same moment: whoever comes second sees what the first did."""
    name = postgres_databases.create(postgres_template)
    store = Store(postgres_databases.url(name))
    cancelled(store, "old")
    entry = archiving.ArchivedEntry("job", "old", "default", "ada")
    gone: list[int] = []
    removing = threading.Thread(target=lambda: gone.append(archiving.remove(store, 1, [entry], LATER)))
    after_old = spec(after=[Dependency(job_id="old", kind=DependencyKind.ANY)])
    with store.write() as session:
        record_submission(session, "next", after_old, actor="ada", now=LATER)
        removing.start()
        waits = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        wait_until(lambda: session.scalar(waits))
    removing.join(DEADLINE_S)
    assert gone == [0]
    assert jobs.get_job(store, "old").state is JobState.CANCELLED
    set_job_state(store, "next", JobState.CANCELLED, now=LATER, actor="ada")
    assert archiving.remove(store, 1, [entry], LATER) == 1
    with pytest.raises(NotFound, match="archive"):
        jobs.submit_job(store, "too-late", after_old, actor="ada", now=LATER)
    store.close()
    postgres_databases.drop(name)


def wait_until(condition: Any) -> None:
    done = threading.Event()
    for _ in range(int(DEADLINE_S / 0.01)):
        if condition():
            return
        done.wait(0.01)
    raise AssertionError("nobody waits for the lock")


def test_the_leader_removes_each_after_its_own_time(sqlite_store: Store, tmp_path: Path) -> None:
    store = sqlite_store
    cluster = Cluster(store).host("a")
    attempts.end_attempt(
        store, cluster.running("old", {"a": [0]}), [JobState.COMPLETED], now=NOW, actor="test", result=AttemptResult()
    )

    def look(days: float, **policy: Any) -> dict[str, int]:
        given = SchedulerSettings(retention_days=10, job_keep_days=30, event_keep_days=40, usage_keep_days=50)
        removal = Retention(store, given, tmp_path, lambda: read_policy(policy, "policy"))
        while removal.look(NOW + timedelta(days=days)):
            pass
        tables = ("reservation", "job", "archived_job", "event", "usage")
        with store.read() as session:
            return {
                name: session.scalar(select(func.count()).select_from(getattr(models, name))) or 0 for name in tables
            }

    whole = look(9)
    assert whole | {"event": 0} == {"reservation": 1, "job": 1, "archived_job": 0, "event": 0, "usage": 1}
    assert look(11, order="fair_share", half_life_s=7 * 86_400) == whole, "fair share still counts it"
    assert look(11) == whole | {"reservation": 0}
    assert look(32) == whole | {"reservation": 0, "job": 0, "archived_job": 1}
    assert look(41)["event"] == 0
    assert len(lines(tmp_path)[0]["events"]) > 3, "the archive has them"
    assert look(51)["usage"] == 0
    assert look(63)["archived_job"] == 0, "it is not remembered for ever"
    with pytest.raises(NotFound, match="there is no job"):
        jobs.get_job(store, "old")


def test_everything_has_an_end_by_default(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path)
    given = settings.scheduler
    assert settings.job_archive == tmp_path / "archive"
    assert given.retention_days is not None
    assert given.job_keep_days is not None
    assert given.event_keep_days is not None
    assert given.retention_days < given.job_keep_days < given.event_keep_days, "archived jobs have their events"


def test_old_events_go_and_a_reader_that_needs_them_is_told(store: Store) -> None:
    cancelled(store, "j-1", "j-2")
    with store.write() as session:
        events.append_event(session, "host.lost", "test", NOW + timedelta(days=3), host="a")
    last = events.last_seq(store)
    assert events.remove_old(store, NOW, 100) == 0
    assert events.remove_old(store, NOW + timedelta(days=1), 2) == 2
    assert events.remove_old(store, NOW + timedelta(days=1), 100) == 2
    assert events.remove_old(store, NOW + timedelta(days=1), 100) == 0
    assert [event.seq for event in events.read_events(store, 0)] == [last]
    for after in (0, last - 1, last):
        events.check_kept(store, after)
    with pytest.raises(events.EventsGone, match=f"up to number {last - 1} .* begin after {last - 1}"):
        events.check_kept(store, last - 2)

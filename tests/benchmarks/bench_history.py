"""A year of jobs in PostgreSQL: ``python -m tests.benchmarks.bench_history [--jobs 3600000] [--archive 10]``.

Fills a database (fsync on) with ended jobs, each with the rows that a real one leaves: job, events, usage, and of the
last quarter reservation and allocation. The rows are copies of those that the store's own functions write, with other
ids, times, users, names and states. Prints what lists, filters, one job, status, the feed, a new leader and the
retention cost then. 3.6 million jobs take about 25 GB of disk.
"""

from __future__ import annotations

import argparse
import functools
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import select

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import NotFound
from gpu_platform.domain.jobs.usage import RankUsage
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store, archiving, events, models, retention, state
from gpu_platform.store.jobs import jobs, run_times
from gpu_platform.store.jobs.paging import cursor_of
from gpu_platform.store.jobs.usage import usage_of_job, usage_report
from gpu_platform.store.reservations import attempts, reserving
from gpu_platform.store.reservations.attempts import AttemptResult
from gpu_platform.store.restoring import orphans
from service.metrics import exposition
from tests.support.postgres import Databases, find_binaries, running_postgres
from tests.support.store_cluster import Cluster, placement, spec
from workers.scheduler import job_archive
from workers.scheduler.job_archive import JobArchive

A_DAY = 10_000
WAITING, HOSTS = 1000, 100
ROUNDS = 20
TEMPLATE = "j-0000000template"
PLACES = {
    TEMPLATE: "id",
    "2001-01-01 00:00:00+00": "at",
    "NAME-template": "name",
    "USER-template": "user",
    "SPACE-template": "space",
}
"""What stands in the template's rows, and which value takes its place."""
BLOCK = 5000
"""Jobs of one block of COPY."""
COPIED = ("job", "event", "usage", "reservation", "allocation")
ENV = {f"VARIABLE_{number}": "value" * 4 for number in range(6)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=3_600_000)
    parser.add_argument("--archive", type=int, default=10, help="how many files of the archive are written")
    options = parser.parse_args()
    binaries = find_binaries()
    if binaries is None:
        print("PostgreSQL is not installed")
        return
    with running_postgres(binaries, durable=True) as url:
        databases = Databases(url)
        address = databases.url(databases.create())
        store = Store(address)
        store.migrate()
        history = History(store, address, options.jobs)
        history.fill()
        measure(history)
        measure_removal(history, options.archive)
        measure_without_indices(history, address)
        store.close()


class History:
    """A database with so many ended jobs, ``A_DAY`` a day until now."""

    def __init__(self, store: Store, address: str, count: int) -> None:
        self.store, self._address, self.count = store, address, count
        self.until = datetime.now(UTC)
        self.began = self.until - timedelta(days=count / A_DAY)
        self.held_from = self.until - (self.until - self.began) / 4
        """Reservations and allocations of jobs before are deleted: of a year, three months are kept."""
        self._random = random.Random(11)
        self._columns: dict[str, list[str]] = {}

    def fill(self) -> None:
        cluster = Cluster(self.store)
        for number in range(HOSTS):
            cluster.host(f"h{number}", gpus=8, now=self.began)
        self._one_real_job(cluster)
        began = time.monotonic()
        with psycopg.connect(self._address, autocommit=True) as connection:
            connection.execute("SET timezone = 'UTC'")
            connection.execute("SET maintenance_work_mem = '1GB'")
            connection.execute("ALTER SYSTEM SET max_wal_size = '8GB'")
            connection.execute("ALTER SYSTEM SET autovacuum = off")
            connection.execute("SELECT pg_reload_conf()")
            templates = {name: self._read(connection, name) for name in COPIED}
            per_job = {name: len(rows) for name, rows in templates.items()}
            print(f"rows of one job: {per_job}; {sum(map(len, templates['job'])):,} bytes of its own row", flush=True)
            texts = {name: _template(rows) for name, rows in templates.items()}
            indices = [index for name in ("job", "event", "usage") for index in _drop_indices(connection, name)]
            for first in range(0, self.count, BLOCK):
                self._copy(connection, texts, range(first, min(first + BLOCK, self.count)))
            copied = time.monotonic() - began
            for index in indices:
                connection.execute(index)  # type: ignore[arg-type]
            connection.execute("SELECT setval('event_seq_seq', (SELECT max(seq) FROM event))")
            connection.execute("VACUUM ANALYZE")
            sizes = "SELECT relname, pg_total_relation_size(oid) / 1e9 FROM pg_class WHERE relname = ANY(%s)"
            told = ", ".join(f"{name} {size:.1f}" for name, size in connection.execute(sizes, [list(COPIED)]))
        print(f"{self.count:,} jobs: COPY {copied:.0f} s, with indices {time.monotonic() - began:.0f} s; GB: {told}")
        for number in range(WAITING):
            cluster.queued(f"j-waiting-{number}", now=self.until, user="ada")

    def id_of(self, number: int) -> str:
        return f"j-{number:015}"

    def _one_real_job(self, cluster: Cluster) -> None:
        """Let one job run along its whole way. ``TEMPLATE`` stands where the ids of others will be."""
        given = spec(name="NAME-template", user="USER-template", namespace="SPACE-template", env=ENV, workdir="/srv/x")
        now = datetime(2001, 1, 1, tzinfo=UTC)
        jobs.submit_job(self.store, TEMPLATE, given, actor="USER-template", now=now, idempotency_key=None)
        jobs.admit_job(self.store, TEMPLATE, now)
        cluster.enqueue(TEMPLATE, now=now)
        key = AttemptKey(job_id=TEMPLATE, attempt=1)
        reserving.reserve_gang(self.store, key, placement({"h0": [0]}), now=now)
        attempts.mark_running(self.store, key, now)
        used = RankUsage(
            rank=0,
            host="h0",
            seconds=5025.123456,
            gpu_seconds=5025.123456,
            mean_utilization_percent=87.6543,
            peak_utilization_percent=100,
            mean_gpu_memory_mib=40321.5,
            peak_gpu_memory_mib=61234,
            energy_j=2534567.8,
            cpu_s=9876.54,
            peak_memory_mib=20123,
        )
        result = AttemptResult(usage=[used])
        attempts.end_attempt(self.store, key, [JobState.COMPLETED], now=now, actor="control", result=result)

    def _read(self, connection: psycopg.Connection[Any], table: str) -> list[str]:
        """The template's rows of the table, as COPY writes them. They leave the table."""
        column = "id" if table == "job" else "job_id"
        names = "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
        columns = [f'"{name}"' for (name,) in connection.execute(names + " ORDER BY attnum", [table])]
        self._columns[table] = columns = [name for name in columns if (table, name) != ("event", '"seq"')]
        wanted = f"SELECT {', '.join(columns)} FROM {table} WHERE {column} = '{TEMPLATE}'"
        order = " ORDER BY seq" if table == "event" else ""
        with connection.cursor().copy(f"COPY ({wanted}{order}) TO STDOUT") as copy:  # type: ignore[arg-type]
            rows = b"".join(bytes(part) for part in copy).decode().splitlines()
        if table != "event":
            connection.execute("SET session_replication_role = replica")
            connection.execute(f"DELETE FROM {table} WHERE {column} = '{TEMPLATE}'")  # type: ignore[arg-type]
        return rows

    def _copy(self, connection: psycopg.Connection[Any], templates: dict[str, str], numbers: range) -> None:
        made = [self._replacements(number) for number in numbers]
        for table, template in templates.items():
            wanted = [one for at, one in made if table not in COPIED[3:] or at > self.held_from]
            if not wanted:
                continue
            into = f"COPY {table} ({', '.join(self._columns[table])}) FROM STDIN"
            with connection.cursor().copy(into) as copy:  # type: ignore[arg-type]
                copy.write("".join([template % one for one in wanted]))

    def _replacements(self, number: int) -> tuple[datetime, dict[str, str]]:
        at = self.began + timedelta(days=number / A_DAY)
        rare = number % 100_000 == 7
        ended = self._random.random()
        return at, {
            "id": self.id_of(number),
            "at": at.isoformat(" "),
            "name": "rare-name" if rare else f"train-{int(self._random.random() * 3000)}",
            "user": "rare-user" if rare else f"user-{int(self._random.random() * 200)}",
            "space": f"team-{int(self._random.random() * 20)}",
            "state": "COMPLETED" if ended < 0.85 else "FAILED" if ended < 0.95 else "CANCELLED",
        }


def _template(rows: Sequence[str]) -> str:
    """A text for the operator ``%``, from the rows of the template."""
    text = "".join(row + "\n" for row in rows).replace("%", "%%")
    for old, name in PLACES.items():
        text = text.replace(old, f"%({name})s")
    return text.replace("\tCOMPLETED\t", "\t%(state)s\t")


def _drop_indices(connection: psycopg.Connection[Any], table: str) -> list[str]:
    """Drop the indices of a table but its primary key. Returns the statements that make them again."""
    query = "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = %s AND indexname NOT LIKE 'pk\\_%%'"
    found = connection.execute(query, [table]).fetchall()
    for name, _ in found:
        connection.execute(f"DROP INDEX {name}")  # type: ignore[arg-type]
    return [statement for _, statement in found]


def measure(history: History) -> None:
    store, count = history.store, history.count
    _, cursor = jobs.list_jobs(store, limit=100)
    with store.read() as session:
        half_way = select(models.job).where(models.job.c.id == history.id_of(count // 2))
        deep = cursor_of(session.execute(half_way).one())
    since = history.until - timedelta(days=30)
    newest = events.last_seq(store)
    an_old_one, a_young_one = history.id_of(count // 2), history.id_of(count - 1)
    team = ["team-1", "team-2"]
    listed = functools.partial(jobs.list_jobs, store, limit=100)
    looks: dict[str, Callable[[], Any]] = {
        "list: first page of 100": listed,
        "list: second page": lambda: listed(cursor=cursor),
        "list: a page from half a year ago": lambda: listed(cursor=deep),
        "list: state RUNNING (none)": lambda: listed(states=[JobState.RUNNING]),
        "list: state QUEUED (1,000)": lambda: listed(states=[JobState.QUEUED]),
        "list: state FAILED (10 %)": lambda: listed(states=[JobState.FAILED]),
        "list: a user with 0.5 % of all": lambda: listed(user="user-7"),
        "list: a user with 36 jobs": lambda: listed(user="rare-user"),
        "list: a user without any": lambda: listed(user="nobody"),
        "list: a name with 36 jobs": lambda: listed(name="rare-name"),
        "list: of two namespaces (10 %)": lambda: listed(visible=team),
        "list: of a namespace without any": lambda: listed(namespace="nobody"),
        "list: FAILED of a user": lambda: listed(states=[JobState.FAILED], user="user-7"),
        "one job (describe), half a year old": lambda: jobs.get_job(store, an_old_one),
        "its events": lambda: events.read_events(store, 0, job_id=an_old_one),
        "its usage": lambda: usage_of_job(store, an_old_one),
        "usage report, last 30 days": lambda: usage_report(store, since=since),
        "usage report, everything": lambda: usage_report(store),
        "jobs by state (status, /metrics)": lambda: jobs.count_jobs_by_state(store),
        "/metrics": lambda: exposition(store),
        "feed: change token": lambda: events.change_token(store),
        "feed: the newest 1,000 events": lambda: events.read_events(store, newest - 1000, 1000),
        "feed: of two namespaces, the newest 500": lambda: events.read_events(store, newest - 500, 500, None, team),
        "events: first page": lambda: events.read_events(store, 0, 1000),
        "new leader: read_state": lambda: state.read_state(store, history.until, timedelta(days=56), with_moves=True),
        "new leader: attempts that are preempted": lambda: state.read_preempting(store),
        "new leader: run times": lambda: run_times.ended_runs(store),
        "new leader: completed runs": lambda: run_times.completed_runs(store),
        "sweep: jobs that have not ended": lambda: orphans.live_jobs(store),
        "sweep: held without an owner": lambda: orphans.held_without_owner(store),
        "submit a job": _submitting(history),
        "describe the newest": lambda: jobs.get_job(store, a_young_one),
    }
    print(f"\n{'at ' + format(count, ',') + ' jobs':<44} {'p50 ms':>9} {'max ms':>9}", flush=True)
    for name, look in looks.items():
        show(name, timings(look))


def measure_without_indices(history: History, address: str) -> None:
    """What the lists of namespaces, users and names cost without the indices for them."""
    with psycopg.connect(address, autocommit=True) as connection:
        for name in ("namespace", "user", "name"):
            connection.execute(f"DROP INDEX ix_job_{name}_created_at")
        connection.execute("ANALYZE job")
    print("\nwithout the indices for these lists", flush=True)
    listed = functools.partial(jobs.list_jobs, history.store, limit=100)
    show("list: a user with 36 jobs", timings(lambda: listed(user="rare-user")))
    show("list: a name with 36 jobs", timings(lambda: listed(name="rare-name")))
    show("list: of a namespace without any", timings(lambda: listed(namespace="nobody")))
    show("submit a job", timings(_submitting(history, "without")))


def _submitting(history: History, prefix: str = "new") -> Callable[[], Any]:
    numbers = iter(range(10**9))

    def submit() -> None:
        given = spec(name="train-5", user="user-7")
        now = datetime.now(UTC)
        jobs.submit_job(
            history.store, f"j-{prefix}-{next(numbers)}", given, actor="user-7", now=now, idempotency_key=None
        )

    return submit


def timings(look: Callable[[], Any], rounds: int = ROUNDS) -> list[float]:
    """Milliseconds of some calls; of slow ones fewer. The first one, which reads from the disk, does not count."""
    look()
    found: list[float] = []
    ends = time.monotonic() + 10
    while len(found) < rounds and (len(found) < 3 or time.monotonic() < ends):
        began = time.perf_counter()
        look()
        found.append((time.perf_counter() - began) * 1e3)
    return found


def show(name: str, found: Sequence[float]) -> None:
    print(f"{name:<44} {statistics.median(found):>9.1f} {max(found):>9.1f}", flush=True)


def measure_removal(history: History, files: int) -> None:
    """What the retention costs, and how long its transactions are. A third of the jobs counts as old."""
    store = history.store
    now = history.until + timedelta(days=1)
    keep = now - history.began - (history.until - history.began) / 3
    job_archive.SPARED = timedelta(0)  # a short history has less than a day to archive
    transactions: list[float] = []
    directory = Path(tempfile.mkdtemp(prefix="gpu-platform-bench-"))
    print("\nretention")
    try:
        a_week = history.held_from + timedelta(days=7)
        show("prune: reservations and allocations of 500", list(timed(lambda: retention.prune(store, a_week), 5)))
        removal = archiving.remove
        job_archive.archiving.remove = _noting(removal, transactions)  # type: ignore[assignment]
        archive = JobArchive(store, keep, directory)
        looks = list(timed(lambda: archive.look(now), files))
        job_archive.archiving.remove = removal  # type: ignore[assignment]
        if transactions:
            show(f"a file of {job_archive.AT_ONCE['job']} jobs", looks)
            show("  of it, a transaction of 250 jobs", transactions)
            each = sum(path.stat().st_size for path in directory.iterdir()) / len(transactions) / 250
            print(f"  on disk {each:.0f} bytes a job; {archiving.last_number(store)} files")
        show("remove 500 events", list(timed(lambda: events.remove_old(store, now - keep, 500), 20)))
        show("remove 500 rows of usage", list(timed(lambda: retention.prune_usage(store, now - keep, 500), 5)))
        show("describe an archived job", timings(lambda: _missing(history)))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _missing(history: History) -> None:
    try:
        jobs.get_job(history.store, history.id_of(0))
    except NotFound:
        return
    raise AssertionError("it is not in the archive")


def _noting(remove: Callable[..., int], transactions: list[float]) -> Callable[..., int]:
    def noted(*given: Any) -> int:
        began = time.perf_counter()
        removed = remove(*given)
        transactions.append((time.perf_counter() - began) * 1e3)
        return removed

    return noted


def timed(call: Callable[[], object], rounds: int) -> Iterator[float]:
    """Milliseconds of each call."""
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        yield (time.perf_counter() - began) * 1e3


if __name__ == "__main__":
    main()

"""Migrations and what the database itself refuses."""

from __future__ import annotations

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import delete, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from gpu_platform.domain.errors import CannotStart, InvalidRequest, StorageFull, Unavailable
from gpu_platform.store import Store, events, models
from gpu_platform.store.database import writing
from gpu_platform.store.migrate import newest_revision
from tests.support.store_cluster import NOW, Cluster


def test_the_migrations_lead_to_the_models(store: Store) -> None:
    with store.read() as session, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        context = MigrationContext.configure(session.connection(), opts={"compare_type": True})
        assert compare_metadata(context, models.Record.metadata) == []


def test_many_may_migrate_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new' / 'platform.db'}"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(_migrate, [url] * 8))
    store = Store(url)
    assert events.last_seq(store) == 0
    store.close()


def test_many_may_migrate_at_once_on_postgresql(postgres_databases) -> None:
    name = postgres_databases.create()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(_migrate, [postgres_databases.url(name)] * 8))
    postgres_databases.drop(name)


def test_a_schema_of_a_newer_release_is_refused_or_stays_as_it_is(tmp_path: Path) -> None:
    """While an upgrade rolls, an older process may start again after a newer one migrated."""
    url = f"sqlite:///{tmp_path / 'platform.db'}"
    _migrate(url)
    store = Store(url)
    with store.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(CannotStart, match=rf"schema 9999, which a newer release made.* up to {newest_revision()}\."):
        store.migrate()
    store.migrate(accept_newer=True)
    with store.read() as session:
        assert session.scalar(text("SELECT version_num FROM alembic_version")) == "9999"
    store.close()


@pytest.mark.parametrize("change", [delete(models.event), update(models.event).values(kind="rewritten")])
def test_events_cannot_be_rewritten(store: Store, change) -> None:
    with store.write() as session:
        events.append_event(session, "host.lost", "test", NOW, host="a")
    with pytest.raises(DBAPIError, match="append only"), store.write() as session:
        session.execute(change)
    assert [event.kind for event in events.read_events(store, 0)] == ["host.lost"]


@pytest.mark.parametrize(
    "columns",
    [
        {"exclusive_holders": 2},
        {"exclusive_holders": -1},
        {"exclusive_holders": 1},  # while AVAILABLE, and without taking all of it
        {"sm_percent_used": 101},
        {"sm_percent_used": -1},
        {"memory_used_mib": 10_000_000},
        {"memory_used_mib": -1},
        {"state": "ALLOCATED"},  # by nobody
        {"state": "DEGRADED", "exclusive_holders": 1, "sm_percent_used": 50},
    ],
)
def test_a_gpu_cannot_be_oversubscribed_whatever_the_code_does(store: Store, columns: dict[str, object]) -> None:
    cluster = Cluster(store).host("a", gpus=1)
    with pytest.raises(IntegrityError), store.write() as session:
        session.execute(update(models.gpu).values(columns))
    assert cluster.states("a") == ["AVAILABLE"]


def test_a_gpu_cannot_have_two_exclusive_holders(store: Store) -> None:
    cluster = Cluster(store).host("a", gpus=1)
    uuid = cluster.uuid("a", 0)
    cluster.running("first", {"a": [0]})
    second = {"job_id": "second", "attempt": 1, "reserved_at": NOW}
    held = {"gpu_uuid": uuid, "host": "a", "exclusive": True, "sm_percent": 100, "memory_mib": 1}
    with store.write() as session:
        session.execute(models.reservation.insert(), second)
    with pytest.raises(IntegrityError), store.write() as session:
        session.execute(models.allocation.insert(), second | held)


def test_a_database_that_is_away_is_said_to_be_unavailable(tmp_path: Path) -> None:
    (tmp_path / "platform.db").mkdir()
    for url in (f"sqlite:///{tmp_path / 'platform.db'}", "postgresql://nobody@127.0.0.1:1/none"):
        store = Store(url)
        with pytest.raises(Unavailable, match="database"):
            events.last_seq(store)
        with pytest.raises(Unavailable):
            events.change_token(store)
        store.close()


def test_a_database_that_no_waiting_mends_is_refused_with_what_to_do(tmp_path: Path, postgres_url: str) -> None:
    damaged, directory = tmp_path / "damaged.db", tmp_path / "directory.db"
    damaged.write_bytes(b"this is a letter, and no database, however long it is read" * 100)
    directory.mkdir()
    server = postgres_url.rsplit("/", 1)[0]
    cases = {
        f"sqlite:///{damaged}": r"file is not a database\. Name another file \(database_url\), or put back a backup",
        f"sqlite:///{directory}": r"unable to open database file\. This process must be able to write the file",
        f"sqlite:///{damaged}/platform.db": r"cannot be used: .*This process must be able to write the file",
        f"{server}/nowhere": r'database "nowhere" does not exist; create it, owned by this account',
        server.replace("postgres@", "stranger:s3cret@") + "/postgres": r'role "stranger" does not exist; set the right',
        f"{server}/postgres?colour=red": r"colour.*; mend database_url",
    }
    for url, said in cases.items():
        with pytest.raises(CannotStart, match=said) as refused:
            _migrate(url)
        assert "s3cret" not in refused.value.message
    for url in ("mysql://a@b/c", "no address", "postgresql://u:s3cret@host:port/x"):
        with pytest.raises(InvalidRequest, match="postgresql://") as wrong:
            Store(url)
        assert "s3cret" not in wrong.value.message


def test_a_full_disk_is_told_apart_from_a_database_that_is_away(small_disk: Path) -> None:
    store = Store(f"sqlite:///{small_disk / 'platform.db'}")
    store.migrate()
    written = 0

    def write_until_it_is_full() -> None:
        nonlocal written
        while True:
            with store.write() as session:
                events.append_event(session, "host.lost", "x" * 4000, NOW, host=f"h{written}")
            written += 1

    with pytest.raises(StorageFull, match="make room there"):
        write_until_it_is_full()
    assert events.last_seq(store) == written > 0, "what was not refused is there, and the rest is not"
    store.close()


def test_a_connection_that_broke_while_idle_is_replaced(postgres_databases, postgres_template: str) -> None:
    name = postgres_databases.create(postgres_template)
    store = Store(postgres_databases.url(name))
    Cluster(store).host("a", gpus=1)
    with store.read() as session:
        pid = session.scalar(text("SELECT pg_backend_pid()"))
    other = Store(postgres_databases.url(name))
    with other.read() as session:
        session.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
    Cluster(store).host("b", gpus=1)
    other.close()
    store.close()
    postgres_databases.drop(name)


def test_a_transaction_that_lost_a_deadlock_is_repeated(postgres_databases, postgres_template: str) -> None:
    name = postgres_databases.create(postgres_template)
    store = Store(postgres_databases.url(name))
    both_hold_one = threading.Barrier(2)
    calls: list[int] = []

    @writing
    def lock_in_order(session: Session, first: int, second: int) -> None:
        calls.append(first)
        events.append_event(session, "job.test", "test", NOW, data={"first": first})
        session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": first})
        if len(calls) <= 2:
            both_hold_one.wait()
        session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": second})

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda order: lock_in_order(store, *order), [(1, 2), (2, 1)]))
    assert len(calls) == 3
    assert sorted(event.data["first"] for event in events.read_events(store, 0)) == [1, 2]
    store.close()
    postgres_databases.drop(name)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://u@h/d"])
def test_databases_that_cannot_hold_the_truth_are_refused(url: str) -> None:
    with pytest.raises(InvalidRequest):
        Store(url)


def test_a_time_without_zone_is_refused(store: Store) -> None:
    with pytest.raises(Exception, match="no time zone"), store.write() as session:
        events.append_event(session, "host.lost", "test", datetime(2026, 1, 1))
    assert events.last_seq(store) == 0


def test_times_come_back_in_utc(store: Store) -> None:
    with store.write() as session:
        events.append_event(session, "host.lost", "test", NOW.astimezone())
    (event,) = events.read_events(store, 0)
    assert event.at == NOW
    assert event.at.tzinfo is UTC


def _migrate(url: str) -> None:
    store = Store(url)
    store.migrate()
    store.migrate()
    store.close()

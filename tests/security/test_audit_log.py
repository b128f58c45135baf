"""The audit log: who changes it leaves a trace, and what cannot be written into it does not happen."""

from __future__ import annotations

import stat
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from typer.testing import CliRunner

from gpu_platform.cli.app import app as command_line
from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.domain.audit import EMPTY, AuditEntry, AuditRecord, ChainCheck, ChainHead
from gpu_platform.domain.errors import Unavailable
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.settings import SchedulerSettings, Settings
from gpu_platform.store import Store, audit
from gpu_platform.store.access import tokens
from gpu_platform.store.jobs import jobs
from service import audit_log
from service.app import create_app
from service.audit_log import AuditLog
from tests.support.api_server import application, bearer, served, sign_in
from tests.support.store_cluster import Cluster
from workers.scheduler.audit_retention import AuditRetention

PEOPLE = {"olga": {CLUSTER: Role.OPERATOR}, "ada": {"team-a": Role.USER}}
TOKENS = {name: f"gpt_{name * 12}" for name in PEOPLE}
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def entry(number: int = 0, **fields: Any) -> AuditEntry:
    given = {"at": NOW + timedelta(seconds=number), "actor": "ada", "action": "POST /v1/jobs", "verdict": "allowed"}
    return AuditEntry.model_validate(given | fields)


def check(store: Store, *heads: ChainHead) -> list[str]:
    checking = ChainCheck(heads)
    for record in audit.read_records(store, 0, 10_000):
        checking.take(record)
    return checking.finish()


@pytest.fixture
def log(store: Store) -> Store:
    """A log of ten records."""
    audit.append(store, [entry(number) for number in range(10)])
    return store


def as_database_administrator(store: Store, *statements: str) -> None:
    """Whoever owns the tables can take the triggers away first."""
    drop = {
        "sqlite": ["DROP TRIGGER audit_no_update", "DROP TRIGGER audit_no_delete"],
        "postgresql": ["DROP TRIGGER audit_no_change ON audit", "DROP TRIGGER audit_no_delete ON audit"],
    }[store.dialect]
    with store.write() as session:
        for statement in (*drop, *statements):
            session.execute(text(statement))


@pytest.mark.parametrize("statement", ["UPDATE audit SET entry = '{}'", "DELETE FROM audit WHERE seq = 10"])
def test_the_database_itself_refuses_changes(log: Store, statement: str) -> None:
    with pytest.raises(DBAPIError, match="append only"), log.write() as session:
        session.execute(text(statement))
    assert check(log) == []


TAMPERED = {
    "changed": ["UPDATE audit SET entry = replace(entry, '\"ada\"', '\"eve\"') WHERE seq = 5"],
    "removed": ["DELETE FROM audit WHERE seq = 5"],
    "the first removed": ["DELETE FROM audit WHERE seq = 1"],
    "reordered": [
        "UPDATE audit SET seq = 100 WHERE seq = 5",
        "UPDATE audit SET seq = 5 WHERE seq = 6",
        "UPDATE audit SET seq = 6 WHERE seq = 100",
    ],
    "inserted": ["INSERT INTO audit (seq, at, entry, hash) VALUES (11, 0, '{}', 'x')"],
    "a hash changed": ["UPDATE audit SET hash = 'x' WHERE seq = 10"],
}


@pytest.mark.parametrize("statements", TAMPERED.values(), ids=TAMPERED)
def test_what_was_tampered_with_is_found(log: Store, statements: list[str]) -> None:
    assert check(log) == []
    as_database_administrator(log, *statements)
    assert check(log) != []


def test_an_end_that_was_cut_off_is_found_by_a_kept_head(log: Store) -> None:
    head = audit.read_head(log)
    assert head.seq == 10
    as_database_administrator(log, "DELETE FROM audit WHERE seq > 7")
    assert check(log) == [], "nothing in the log itself says how long it was"
    assert check(log, head) == ["the log ends at record 7, and had record 10 once"]
    audit.append(log, [entry(20 + number) for number in range(5)])
    assert check(log, head) == ["record 10 is not the one whose hash was kept: the log was rewritten"]


def test_many_processes_write_one_chain(store: Store) -> None:
    def write(writer: int) -> None:
        for number in range(10):
            audit.append(store, [entry(number, actor=f"writer-{writer}") for _ in range(3)])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(6)))
    assert audit.read_head(store).seq == 180
    assert check(store) == []


def test_a_change_waits_until_its_entry_is_on_disk(sqlite_store: Store) -> None:
    log = AuditLog(sqlite_store)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: log.record(entry(number), wait=True), range(50)))
        assert audit.read_head(sqlite_store).seq == 50
    log.record(entry(50), wait=False)
    log.close()
    assert audit.read_head(sqlite_store).seq == 51, "what waits is written before the end"
    assert check(sqlite_store) == []


def test_what_cannot_be_written_does_not_happen(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> ChainHead:
        raise OSError("no space left on device")

    monkeypatch.setattr(audit, "append", broken)
    log = AuditLog(sqlite_store)
    with pytest.raises(Unavailable, match="cannot be written: no space left"):
        log.record(entry(), wait=True)
    log.close()


def test_a_log_that_is_behind_refuses_more(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, over = threading.Event(), threading.Event()

    def slow(*_: object) -> ChainHead:
        begun.set()
        over.wait(10)
        return EMPTY

    monkeypatch.setattr(audit, "append", slow)
    monkeypatch.setattr(audit_log, "MAX_WAITING", 3)
    log = AuditLog(sqlite_store)
    log.record(entry(), wait=False)
    assert begun.wait(5)
    for _ in range(3):
        log.record(entry(), wait=False)
    with pytest.raises(Unavailable, match="fast enough"):
        log.record(entry(), wait=False)
    over.set()
    log.close()


async def test_the_command_line_shows_verifies_and_exports(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = entry(actor="eve\x1b[2J", verdict="forbidden", reason="[/oops]", at=datetime.now(UTC))
    audit.append(sqlite_store, [entry(number) for number in range(1100)])
    audit.append(sqlite_store, [hostile])
    async with served(application(sqlite_store, "127.0.0.1:1")) as url:
        monkeypatch.setenv("GPU_PLATFORM_API_URL", url)
        run = _runner()
        shown = await run("audit", "--since", "1h")
        assert (shown.exit_code, "eve\\x1b[2J" in shown.stdout, "[/oops]" in shown.stdout) == (0, True, True)
        assert "ada" not in shown.stdout, "that was long ago"
        head, exported = tmp_path / "head", tmp_path / "audit.jsonl"
        verified = await run("audit", "verify")
        assert (verified.exit_code, "records, nothing is wrong" in verified.stderr) == (0, True)
        [line] = [line for line in verified.stdout.splitlines() if line.startswith("{")]  # beside the service's own log
        head.write_text(line)
        assert (await run("audit", "export", "-o", str(exported))).exit_code == 0
        assert (await run("audit", "verify", "--file", str(exported), "--head", str(head))).exit_code == 0
        kept = ChainHead.model_validate_json(line)
        assert kept.seq >= 1101, "the requests of these commands are in the log, too"
        as_database_administrator(sqlite_store, "DELETE FROM audit WHERE seq >= 1101")
        assert (await run("audit", "verify")).exit_code == 0
        cut = await run("audit", "verify", "--head", str(head))
        assert cut.exit_code == 1
        assert f"had record {kept.seq} once" in cut.stderr or f"record {kept.seq} is not the one" in cut.stderr
    exported.write_text(exported.read_text().replace("ada", "eve", 1))
    changed = await run("audit", "verify", "--file", str(exported))
    assert (changed.exit_code, "record 1 or the one before it was changed" in changed.stderr) == (1, True)


TODAY = NOW + timedelta(days=8, hours=23)


class TestOldRecords:
    """They go into an archive, and what stays can still be verified."""

    @pytest.fixture
    def archive(self, tmp_path: Path) -> Path:
        return tmp_path / "archive"

    def moved(self, archive: Path) -> list[AuditRecord]:
        lines = [line for path in sorted(archive.iterdir()) for line in path.read_text().splitlines()]
        return [AuditRecord.model_validate_json(line) for line in lines]

    @pytest.fixture
    def days(self, store: Store) -> Store:
        """A record for each of ten days."""
        audit.append(store, [entry(number * 86_400) for number in range(10)])
        return store

    def test_they_are_moved_and_both_parts_verify(self, days: Store, archive: Path) -> None:
        retention = AuditRetention(days, timedelta(days=4), archive)
        before = audit.read_head(days)
        assert retention.look(TODAY)
        moved, kept = self.moved(archive), audit.read_records(days, 0, 100)
        assert [record.seq for record in moved] == [1, 2, 3, 4, 5]
        assert [record.seq for record in kept] == [6, 7, 8, 9, 10, 11]
        assert (kept[-1].decoded().action, kept[-1].decoded().target) == ("audit.cut", "5")
        assert check(days, before) == []
        of_archive = ChainCheck()
        for record in moved:
            of_archive.take(record)
        assert of_archive.finish() == []
        assert check(days, of_archive.head) == [], "the last head of the archive is the one that the log names"
        while retention.look(TODAY):
            pass
        with days.read() as session:
            assert session.scalar(text("SELECT count(*) FROM audit")) == 6, "their space is free"
        assert stat.S_IMODE(next(archive.iterdir()).stat().st_mode) == 0o600
        assert not retention.look(TODAY), "once a day is enough"
        later = TODAY + timedelta(days=3)
        assert retention.look(later)
        assert [record.seq for record in self.moved(archive)] == [1, 2, 3, 4, 5, 6, 7, 8]
        assert check(days, before) == []

    def test_the_database_lets_nothing_else_go(self, days: Store, archive: Path) -> None:
        assert AuditRetention(days, timedelta(days=4), archive).look(TODAY)
        for statement in ("DELETE FROM audit WHERE seq = 6", "DELETE FROM audit", "DELETE FROM audit_cut"):
            with pytest.raises(DBAPIError, match="append only"), days.write() as session:
                session.execute(text(statement))
        assert check(days) == []

    @pytest.mark.parametrize(
        "statement",
        [
            "DELETE FROM audit WHERE seq = 6",
            "UPDATE audit SET entry = replace(entry, '\"ada\"', '\"eve\"') WHERE seq = 6",
            "UPDATE audit SET entry = replace(entry, 'sha256 ', 'sha256 0') WHERE seq = 11",
            "UPDATE audit SET entry = replace(entry, '\"5\"', '\"6\"') WHERE seq = 11",
            "DELETE FROM audit WHERE seq = 11",
        ],
    )
    def test_a_beginning_that_was_tampered_with_is_found(self, days: Store, archive: Path, statement: str) -> None:
        assert AuditRetention(days, timedelta(days=4), archive).look(TODAY)
        assert check(days) == []
        as_database_administrator(days, statement)
        assert check(days) != []

    def test_a_head_of_what_was_removed_is_compared(self, days: Store, archive: Path) -> None:
        assert AuditRetention(days, timedelta(days=4), archive).look(TODAY)
        last = self.moved(archive)[-1]
        assert check(days, ChainHead(seq=5, hash=last.hash)) == []
        assert check(days, ChainHead(seq=5, hash="x")) != []
        assert check(days, ChainHead(seq=3, hash="x")) == [], "that one is to be compared with the archive"

    def test_a_log_that_was_tampered_with_is_not_cut(self, days: Store, archive: Path) -> None:
        as_database_administrator(days, "UPDATE audit SET hash = 'x' WHERE seq = 2")
        assert not AuditRetention(days, timedelta(days=4), archive).look(TODAY)
        assert not archive.exists()
        assert audit.read_head(days).seq == 10

    def test_without_an_archive_nothing_is_removed(self, days: Store, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(OSError, match="file"):
            AuditRetention(days, timedelta(days=4), tmp_path / "file" / "x").look(TODAY)
        assert audit.read_head(days).seq == 10
        with pytest.raises(ValueError, match="audit_archive"):
            SchedulerSettings(audit_keep_days=30)


def _runner() -> Callable[..., Any]:
    import asyncio

    async def run(*arguments: str) -> Any:
        return await asyncio.to_thread(CliRunner().invoke, command_line, list(arguments))

    return run


def test_the_cost_of_an_entry_is_small(sqlite_store: Store) -> None:
    """Entries of requests that only read cost the caller almost nothing, and are written many at once."""
    log = AuditLog(sqlite_store)
    began = time.thread_time()
    for number in range(2000):
        log.record(entry(number), wait=False)
    took_s = time.thread_time() - began
    log.close()
    assert audit.read_head(sqlite_store).seq == 2000
    assert took_s / 2000 < 0.001, f"{took_s / 2000 * 1e6:.0f} µs"


async def test_every_decision_is_in_the_log(sqlite_store: Store) -> None:
    """Who asked, as whom, from where, for what, and what was decided, also for what was refused."""
    Cluster(sqlite_store).host("a")
    for name, roles in PEOPLE.items():
        sign_in(sqlite_store, TOKENS[name], name, roles)
    async with served(create_app(Settings(), sqlite_store)) as url, httpx.AsyncClient(base_url=url) as http:

        async def ask(method: str, path: str, who: str | None, **headers: str) -> int:
            token = {} if who is None else bearer(TOKENS[who])
            given = {"Content-Type": "application/json", **token, **headers}
            return (await http.request(method, path, headers=given)).status_code

        assert await ask("POST", "/v1/hosts/a/drain", "olga") == 200
        assert audit.read_records(sqlite_store, 0, 10)[-1].decoded().action == "POST /v1/hosts/{name}/drain"
        assert await ask("POST", "/v1/hosts/a/online", "olga", **{"X-GPU-Platform-User": "ada"}) == 200
        assert await ask("POST", "/v1/hosts/a/offline", "ada") == 403
        assert await ask("POST", "/v1/hosts/a/offline", None) == 401
        assert await ask("GET", "/v1/hosts", "ada") == 200
        assert await ask("GET", "/v1/audit", "ada") == 403
        assert await ask("GET", "/v1/audit", "olga") == 200
    found = [record.decoded() for record in audit.read_records(sqlite_store, 0, 100)]
    assert {one.peer for one in found} == {"127.0.0.1"}
    assert [(one.action.split(" ")[0], one.target, one.actor, one.acting_as, one.verdict) for one in found] == [
        ("POST", "/v1/hosts/a/drain", "olga", None, "allowed"),
        ("POST", "/v1/hosts/a/online", "olga", "ada", "allowed"),
        ("POST", "/v1/hosts/a/offline", "ada", None, "forbidden"),
        ("POST", "/v1/hosts/a/offline", "anonymous", None, "not_signed_in"),
        ("GET", "/v1/hosts", "ada", None, "allowed"),
        ("GET", "/v1/audit", "ada", None, "forbidden"),
        ("GET", "/v1/audit", "olga", None, "allowed"),
    ]
    assert check(sqlite_store) == []


async def test_a_change_that_cannot_be_audited_is_refused(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    Cluster(sqlite_store).host("a")
    sign_in(sqlite_store, TOKENS["olga"], "olga", PEOPLE["olga"])

    def broken(*_: object) -> ChainHead:
        raise OSError("no space left on device")

    monkeypatch.setattr(audit, "append", broken)
    headers = bearer(TOKENS["olga"]) | {"Content-Type": "application/json"}
    async with served(create_app(Settings(), sqlite_store)) as url, httpx.AsyncClient(base_url=url) as http:
        refused = await http.post("/v1/hosts/a/drain", headers=headers)
        assert (refused.status_code, "audit log" in refused.json()["detail"]) == (503, True)
        assert (await http.get("/v1/hosts/a", headers=headers)).json()["state"] == "READY"


async def test_what_a_handler_refuses_is_in_the_log(sqlite_store: Store) -> None:
    """The gate knows paths. What depends on the body or the object is decided later, and recorded, too."""
    for name, roles in PEOPLE.items():
        sign_in(sqlite_store, TOKENS[name], name, roles)
    olgas = tokens.find_token(sqlite_store, TOKENS["olga"])
    assert olgas is not None
    job = {"command": ["true"]}
    points = {"resume_from": "j-0000000000000zz"}
    jobs.submit_job(
        sqlite_store,
        points["resume_from"],
        JobSpec(command=["true"], namespace="team-b"),
        actor="b",
        now=NOW,
        idempotency_key=None,
    )
    requests: list[tuple[str, str, dict[str, Any], int, str]] = [
        ("POST", "/v1/jobs", {**job, "namespace": "team-b"}, 403, "forbidden"),
        ("POST", "/v1/jobs:dry-run", {**job, "namespace": "team-b"}, 403, "forbidden"),
        ("POST", "/v1/jobs", {**job, "user": "olga"}, 403, "forbidden"),
        ("POST", "/v1/jobs", {**job, "priority": 1000}, 403, "forbidden"),
        ("POST", "/v1/jobs", {**job, "checkpoint": points}, 422, "unseen"),
        ("POST", "/v1/jobs", {**job, "after": [{"job_id": points["resume_from"]}]}, 404, "unseen"),
        ("POST", "/v1/tokens", {"roles": {"*": "admin"}}, 403, "forbidden"),
        ("DELETE", f"/v1/tokens/{olgas.id}", {}, 404, "unseen"),
    ]
    async with served(create_app(Settings(), sqlite_store)) as url, httpx.AsyncClient(base_url=url) as http:
        for method, path, body, status, _ in requests:
            answer = await http.request(method, path, json=body, headers=bearer(TOKENS["ada"]))
            assert answer.status_code == status, answer.text
        unknown = {**job, "namespace": "nowhere"}
        assert (await http.post("/v1/jobs", json=unknown, headers=bearer(TOKENS["olga"]))).status_code == 422
        renewal = {"request": "-----BEGIN CERTIFICATE REQUEST-----"}
        assert (await http.post("/v1/identity/renew", json=renewal)).status_code == 401
        assert (await http.get("/v1/jobs", headers={"Authorization": "Digest x"})).status_code == 401
    found = [record.decoded() for record in audit.read_records(sqlite_store, 0, 100)]
    refused = [(one.actor, one.target, one.verdict, one.peer) for one in found if one.verdict != "allowed"]
    assert refused == [
        *(("ada", path, verdict, "127.0.0.1") for _, path, _, _, verdict in requests),
        ("olga", "/v1/jobs", "forbidden", "127.0.0.1"),
        ("anonymous", "/v1/identity/renew", "not_signed_in", "127.0.0.1"),
        ("anonymous", "/v1/jobs", "not_signed_in", "127.0.0.1"),
    ]
    assert all(one.reason and one.request_id for one in found if one.verdict != "allowed")

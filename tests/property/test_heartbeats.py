"""Heartbeats leave out a host's facts. Whatever is lost, late or doubled, and whichever database answers: the control
plane ends with the host's true inventory, and no lease is renewed under a term that is over."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Row, select

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import FullReportNeeded, PlatformError
from gpu_platform.domain.hosts.gpu import HostInventory
from gpu_platform.domain.hosts.lease import Heartbeat, HostReport, LeaseAnswer, Member, ReportedFacts, facts_hash
from gpu_platform.domain.states import HostState
from gpu_platform.store import Store, models
from gpu_platform.store.hosts import heartbeats, hosts, reports
from gpu_platform.store.leadership import leader, leases
from tests.support.examples import few
from tests.support.store_cluster import NOW, TTL_S, Cluster, inventory, uuid_of

OTHER = "b"
"""A host that stays well. Its heartbeats are in every batch."""


class Host:
    """A host as its node worker behaves, without the network and the clock."""

    def __init__(self, name: str, gpus: int = 1) -> None:
        self.name, self.gpus, self.session = name, gpus, 1
        self.facts = ReportedFacts()
        self.seq = self.round = self.term = self.version = 0
        self.members: dict[str, Member] = {}

    def report(self) -> HostReport:
        self.seq += 1
        whole = HostReport(
            name=self.name,
            session=f"s{self.session}",
            boot_id="boot",
            address="127.0.0.1",
            url=f"http://127.0.0.1:{self.session}",
            inventory=inventory(self.name, self.gpus),
            seq=self.seq,
            round=self.round,
            members_version=self.version,
        )
        return whole.model_copy(update={"facts": facts_hash(whole)})

    def restart(self) -> None:
        """The node worker forgets what it knew. ``seq`` goes on: it is the time since boot."""
        self.session += 1
        self.facts, self.round, self.version, self.members = ReportedFacts(), 0, 0, {}

    def answered(self, answer: LeaseAnswer) -> None:
        self.round, self.term, self.version = answer.round, answer.term, answer.members_version
        if answer.members is not None:
            self.members = {one.name: one for one in answer.members}
        elif (change := answer.members_change) is not None:
            self.members = {name: one for name, one in self.members.items() if name not in change.left}
            self.members |= {one.name: one for one in change.joined}


def row_of(store: Store, name: str) -> Row[Any]:
    with store.read() as session:
        return session.execute(select(models.host).where(models.host.c.name == name)).one()


def reported(row: Row[Any]) -> HostReport:
    """The facts of a host in the database, as a report."""
    columns = ("name", "session", "boot_id", "address", "url", "leaf", "spine", "checkpoint_root")
    known = HostInventory.model_validate_json(row.inventory)
    return HostReport(inventory=known, **{name: getattr(row, name) for name in columns})


class World:
    """A host, another one, and two databases: the one in use may be replaced by an older copy, or by a new one."""

    def __init__(self, directory: Path, template: Path) -> None:
        self._directory, self._template = directory, template
        self.store: Store
        self.late: list[Heartbeat] = []
        self.host, self.other = Host("a"), Host(OTHER)
        self.now = NOW
        self.use(template)

    def use(self, file: Path) -> None:
        self._count = getattr(self, "_count", 0) + 1
        path = self._directory / f"{self._count}.db"
        shutil.copy(file, path)
        self.store, self.path = Store(f"sqlite:///{path}"), path
        leader.begin_epoch(self.store, "test", self.now)

    def take(self, sent: Heartbeat) -> LeaseAnswer:
        """What a service does with it. A heartbeat comes in a batch with that of another host."""
        self.now += timedelta(milliseconds=300)
        if isinstance(sent, HostReport):
            answer = reports.report_host(self.store, sent, ttl_s=TTL_S, now=self.now)
        else:
            beside = self.other.report().heartbeat()
            quiet, _ = heartbeats.renew_quiet(self.store, [sent, beside], ttl_s=TTL_S, now=self.now)
            answer = quiet or reports.renew_lease(self.store, sent, ttl_s=TTL_S, now=self.now)
        row = row_of(self.store, sent.name)
        if answer.renewed:
            assert row.state != HostState.LOST
            assert answer.term == row.term
        if not isinstance(sent, HostReport):  # the facts that it names are the facts that are known
            assert facts_hash(reported(row)) == sent.facts
        return answer

    def step(self, what: str, value: int) -> None:
        """One thing that happens to the host or the network."""
        match what:
            case "exchange":
                self.exchange()
            case "lose request" | "lose answer":
                self.exchange(loses=what.removeprefix("lose "))
            case "late" if self.late:
                with suppress(PlatformError):
                    self.take(self.late.pop(value % len(self.late)))
            case "restart":
                self.host.restart()
            case "gpus":  # GPUs were added or removed; the node worker starts anew for that
                self.host.gpus = value + 1
                self.host.restart()
            case "other":
                reports.report_host(self.store, self.other.report(), ttl_s=TTL_S, now=self.now)
            case "lost" if any(row.name == "a" for row in hosts.read_hosts(self.store)):
                hosts.set_host_state(self.store, "a", HostState.LOST, reason=None, actor="op", now=self.now)
            case "round":
                leases.begin_round(self.store, self.now)

    def exchange(self, loses: str = "") -> None:
        """One try to report, as ``LeaseKeeper`` does it."""
        whole = self.host.report()
        full = self.host.facts.must_be_full(whole)
        sent = whole if full else whole.heartbeat()
        if loses == "request":
            self.late.append(sent)
            return
        try:
            answer = self.take(sent)
        except FullReportNeeded:
            self.host.facts = self.host.facts.refused()
            self.exchange(loses)
            return
        except PlatformError:
            return
        if loses == "answer":
            return
        self.host.answered(answer)
        if full:
            self.host.facts = self.host.facts.answered(whole)
        living = [row.name for row in hosts.read_hosts(self.store) if row.state is not HostState.LOST]
        assert sorted(self.host.members) == living


NAMES = ("exchange", "lose request", "lose answer", "late", "restart", "gpus", "other", "lost", "round", "new database")
STEPS = st.lists(st.tuples(st.sampled_from([*NAMES, "older database"]), st.integers(0, 5)), max_size=25)


@contextmanager
def world(template: Path) -> Iterator[World]:
    with tempfile.TemporaryDirectory() as directory:
        made = World(Path(directory), template)
        try:
            yield made
        finally:
            made.store.close()


@settings(max_examples=few(30), deadline=None)
@given(steps=STEPS)
def test_any_order_and_loss_of_reports_leaves_the_true_inventory(
    sqlite_template: Path, steps: list[tuple[str, int]]
) -> None:
    with world(sqlite_template) as made:
        copies = [sqlite_template]
        for what, value in steps:
            if what in ("new database", "older database"):
                made.store.close()
                copies.append(_copy(made))
                made.use(copies[value % len(copies)] if what == "older database" else sqlite_template)
            else:
                made.step(what, value)
        for _ in range(3):  # the first may bring back an old round, or facts that are not known
            made.exchange()
        row = row_of(made.store, "a")
        assert reported(row).inventory == inventory("a", made.host.gpus)
        assert facts_hash(reported(row)) == made.host.report().facts
        assert made.host.term == row.term


def _copy(made: World) -> Path:
    """The database as it is now, for a later restore. Its store is closed, so all of it is in one file."""
    path = made.path.with_suffix(".copy")
    shutil.copy(made.path, path)
    return path


@pytest.mark.long
@settings(max_examples=few(25), deadline=None)
@given(
    busy=st.sets(st.sampled_from("abcdef")),
    lost=st.sets(st.sampled_from("abcdef")),
    changed=st.sets(st.sampled_from("abcdef")),
    hot=st.sets(st.sampled_from("abcdef")),
    stale=st.sets(st.sampled_from("abcdef")),
)
def test_a_batch_of_heartbeats_does_what_each_alone_would_do(
    sqlite_template: Path, busy: set[str], lost: set[str], changed: set[str], hot: set[str], stale: set[str]
) -> None:
    answers: list[list[LeaseAnswer | str]] = []
    for batched in (True, False):
        with world(sqlite_template) as made:
            cluster, now = Cluster(made.store), NOW + timedelta(seconds=1)
            beats = []
            for name in "abcdef":
                host = Host(name, gpus=2)
                whole = host.report()
                reports.report_host(made.store, whole, ttl_s=TTL_S, now=NOW)
                if name in busy:
                    cluster.running(f"j-{name}", {name: [0]})
                attempts = [AttemptKey(job_id=f"j-{name}", attempt=1)] if name in busy | stale else []
                known = whole.model_copy(update={"facts": "0" * 16}) if name in changed else whole
                fields = {"attempts": attempts, "seq": 9, "round": leader.current_round(made.store)}
                fields |= {"degraded": {uuid_of(name, 1): "hot"} if name in hot else {}}
                beats.append(known.heartbeat().model_copy(update=fields))
            for name in sorted(lost):
                hosts.set_host_state(made.store, name, HostState.LOST, reason=None, actor="op", now=NOW)
            quiet: list[LeaseAnswer | None] = [None] * len(beats)
            if batched:
                quiet = heartbeats.renew_quiet(made.store, beats, ttl_s=TTL_S, now=now)
            answers.append(
                [_same(answer or _alone(made.store, b, now)) for b, answer in zip(beats, quiet, strict=True)]
            )
            rows = {name: row_of(made.store, name) for name in "abcdef"}
            states = {name: (row.lease_until, row.state, row.report_seq, row.degraded) for name, row in rows.items()}
        answers[-1].append(repr(states))
    assert answers[0] == answers[1]


def _alone(store: Store, beat: Heartbeat, now: datetime) -> LeaseAnswer | str:
    try:
        return reports.renew_lease(store, beat, ttl_s=TTL_S, now=now)
    except PlatformError as error:
        return error.code


def _same(answer: LeaseAnswer | str) -> LeaseAnswer | str:
    """Without the list of members: its number is a time, and one of the two ways may send only what changed."""
    if isinstance(answer, str):
        return answer
    return answer.model_copy(update={"members_version": 0, "members": None, "members_change": None})

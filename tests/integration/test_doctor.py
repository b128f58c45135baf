"""``gpu-platform doctor`` finds what is wrong with a deployment, and says what to do."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import text

from gpu_platform import clock_difference
from gpu_platform.client.wire import Clock
from gpu_platform.clock_difference import ClockDifference
from gpu_platform.domain.leader_silence import LeaderLoop
from gpu_platform.identity import names
from gpu_platform.identity.ca import CertificateAuthority
from gpu_platform.identity.certificates import CertificateFiles, TlsContexts, make_key_and_request
from gpu_platform.settings import TlsSettings
from gpu_platform.store import Store
from gpu_platform.store.leadership import leader, leases, signs
from gpu_platform.store.poison import SET_ASIDE_AFTER, WorkflowStep, note_deaths
from service.grpc.server import GrpcServer
from tests.support.api_server import application, served
from tests.support.command_line import run
from tests.support.postgres import Databases
from tests.support.store_cluster import Cluster
from tests.support.temporal_server import client_of_new_namespace
from workers.doctor import clocks as clock_checks
from workers.doctor import database
from workers.doctor import host as host_checks
from workers.doctor.__main__ import checks, main
from workers.doctor.results import Outcome, Part, Result

OK, WARNING, FAILED, NOT_APPLICABLE = Outcome.OK, Outcome.WARNING, Outcome.FAILED, Outcome.NOT_APPLICABLE


class Found(dict[str, Result]):
    """The results by ``part: name``."""

    def outcome(self, check: str) -> Outcome:
        return self[check].outcome

    def failures(self) -> set[str]:
        return {check for check, result in self.items() if result.outcome is FAILED}


async def doctor(*roles: str) -> Found:
    results = await asyncio.to_thread(lambda: list(checks(roles)))
    assert all(result.advice for result in results if result.outcome in (WARNING, FAILED)), results
    return Found({f"{result.part}: {result.name}": result for result in results})


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in list(os.environ):
        if name.startswith("GPU_PLATFORM_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPU_PLATFORM_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("GPU_PLATFORM_API_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("GPU_PLATFORM_TEMPORAL__ADDRESS", "127.0.0.1:1")
    return monkeypatch


@pytest.fixture
async def deployed(
    settings: pytest.MonkeyPatch, sqlite_store: Store, temporal_address: str
) -> AsyncIterator[pytest.MonkeyPatch]:
    """A service, its database and Temporal, all well, and somebody leads."""
    epoch = leader.begin_epoch(sqlite_store, "here/1/1", datetime.now(UTC))

    def come_round() -> None:
        leases.begin_round(sqlite_store, datetime.now(UTC))
        for loop in LeaderLoop:
            signs.note_sign(sqlite_store, loop, epoch, datetime.now(UTC))

    async def lead() -> None:
        while True:
            await asyncio.sleep(1.0)
            await asyncio.to_thread(come_round)

    come_round()
    leading = asyncio.create_task(lead())
    namespace = (await client_of_new_namespace(temporal_address)).namespace
    async with served(application(sqlite_store, temporal_address, namespace=namespace)) as url:
        settings.setenv("GPU_PLATFORM_API_URL", url)
        settings.setenv("GPU_PLATFORM_DATABASE_URL", str(sqlite_store.url))
        settings.setenv("GPU_PLATFORM_TEMPORAL__ADDRESS", temporal_address)
        settings.setenv("GPU_PLATFORM_TEMPORAL__NAMESPACE", namespace)
        yield settings
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)


async def test_grpc_is_asked_where_it_is_served(
    settings: pytest.MonkeyPatch, sqlite_store: Store, temporal_address: str
) -> None:
    namespace = (await client_of_new_namespace(temporal_address)).namespace
    app = application(sqlite_store, temporal_address, namespace=namespace)
    server = GrpcServer(app, "127.0.0.1", 0)
    assert "service: gRPC" not in await doctor()
    async with app.router.lifespan_context(app):
        await server.begin()
        settings.setenv("GPU_PLATFORM_SERVICE__GRPC_PORT", str(server.port))
        well = await doctor()
        await server.end()
    assert well.outcome("service: gRPC") is OK, well["service: gRPC"].found
    assert "UNAVAILABLE" in (await doctor())["service: gRPC"].found


async def test_a_deployment_that_is_well(deployed: pytest.MonkeyPatch) -> None:
    found = await doctor()
    assert found.failures() == set()
    assert found["settings: role of this machine"].found == "control-plane"
    well = ["service: reachable", "service: ready", "service: release", "service: clock", "database: reachable"]
    well += ["database: schema", "database: leader", "temporal: reachable", "temporal: version", "temporal: namespace"]
    well += ["temporal: retention", "temporal: search attributes"]
    assert {check: found.outcome(check) for check in well} == dict.fromkeys(well, OK)
    assert found["database: version"].found.startswith("SQLite 3.")
    assert found["service: hosts"].found == "none has registered"
    assert found.outcome("host: all") is found.outcome("certificates: all") is NOT_APPLICABLE


async def test_what_killed_control_workers_is_named(deployed: pytest.MonkeyPatch, sqlite_store: Store) -> None:
    check = "database: steps set aside"
    assert (await doctor()).outcome(check) is OK
    for number in range(SET_ASIDE_AFTER):
        note_deaths(sqlite_store, [WorkflowStep("j-1jrp3k2h0x4t7za", "place")], datetime.now(UTC))
        assert (await doctor()).outcome(check) is (WARNING if number + 1 == SET_ASIDE_AFTER else OK)
    said = (await doctor())[check]
    assert "j-1jrp3k2h0x4t7za place killed 3 control workers, and is tried again at" in said.found
    assert said.advice == "docs/how-to/runbooks.md#stepssetaside"


async def test_a_host_whose_node_worker_does_not_answer(deployed: pytest.MonkeyPatch, sqlite_store: Store) -> None:
    Cluster(sqlite_store).host("silent", gpus=1)
    found = await doctor("client")
    assert found.failures() == {"service: node workers"}
    assert "silent" in found["service: node workers"].found
    assert "node.port" in found["service: node workers"].advice
    assert found.outcome("database: all") is found.outcome("temporal: all") is NOT_APPLICABLE


async def test_nothing_answers(settings: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = await doctor("control-plane")
    assert found.failures() == {"service: reachable", "database: reachable", "temporal: reachable"}
    assert "start the service" in found["service: reachable"].advice
    assert not (tmp_path / "state" / "platform.db").exists(), "to look makes nothing"


async def test_a_namespace_that_is_missing_and_a_schema_that_is_newer(
    deployed: pytest.MonkeyPatch, sqlite_store: Store
) -> None:
    with sqlite_store.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    deployed.setenv("GPU_PLATFORM_TEMPORAL__NAMESPACE", "nowhere")
    found = await doctor()
    assert found.failures() == {"temporal: namespace", "database: schema"}
    assert "temporal operator namespace create" in found["temporal: namespace"].advice
    assert found["database: schema"].found.startswith("9999, of a newer release")
    with sqlite_store.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    deployed.setattr(database, "newest_revision", lambda: "0002")  # no release has had another schema yet
    assert (await doctor()).outcome("database: schema") is WARNING


async def test_wrong_settings_end_it_at_once(settings: pytest.MonkeyPatch) -> None:
    settings.setenv("GPU_PLATFORM_NODE__SCRUB", "sometimes")
    found = await doctor()
    assert set(found) == {"settings: values"}
    assert "node.scrub is 'sometimes' (variable GPU_PLATFORM_NODE__SCRUB)" in found["settings: values"].found


@pytest.mark.parametrize(
    ("ahead_s", "uncertain_s", "outcome"),
    [(0.0, 0.1, OK), (1.5, 0.6, OK), (10.0, 0.5, WARNING), (-4000.0, 0.1, FAILED)],
)
def test_clocks_that_differ(ahead_s: float, uncertain_s: float, outcome: Outcome) -> None:
    result = clock_checks.judge(Part("service"), ClockDifference(ahead_s, uncertain_s), "the service's")
    assert result.outcome is outcome
    if outcome is WARNING:
        assert result.found == "this machine's clock is 10 s behind the service's (± 0.5 s)"
        assert "chrony" in result.advice


def test_a_time_is_compared_with_the_middle_of_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    at = iter([10.0, 14.0])  # a question of 4 s
    monkeypatch.setattr(clock_difference, "time", SimpleNamespace(time=lambda: 1000.0, monotonic=lambda: next(at)))
    assert clock_difference.ClockQuestion().answered(1007.0) == ClockDifference(5.0, 2.0)


@pytest.mark.long
async def test_a_clock_that_is_behind_is_found_everywhere(
    deployed: pytest.MonkeyPatch, postgres_databases: Databases, postgres_template: str
) -> None:
    """Whoever compares is ten seconds behind: this machine with service and database, the service with the database."""
    database = postgres_databases.create(postgres_template)
    deployed.setenv("GPU_PLATFORM_DATABASE_URL", postgres_databases.url(database))
    behind = SimpleNamespace(time=lambda: time.time() - 10.0, monotonic=time.monotonic)
    deployed.setattr(clock_difference, "time", behind)
    found = await doctor()
    for check, whose in (("service", "the service's"), ("database", "the database's"), ("temporal", "Temporal's")):
        clock = found[f"{check}: clock"]
        assert clock.outcome is WARNING
        assert clock.found.startswith("this machine's clock is ")
        assert float(clock.found.split()[4]) == pytest.approx(10.0, abs=1.0)
        assert f" s behind {whose} (± " in clock.found
    deployed.setattr(clock_difference, "time", time)
    found = await doctor()
    assert {found.outcome(f"{part}: clock") for part in ("service", "database", "temporal")} == {OK}
    postgres_databases.drop(database)


def test_clocks_of_hosts_and_of_the_database() -> None:
    part = Part("service")
    database = Clock(kind="database", ahead_s=-2.5, uncertain_s=0.001)
    clocks = [Clock(kind="host", name=f"n{index}", ahead_s=0.01 * index, uncertain_s=0.001) for index in range(3)]
    silent = Clock(kind="host", name="n9", problem="host n9 does not answer")
    of_database, of_hosts = clock_checks.judge_others(part, [database, *clocks, silent])
    assert (of_database.outcome, of_hosts.outcome) == (WARNING, OK)
    assert of_database.found == "the database's clock is 2.5 s (± 0.001 s) behind the service's"
    assert of_hosts.found == "3 of 4 compared; the farthest, n2, is 0.02 s (± 0.001 s) ahead of the service's"
    late = Clock(kind="host", name="late", ahead_s=-90.0, uncertain_s=0.2)
    [result] = clock_checks.judge_others(part, [*clocks, late])
    assert (result.outcome, "late is 90 s (± 0.2 s) behind it" in result.found) == (FAILED, True)
    assert [one.outcome for one in clock_checks.judge_others(part, [silent])] == [NOT_APPLICABLE]
    assert clock_checks.judge_others(part, []) == []


def give_certificate(authority: CertificateAuthority, files: CertificateFiles, path: str, age: timedelta) -> None:
    key, request = make_key_and_request()
    files.write(key, authority.sign(request, path, now=datetime.now(UTC) - age), authority.bundle())


async def test_certificates(settings: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings.setenv("GPU_PLATFORM_TLS__ENABLED", "true")
    settings.setenv("GPU_PLATFORM_NODE__NAME", "dgx-a")
    path = names.node("dgx-a")
    files = CertificateFiles.of(TlsSettings(), tmp_path / "state", path)
    authority = CertificateAuthority.init(tmp_path / "ca")
    check = f"certificates: {path}"
    found = await doctor("host")
    assert found.outcome(check) is FAILED
    assert "gpu-platform hosts enroll dgx-a" in found[check].advice

    for age, outcome, said in (
        (timedelta(hours=1), OK, "valid until"),
        (timedelta(hours=22), WARNING, "valid until"),
        (timedelta(hours=25), FAILED, "has expired"),
    ):
        give_certificate(authority, files, path, age)
        found = await doctor("host")
        assert (found.outcome(check), said in found[check].found) == (outcome, True), found[check]
    assert found.outcome("certificates: authorities") is OK

    give_certificate(authority, files, names.node("dgx-b"), timedelta())
    assert "is of spiffe://gpu-platform.internal/node/dgx-b, not of" in (await doctor("host"))[check].found
    give_certificate(authority, files, path, timedelta())
    other = CertificateAuthority.init(tmp_path / "other")
    shutil.copyfile(files.trusted, tmp_path / "kept.pem")
    files.trusted.write_bytes(other.bundle())
    assert "signed by none of the authorities" in (await doctor("host"))[check].found


async def test_a_service_whose_certificate_is_not_believed(settings: pytest.MonkeyPatch, tmp_path: Path) -> None:
    authority, other = (CertificateAuthority.init(tmp_path / name) for name in ("ca", "other"))
    files = CertificateFiles.of(TlsSettings(), tmp_path / "served", names.SERVICE)
    trusted = CertificateFiles.of(TlsSettings(), tmp_path / "state", names.SERVICE).trusted
    trusted.parent.mkdir(parents=True)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 15\r\n\r\n{"status":"ok"}')
        await writer.drain()
        writer.close()

    async def seen(authorities: bytes, age: timedelta, addresses: list[str]) -> Found:
        key, request = make_key_and_request()
        certificate = authority.sign(request, names.SERVICE, addresses=addresses, now=datetime.now(UTC) - age)
        files.write(key, certificate, authority.bundle())
        trusted.write_bytes(authorities)
        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=TlsContexts(files).server())
        settings.setenv("GPU_PLATFORM_API_URL", f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with server:
            return await doctor("client")

    well = await seen(authority.bundle(), timedelta(hours=1), ["127.0.0.1"])
    assert well.outcome("service: reachable") is well.outcome("service: certificate") is OK
    assert "127.0.0.1" in well["service: certificate"].found
    late = await seen(authority.bundle(), timedelta(hours=21), ["127.0.0.1"])
    assert late.outcome("service: certificate") is WARNING
    expired = (await seen(authority.bundle(), timedelta(hours=25), ["127.0.0.1"]))["service: reachable"]
    assert (expired.outcome, "has expired: restart the service" in expired.advice) == (FAILED, True)
    strange = (await seen(other.bundle(), timedelta(), ["127.0.0.1"]))["service: reachable"]
    assert (strange.outcome, "GPU_PLATFORM_CA_FILE" in strange.advice) == (FAILED, True)
    elsewhere = (await seen(authority.bundle(), timedelta(), ["10.0.0.1"]))["service: reachable"]
    assert (elsewhere.outcome, "tls.names" in elsewhere.advice) == (FAILED, True)


async def test_a_simulated_host(settings: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings.setenv("GPU_PLATFORM_NODE__SIMULATE", "dgx-h100")
    found = await doctor()
    assert found["settings: role of this machine"].found == "host"
    assert found["host: NVML"].found.startswith("8 simulated GPUs")
    assert found.outcome("host: checkpoint root") is FAILED
    (tmp_path / "state" / "checkpoints").mkdir(parents=True)
    root = (await doctor())["host: checkpoint root"]
    assert root.outcome is WARNING
    assert "a file system of this machine alone" in root.found


async def test_a_host_that_must_isolate_and_cannot(settings: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings.setenv("GPU_PLATFORM_NODE__SIMULATE", "dgx-h100")
    settings.setenv("GPU_PLATFORM_NODE__ISOLATION", "required")
    settings.setattr(host_checks, "find_tool", lambda name: None if name == "bwrap" else f"/usr/bin/{name}")
    found = await doctor("host")
    assert found.outcome("host: isolation tools") is FAILED
    assert found["host: isolation tools"].advice == "apt-get install bubblewrap"
    assert found.outcome("host: cgroups") is OK


def test_file_systems_are_known_by_their_mounts(tmp_path: Path) -> None:
    device = os.stat(tmp_path).st_dev
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 1 0:99 / /elsewhere rw - ext4 /dev/sda1 rw\n"
        f"36 35 {os.major(device)}:{os.minor(device)} / {tmp_path} rw,noatime master:1 - nfs4 server:/scratch rw\n"
    )
    assert host_checks.file_system_of(tmp_path, mounts) == "nfs4"
    assert "nfs4".startswith(host_checks.SHARED)


async def test_another_program_at_the_address_of_the_service(settings: pytest.MonkeyPatch) -> None:
    async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(hello, "127.0.0.1", 0) as server:
        settings.setenv("GPU_PLATFORM_API_URL", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        found = await doctor("client")
    assert found.failures() == {"service: ready"}
    assert "another program answers at this address" in found["service: ready"].advice
    assert found.outcome("service: hosts") is found.outcome("service: clock") is NOT_APPLICABLE


async def test_the_command_prints_and_returns_what_it_found(deployed: pytest.MonkeyPatch) -> None:
    ran = await run("doctor", "--json", url=os.environ["GPU_PLATFORM_API_URL"])
    assert (ran.code, json.loads(ran.out)["ok"]) == (0, True), ran.out + ran.err
    assert {"part": "temporal", "name": "namespace"}.items() <= json.loads(ran.out)["checks"][-6].items()


def test_what_failed_is_printed_with_what_to_do(
    settings: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--role", "client"]) == 1
    shown = capsys.readouterr().out
    assert "FAILED          service: reachable" in shown
    assert "\n                -> start the service, open its port in the firewall, or set api_url" in shown
    assert shown.endswith(", 1 failed, 5 not applicable\n")
    with pytest.raises(SystemExit, match="2"):
        main(["--role", "king"])

"""A node worker's reports as a service gets them: one full report, then heartbeats of a few bytes."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import structlog
from fastapi import FastAPI
from sqlalchemy import text

from gpu_platform.domain.errors import InvalidRequest, Unavailable
from gpu_platform.domain.hosts import protocol
from gpu_platform.domain.hosts.lease import GpuTelemetry, HostReport, LeaseAnswer, facts_hash
from gpu_platform.node.system.lease_file import LeaseFile
from gpu_platform.settings import ClusterSettings, NodeSettings, Settings
from gpu_platform.store import Store
from gpu_platform.store.hosts import gpus, hosts
from tests.support.api_server import application, in_process, node_headers
from tests.support.store_cluster import inventory, uuid_of
from tests.support.waiting import eventually
from workers.node import lease_keeper
from workers.node.identity import NodeIdentity
from workers.node.lease_keeper import LeaseKeeper

FEW_BYTES = 200


class Wire(httpx.AsyncBaseTransport):
    """Passes requests to the application, and remembers them."""

    def __init__(self, app: FastAPI) -> None:
        self.app = httpx.ASGITransport(app, raise_app_exceptions=False)
        self.sent: list[tuple[str, int]] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        what = request.url.path.rpartition("/")[2]
        self.sent.append((what, len(request.content)))
        return await self.app.handle_async_request(request)

    def count(self, what: str) -> int:
        return sum(one == what for one, _ in self.sent)


class Identity(NodeIdentity):
    def __init__(self, wire: Wire, headers: dict[str, str]) -> None:
        super().__init__(Settings())
        self._wire, self._headers = wire, headers

    def client(self, timeout_s: float) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=self._wire, base_url="http://localhost")

    def headers(self) -> dict[str, str]:
        return self._headers


@asynccontextmanager
async def node_worker(
    store: Store, tmp_path: Path, cluster: str = "gpu-platform"
) -> AsyncIterator[tuple[Wire, list[HostReport]]]:
    """A lease keeper that reports to a service on this store. The list's only item is its report."""

    async def temporal(_: HostReport) -> LeaseAnswer:
        raise Unavailable("there is no Temporal here")

    async def end_ranks_without_lease() -> None:
        """No ranks run here."""

    worker = SimpleNamespace(
        end_ranks_without_lease=end_ranks_without_lease,
        host="a",
        attempts=list,
        checkpointing=SimpleNamespace(clock=SimpleNamespace(drain=lambda draining: None)),
    )
    app = application(store, "127.0.0.1:1", state_dir=tmp_path, cluster=ClusterSettings(name=cluster))
    wire, made = Wire(app), [report(1)]
    settings = Settings(api_url="http://localhost", node=NodeSettings(lease_interval_s=0.02))
    identity = Identity(wire, node_headers("a", tmp_path))
    path = tmp_path / "lease.json"
    keeper = LeaseKeeper(
        settings, cast(Any, worker), lambda: made[0], lambda _: None, temporal, LeaseFile(str(path)), identity
    )
    async with in_process(app):
        running = asyncio.create_task(keeper.run())
        try:
            yield wire, made
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def report(gpus: int) -> HostReport:
    telemetry = [GpuTelemetry(uuid=uuid_of("a", 0), temperature_c=40 + gpus)]
    known: dict[str, Any] = {"inventory": inventory("a", gpus), "telemetry": telemetry}
    whole = HostReport(name="a", session="s", address="127.0.0.1", url="http://127.0.0.1:1", **known)
    return whole.model_copy(update={"facts": facts_hash(whole)})


def _now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
def database(sqlite_template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(sqlite_template, tmp_path / "platform.db"))


async def test_facts_travel_once_and_again_when_they_change(database: Path, tmp_path: Path) -> None:
    store = Store(f"sqlite:///{database}")
    async with node_worker(store, tmp_path) as (wire, made):
        await eventually(lambda: wire.count("heartbeat") > 5, "heartbeats")
        assert wire.count("report") == 1
        assert max(size for what, size in wire.sent if what == "heartbeat") < FEW_BYTES
        made[0] = report(3)
        await eventually(lambda: hosts.get_host(store, "a", _now()).gpus_total == 3, "the other inventory")
        assert wire.count("report") == 2
    store.close()


@pytest.mark.parametrize("cluster", ["gpu-platform", "research"])
async def test_a_host_that_gives_its_cluster_another_name_says_so(database: Path, tmp_path: Path, cluster: str) -> None:
    store = Store(f"sqlite:///{database}")
    with structlog.testing.capture_logs() as lines:
        async with node_worker(store, tmp_path, cluster) as (wire, _):
            await eventually(lambda: wire.count("heartbeat") > 5, "heartbeats")
    found = [(line["ours"], line["of_service"]) for line in lines if line["event"] == "lease.other_cluster_name"]
    assert found == ([] if cluster == "gpu-platform" else [("gpu-platform", "research")]), "once, not at each heartbeat"
    store.close()


async def test_telemetry_is_reported_as_seldom_as_the_service_says(database: Path, tmp_path: Path) -> None:
    store = Store(f"sqlite:///{database}")
    async with node_worker(store, tmp_path) as (wire, made):
        await eventually(lambda: wire.count("heartbeat") > 5, "heartbeats")
        known = gpus.list_gpus(store)[0]
        assert known.temperature_c == 41
        made[0] = made[0].model_copy(update={"telemetry": [GpuTelemetry(uuid=uuid_of("a", 0), temperature_c=70)]})
        await eventually(lambda: gpus.list_gpus(store)[0].temperature_c == 70, "newer telemetry")
        with_telemetry = [size for what, size in wire.sent if what == "heartbeat" and size > FEW_BYTES]
        assert len(with_telemetry) <= 2
    store.close()


async def test_a_service_with_another_database_gets_everything(database: Path, tmp_path: Path) -> None:
    store = Store(f"sqlite:///{database}")
    async with node_worker(store, tmp_path) as (wire, _):
        await eventually(lambda: wire.count("heartbeat") > 1, "heartbeats")
        with store.write() as session:  # as if the database were restored from before this host came
            for table in ("allocation", "gpu", "host"):
                session.execute(text(f"DELETE FROM {table}"))
        await eventually(lambda: hosts.list_hosts(store, _now()), "a full report")
        assert hosts.get_host(store, "a", _now()).gpus_total == 1
        assert wire.count("report") == 2
    store.close()


async def test_a_heartbeat_of_another_host_is_refused(database: Path, tmp_path: Path) -> None:
    store = Store(f"sqlite:///{database}")
    async with in_process(application(store, "127.0.0.1:1", state_dir=tmp_path)) as http:
        ours = node_headers("a", tmp_path)
        full = report(1).model_dump(mode="json")
        assert (await http.post("/v1/hosts/a/report", json=full, headers=ours)).status_code == 200
        beat = {"name": "a", "facts": full["facts"], "seq": 1}
        assert (await http.post("/v1/hosts/a/heartbeat", json=beat)).status_code == 401
        assert (await http.post("/v1/hosts/b/heartbeat", json=beat | {"name": "b"}, headers=ours)).status_code == 403
        assert (await http.post("/v1/hosts/a/heartbeat", json=beat | {"name": "b"}, headers=ours)).status_code == 422
        assert (await http.post("/v1/hosts/a/heartbeat", json=beat, headers=ours)).status_code == 200
        unknown = await http.post("/v1/hosts/a/heartbeat", json=beat | {"facts": "0" * 16, "seq": 2}, headers=ours)
        assert (unknown.status_code, unknown.json()["code"]) == (409, "full_report_needed")
    store.close()


async def test_a_node_worker_two_releases_back_is_refused_with_what_to_do(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(f"sqlite:///{database}")
    async with in_process(application(store, "127.0.0.1:1", state_dir=tmp_path)) as http:
        ours = node_headers("a", tmp_path)
        full = report(1).model_dump(mode="json") | {"protocol": 4}
        beat = {"name": "a", "facts": full["facts"], "protocol": 4, "seq": 1}
        for release, status in ((4, 200), (5, 200), (6, 422)):
            monkeypatch.setattr(protocol, "PROTOCOL", release)
            for what, body in (("report", full), ("heartbeat", beat)):
                answer = await http.post(f"/v1/hosts/a/{what}", json=body, headers=ours)
                assert answer.status_code == status, answer.text
                assert status == 200 or "the node worker of a speaks version 4 of the protocol" in answer.text
                assert status == 200 or "install the release between them on the host first" in answer.text
                beat["seq"] += 1
    store.close()


async def test_a_control_plane_two_releases_back_gets_no_work_from_a_node_worker(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(f"sqlite:///{database}")
    async with node_worker(store, tmp_path) as (wire, _):
        await eventually(lambda: wire.count("heartbeat") > 1, "heartbeats")
        lease = LeaseFile(str(tmp_path / "lease.json"))
        monkeypatch.setattr(lease_keeper, "check_control_plane", too_old)
        before = len(wire.sent)
        await eventually(lambda: len(wire.sent) > before + 2, "reports whose answers are not taken")
        known, before = lease.read(), len(wire.sent)
        await eventually(lambda: len(wire.sent) > before + 2, "more reports")
        assert known is not None
        assert lease.read() == known, "its answers renew nothing"
    store.close()


def too_old(service: str, _: int) -> None:
    raise InvalidRequest(f"the service at {service} is too old")

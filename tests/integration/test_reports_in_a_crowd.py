"""Hosts renew their leases while other requests keep every thread of the service busy."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path

import pytest

from gpu_platform.domain.hosts.lease import HostReport
from gpu_platform.store import Store
from gpu_platform.store.hosts import hosts
from tests.support.api_server import application, in_process, node_headers
from tests.support.store_cluster import inventory

CROWD = 60
"""More than the service has threads for requests."""


async def test_a_report_is_answered_while_a_crowd_waits(
    sqlite_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(sqlite_template, tmp_path / "platform.db")
    store, over = Store(f"sqlite:///{tmp_path / 'platform.db'}"), threading.Event()

    def slow(*_: object, **__: object) -> list[object]:
        over.wait(30)
        return []

    monkeypatch.setattr(hosts, "list_hosts", slow)
    fields = {"session": "s1", "address": "127.0.0.1", "url": "http://127.0.0.1:1"}
    report = HostReport(name="a", inventory=inventory("a", 1), **fields).model_dump(mode="json")
    headers = node_headers("a", tmp_path)
    async with in_process(application(store, "127.0.0.1:1", state_dir=tmp_path)) as http:
        crowd = [asyncio.create_task(http.get("/v1/hosts")) for _ in range(CROWD)]
        try:
            await asyncio.sleep(0)
            answer = await asyncio.wait_for(http.post("/v1/hosts/a/report", json=report, headers=headers), 10)
            assert answer.status_code == 200
            assert not any(task.done() for task in crowd)
        finally:
            over.set()
            await asyncio.gather(*crowd)
    store.close()

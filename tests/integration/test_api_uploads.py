"""Code goes from a directory to the service by the client and by the command line, over a connection that breaks."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpu_platform.client import AsyncClient
from gpu_platform.client.archive import Archive, pack
from gpu_platform.client.calls import Call
from gpu_platform.domain.errors import StorageFull, Unavailable
from gpu_platform.settings import ServiceSettings
from gpu_platform.settings.service import UploadSettings
from gpu_platform.store import Store
from tests.support.api_server import ADMIN, application, served
from tests.support.command_line import run
from tests.support.store_cluster import Cluster

NOWHERE = "127.0.0.1:1"
LIMIT = 4 << 20


@pytest.fixture
async def url(sqlite_store: Store) -> AsyncIterator[str]:
    Cluster(sqlite_store).host("a", gpus=1)
    limits = ServiceSettings(uploads=UploadSettings(max_mib=4))
    async with served(application(sqlite_store, NOWHERE, service=limits)) as url:
        yield url


@pytest.fixture
def code(tmp_path: Path) -> Path:
    root = tmp_path / "code"
    root.mkdir()
    (root / "train.py").write_text("print(1)\n")
    (root / "table.bin").write_bytes(bytes(3 << 20))
    return root


@pytest.fixture
def archive(code: Path) -> Any:
    with pack(code, LIMIT) as packed:
        yield packed


async def test_after_a_broken_connection_it_goes_on_and_is_not_sent_twice(
    url: str, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    breaks_at = [2]
    send = AsyncClient.send

    async def counted(client: AsyncClient, call: Call, model: Any) -> Any:
        if call.method == "PUT":
            sent.append(call.params["offset"] >> 20)
            if len(sent) in breaks_at:
                await send(client, call, model)  # it arrives, and its answer does not
                raise Unavailable("the connection is gone")
        return await send(client, call, model)

    monkeypatch.setattr(AsyncClient, "send", counted)
    async with AsyncClient(url, token=ADMIN, retry_for_s=0) as client:
        with pytest.raises(Unavailable, match="the connection is gone"):
            await client.uploads.send("default", archive)
        assert not (await client.uploads.find("default", archive.sha256)).complete
        assert (await client.uploads.send("default", archive)).complete
        assert sent == [0, 1, 2, 3], "each part once"
        assert (await client.uploads.send("default", archive)).complete
        assert sent == [0, 1, 2, 3]


@pytest.mark.long
async def test_the_command_line_sends_it_before_the_job_and_a_dry_run_does_not(url: str, code: Path) -> None:
    dry = await run("submit", "--dry-run", "--upload", str(code), "--", "true", url=url)
    assert "code of" not in dry.err
    both = await run("submit", "--upload", str(code), "--workdir", "/home", "--", "true", url=url)
    assert (both.code, "leave one out" in both.err) == (2, True)
    (code / "more.bin").write_bytes(bytes(2 << 20))
    large = await run("submit", "--upload", str(code), "--", "true", url=url)
    assert large.code == 2
    assert "has 5.2 MB, the limit is 4.2 MB; the 3 largest: table.bin (3.1 MB), more.bin (2.1 MB)" in large.err
    (code / ".gpuignore").write_text("more.bin\n")
    refused = await run("submit", "--gpus", "64", "--upload", str(code), "--", "true", url=url)
    assert refused.code == 2, "the job asks for too much, but its code has arrived"
    assert "3 files" in refused.err
    assert "sent, 3.2 MB" in refused.err
    with pack(code, LIMIT) as packed:
        async with AsyncClient(url, token=ADMIN, user="ada") as client:
            assert (await client.uploads.find("default", packed.sha256)).complete
        async with AsyncClient(url, token=ADMIN) as client:
            assert not (await client.uploads.find("default", packed.sha256)).complete, "it is only ada's"


async def test_after_the_service_died_between_the_last_part_and_its_check_the_upload_is_used(
    url: str, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> None:
        raise Unavailable("killed")

    async with AsyncClient(url, token=ADMIN, retry_for_s=0) as client:
        with monkeypatch.context() as patch:
            patch.setattr("gpu_platform.store.uploads.complete", die)
            with pytest.raises(Unavailable, match="killed"):
                await client.uploads.send("default", archive)
        assert (await client.uploads.send("default", archive)).complete


async def test_on_a_full_disk_the_sender_is_told_and_goes_on_when_there_is_room(
    small_disk: Path, archive: Archive
) -> None:
    store = Store(f"sqlite:///{small_disk / 'p.db'}")
    store.migrate()
    async with served(application(store, NOWHERE)) as url, AsyncClient(url, token=ADMIN, retry_for_s=0) as client:
        with pytest.raises(StorageFull, match="disk of the database is full"):  # its 3 MiB hold two parts at most
            await client.uploads.send("default", archive)
        there = await client.uploads.find("default", archive.sha256)
        assert there.received in (0, 1 << 20, 2 << 20)
        assert not there.complete
        await asyncio.to_thread(subprocess.run, ["mount", "-o", "remount,size=16m", small_disk], check=True)
        assert (await client.uploads.send("default", archive)).complete
    store.close()

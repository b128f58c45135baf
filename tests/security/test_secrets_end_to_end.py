"""A job with a secret in a whole platform of real processes: the value is found in the rank, and nowhere else."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload
from temporalio.client import Client

from gpu_platform.client import AsyncClient
from gpu_platform.domain.access.secrets import SecretValue
from gpu_platform.domain.jobs.exec import ExecRequest
from gpu_platform.domain.jobs.secret_uses import SecretUse
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.identity.key_ring import KeyRing
from gpu_platform.temporal.payloads.codec import SealedPayloads
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

pytestmark = pytest.mark.timeout(180)

VALUE = "hunter2-rosebud-4711"
SCRIPT = """
import hashlib, os, pathlib, time, urllib.request
def shown(data): print(hashlib.sha256(data).hexdigest(), flush=True)
shown(os.environb[b"KEY"])
shown(pathlib.Path(os.environ["GPU_PLATFORM_SECRETS_DIR"], "key.txt").read_bytes())
token = pathlib.Path(os.environ["GPU_PLATFORM_TOKEN_FILE"]).read_text()
url = os.environ["GPU_PLATFORM_API_URL"] + "/v1/jobs/" + os.environ["GPU_PLATFORM_JOB_ID"]
request = urllib.request.Request(url, headers={"Authorization": "Bearer " + token})
print(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request).status, flush=True)
time.sleep(600)
"""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    config = ClusterConfig(tmp_path / "state", nodes=(NodeSpec("a", "dgx-h100"),), ui=False, schedulers=1)
    async with LocalCluster(config) as cluster:
        yield cluster


@pytest.mark.long
async def test_the_value_of_a_secret_is_in_the_rank_and_nowhere_else(cluster: LocalCluster) -> None:
    async with AsyncClient(cluster.api_url, retry_for_s=30) as client:
        await client.set_secret("default", "key", SecretValue.of(VALUE.encode()))
        uses = (SecretUse(name="key", env="KEY"), SecretUse(name="key", file="key.txt"))
        job = await client.submit(
            JobSpec(
                command=[sys.executable, "-c", SCRIPT], secrets=uses, job_token=True, env={"PLANTED": "planted-0815"}
            )
        )
        await eventually(lambda: _wrote(client, job.id, 3), "the rank to show its secrets", within_s=60)
        digest = hashlib.sha256(VALUE.encode()).hexdigest()
        assert (await client.logs(job.id)).split() == [digest, digest, "200"]
        session = await client.exec(job.id, ExecRequest(command=["sh", "-c", "printf %s $KEY | sha256sum"]))
        beside = b"".join([chunk.data async for chunk in client.exec_output(session)])
        assert beside.decode().split()[0] == digest

        assert await found(cluster, job.id, VALUE) == set()
        # What a job has in its environment is in its order, its row and its history: the search sees all three.
        planted = {place.removesuffix("-wal") for place in await found(cluster, job.id, "planted-0815")}
        assert {"order.json", "platform.db", "history"} <= planted

        await client.kill(job.id)
        await eventually(lambda: _is(client, job.id, JobState.CANCELLED), "its end", within_s=60)
        assert await found(cluster, job.id, VALUE) == set()


async def _wrote(client: AsyncClient, job_id: str, lines: int) -> bool:
    job = await client.get(job_id)
    assert not job.state.is_terminal, job.failure
    return job.state is JobState.RUNNING and (await client.logs(job_id)).count("\n") >= lines


async def _is(client: AsyncClient, job_id: str, state: JobState) -> bool:
    return (await client.get(job_id)).state is state


async def found(cluster: LocalCluster, job_id: str, value: str) -> set[str]:
    """Where the value is: files of the state directory, the opened history of the job, answers of the service."""
    forms = {value.encode(), base64.b64encode(value.encode()).rstrip(b"=")[:-1]}
    places = await asyncio.to_thread(_files_with, cluster.config.state_dir, forms)
    history = await _history(cluster, job_id)
    if any(form in history for form in forms):
        places.add("history")
    paths = ["/v1/jobs", f"/v1/jobs/{job_id}", f"/v1/jobs/{job_id}/events?follow=false", "/v1/events?follow=false"]
    paths += ["/v1/secrets", "/v1/audit", "/v1/snapshot", "/v1/hosts", f"/v1/jobs/{job_id}/logs?follow=false"]
    async with httpx.AsyncClient(base_url=cluster.api_url, headers=cluster.headers) as http:
        for path in paths:
            answer = await http.get(path)
            assert answer.status_code == 200, (path, answer.text)
            if any(form in answer.content for form in forms):
                places.add(path)
    return places


def _files_with(directory: Path, forms: set[bytes]) -> set[str]:
    files = [path for path in directory.rglob("*") if path.is_file() and not path.is_symlink()]
    return {path.name for path in files if any(form in _read(path) for form in forms)}


def _read(path: Path) -> bytes:
    """The platform goes on while its files are read, so one may be gone by now."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


async def _history(cluster: LocalCluster, job_id: str) -> bytes:
    """All that Temporal has of the job, opened with the keys of the cluster."""
    client = await Client.connect(cluster.temporal_address)
    history = await client.get_workflow_handle(job_id).fetch_history()
    codec = SealedPayloads(KeyRing.load(cluster.keys), accepts_plain=True)
    payloads = [payload for event in history.events for payload in _payloads(event)]
    return b"\n".join(payload.SerializeToString() for payload in await codec.decode(payloads))


def _payloads(message: Any) -> Iterator[Payload]:
    if isinstance(message, Payload):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            parts: list[Any] = [value[key] for key in value]
        else:
            parts = [*value] if field.is_repeated else [value]
        for part in parts:
            if isinstance(part, Message):
                yield from _payloads(part)

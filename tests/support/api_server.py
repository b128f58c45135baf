"""The real service for tests: a SQLite store, uvicorn on a free port, and a Temporal dev server where jobs start.

In place of the real workflows (which have their own tests) run some that only remember what they were told.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import httpx
from fastapi import FastAPI
from temporalio import workflow
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from gpu_platform.client import credentials
from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.domain.access.tokens import TokenInfo, TokenRequest
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import NotFound, Unavailable
from gpu_platform.domain.jobs.array_steps import ArrayInput, ElementInterrupt, ElementsAgain, ElementsInterrupt
from gpu_platform.domain.jobs.job import Interrupt, JobInput
from gpu_platform.identity.node_tokens import NODE_HEADER, NodeTokens
from gpu_platform.node.node_worker import NodeWorker
from gpu_platform.node.processes.logs import LogRead
from gpu_platform.private_files import write_file
from gpu_platform.settings import AccessSettings, Settings, TemporalSettings
from gpu_platform.store import Store
from gpu_platform.store.access import tokens
from service.app import create_app
from service.server import Server
from workers.node.http import node_app

ADMIN = f"gpt_{'admin' * 8}"
"""The token of the administrator of :func:`application`."""


@workflow.defn(name="JobWorkflow")
class RecordingJob:
    def __init__(self) -> None:
        self.given: JobInput | None = None
        self.told: list[list[str]] = []

    @workflow.run
    async def run(self, given: JobInput) -> None:
        self.given = given
        await workflow.wait_condition(lambda: any(kind == "kill" for kind, *_ in self.told))

    @workflow.signal
    def cancel(self, interrupt: Interrupt) -> None:
        self.told.append(["cancel", interrupt.actor, interrupt.reason])

    @workflow.signal
    def kill(self, interrupt: Interrupt) -> None:
        self.told.append(["kill", interrupt.actor, interrupt.reason])

    @workflow.signal
    def preempt(self, interrupt: Interrupt) -> None:
        self.told.append(["preempt", interrupt.actor, interrupt.reason])

    @workflow.query
    def heard(self) -> list[list[str]]:
        return self.told

    @workflow.query
    def spec(self) -> JobInput | None:
        return self.given


@workflow.defn(name="ArrayWorkflow")
class RecordingArray:
    def __init__(self) -> None:
        self.given: ArrayInput | None = None
        self.told: list[list[str]] = []

    @workflow.run
    async def run(self, given: ArrayInput) -> None:
        self.given = given
        await workflow.wait_condition(lambda: any(kind == "kill" for kind, *_ in self.told))

    @workflow.signal
    def cancel(self, interrupt: Interrupt) -> None:
        self.told.append(["cancel", interrupt.actor, interrupt.reason])

    @workflow.signal
    def kill(self, interrupt: Interrupt) -> None:
        self.told.append(["kill", interrupt.actor, interrupt.reason])

    @workflow.signal
    def cancel_elements(self, asked: ElementsInterrupt) -> None:
        self.told.append(["cancel_elements", asked.indices, asked.interrupt.actor, asked.interrupt.reason])

    @workflow.signal
    def kill_elements(self, asked: ElementsInterrupt) -> None:
        self.told.append(["kill_elements", asked.indices, asked.interrupt.actor, asked.interrupt.reason])

    @workflow.signal
    def elements_place_again(self, asked: ElementsAgain) -> None:
        self.told.append(["elements_place_again", *asked.job_ids])

    @workflow.signal
    def look_again(self) -> None:
        self.told.append(["look_again"])

    @workflow.signal
    def element_cancel(self, asked: ElementInterrupt) -> None:
        self.told.append(["element_cancel", asked.job_id, asked.interrupt.actor, asked.interrupt.reason])

    @workflow.signal
    def element_kill(self, asked: ElementInterrupt) -> None:
        self.told.append(["element_kill", asked.job_id, asked.interrupt.actor, asked.interrupt.reason])

    @workflow.query
    def heard(self) -> list[list[str]]:
        return self.told

    @workflow.query
    def spec(self) -> ArrayInput | None:
        return self.given


@contextmanager
def temporal_dev_server() -> Iterator[str]:
    """The address of a Temporal without our search attributes: registering them is the service's work."""
    binary = shutil.which("temporal") or str(Path(sys.executable).with_name("temporal"))
    server = asyncio.run(WorkflowEnvironment.start_local(dev_server_existing_path=binary, dev_server_log_level="error"))
    yield server.client.service_client.config.target_host
    asyncio.run(server.shutdown())


@asynccontextmanager
async def recording(address: str, namespace: str = "default") -> AsyncIterator[Client]:
    client = await Client.connect(address, namespace=namespace, data_converter=pydantic_data_converter)
    workflows = [RecordingJob, RecordingArray]
    worker = Worker(client, task_queue="control", workflows=workflows, workflow_runner=UnsandboxedWorkflowRunner())
    async with worker:
        yield client


def settings_for(address: str, *, namespace: str = "default", **fields: Any) -> Settings:
    """``namespace``: Temporal's."""
    return Settings(temporal=TemporalSettings(address=address, namespace=namespace, ui_url="http://ui"), **fields)


@asynccontextmanager
async def in_process(app: FastAPI, token: str = ADMIN) -> AsyncIterator[httpx.AsyncClient]:
    """Requests straight into the application; answers are whole, so nothing can be followed."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(
            transport=transport,
            base_url="http://localhost",
            headers={"X-Requested-With": "tests", **bearer(token)},
        ) as http,
    ):
        yield http


@asynccontextmanager
async def served(app: Any, port: int = 0) -> AsyncIterator[str]:
    """The application on a free port; its address."""
    listening = socket.create_server(("127.0.0.1", port), backlog=128)
    # Accepted sockets inherit it; asyncio sets it only on sockets that it made itself.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server = Server(app, "127.0.0.1", port)
    task = asyncio.create_task(server._serve(sockets=[listening]))
    try:
        while not server.started:
            assert not task.done(), "the server did not start"
            await asyncio.sleep(0.005)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        keep_token(url)
        yield url
    finally:
        server.should_exit = True
        await task
        listening.close()


def keep_token(url: str, token: str = ADMIN) -> None:
    """Let clients of the service at this address find the token, as those of ``gpu-platform up`` do."""
    path = credentials.note_path(url).with_suffix(".token")
    credentials.write_note(url, {"token_file": str(path)})
    write_file(path, token.encode())


@dataclass
class LogFiles:
    """The node worker's HTTP side over a dictionary instead of a host's disk."""

    host: str = "a"
    written: dict[tuple[AttemptKey, int], bytes] = field(default_factory=dict)
    first: int = 0
    """Bytes before it are gone."""
    removed: str | None = None

    def write(self, job_id: str, attempt: int, rank: int, data: bytes) -> None:
        key = AttemptKey(job_id=job_id, attempt=attempt), rank
        self.written[key] = self.written.get(key, b"") + data

    def read_log(self, key: AttemptKey, rank: int, offset: int, limit: int) -> LogRead:
        if (key, rank) not in self.written:
            raise FileNotFoundError
        if self.removed is not None:
            raise NotFound(self.removed, removed=True)
        data = self.written[key, rank]
        start = max(offset, self.first)
        return LogRead(data[start : start + limit], start, len(data), "some is gone" if start > offset else None)

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        async with served(node_app(cast(NodeWorker, self), "secret")) as url:
            yield url.replace("http://", "http://service:secret@")


def node_headers(host: str, state_dir: Path) -> dict[str, str]:
    """What the node worker of a host sends with a report to a service that has this state directory."""
    return {NODE_HEADER: f"{host}:{NodeTokens.open(state_dir / 'identity').of(host)}"}


def application(store: Store, address: str, **fields: Any) -> FastAPI:
    """The service with an administrator, whose token is ``ADMIN``. A job may name any namespace."""
    with suppress(Unavailable):  # some tests are about a database that is away
        sign_in(store, ADMIN, "admin", {CLUSTER: Role.ADMIN})
    return create_app(settings_for(address, **{"access": AccessSettings(open_namespaces=True), **fields}), store)


def sign_in(store: Store, token: str, user: str, roles: dict[str, Role], **fields: Any) -> TokenInfo:
    """Let the token be this user's, with these roles."""
    found = tokens.find_token(store, token)
    request = TokenRequest(user=user, **fields)
    return found or tokens.add_token(store, token, request, roles=roles, actor="test", now=datetime.now(UTC))


def bearer(token: str = ADMIN) -> dict[str, str]:
    """The header that signs a request in."""
    return {"Authorization": f"Bearer {token}"}

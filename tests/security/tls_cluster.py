"""A service with TLS, and the machines that speak to it, each with a certificate of its own."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import uvicorn
from starlette.applications import Starlette

from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.identity.ca import CertificateAuthority
from gpu_platform.identity.certificates import (
    CertificateFiles,
    TlsContexts,
    make_key_and_request,
)
from gpu_platform.node.node_worker import NodeWorker
from gpu_platform.node.processes.exec_sessions import ExecSessions
from gpu_platform.node.system.ports import free_port
from gpu_platform.private_files import write_file
from gpu_platform.settings import NodeSettings, TlsSettings
from gpu_platform.store import Store
from service.app import create_app
from service.server import Server
from tests.support.api_server import (
    ADMIN,
    LogFiles,
    bearer,
    settings_for,
    sign_in,
)
from tests.support.store_cluster import inventory
from tests.support.waiting import eventually
from workers.node.http import NodeHttp
from workers.node.peer_votes import votes_route

NO_TEMPORAL = "127.0.0.1:1"
PEER_URL = "https://127.0.0.1:1"


def report(host: str, worker_url: str = "http://127.0.0.1:1", **fields: Any) -> dict[str, Any]:
    inside = inventory(host, 1).model_dump(mode="json")
    whole = {"name": host, "session": "s", "address": "127.0.0.1", "url": worker_url, "inventory": inside}
    return {**whole, **fields}


@asynccontextmanager
async def plain(app: Starlette, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server that an attacker runs on a host."""
    options: dict[str, Any] = {} if tls is None else {"ssl_context_factory": lambda config, default: tls}
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None, lifespan="off", **options))
    task = asyncio.create_task(server.serve())
    await eventually(lambda: server.started, "the server to start")
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task


class TlsCluster:
    """A service and a node worker's HTTP server, both with TLS, in this process."""

    def __init__(self, store: Store, directory: Path, **tls: Any) -> None:
        self.store, self.directory = store, directory
        self.ca = CertificateAuthority.init(directory / "identity" / "ca")
        self.settings = settings_for(NO_TEMPORAL, state_dir=directory, tls=TlsSettings(enabled=True, **tls))
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"

    def contexts(self, path: str, ca: CertificateAuthority | None = None, **signing: Any) -> TlsContexts:
        """A certificate of ``path``, signed by ``ca`` (default: the cluster's)."""
        own = self.directory / f"{len(list(self.directory.iterdir()))}-{path.replace('/', '-')}"
        own.mkdir()
        files = CertificateFiles(own / "own.pem", own / "own.pem", own / "ca.pem")
        self.write(files, path, ca, **signing)
        return TlsContexts(files)

    def write(self, files: CertificateFiles, path: str, ca: CertificateAuthority | None = None, **signing: Any) -> None:
        key, request = make_key_and_request()
        files.write(key, (ca or self.ca).sign(request, path, **signing), self.ca.bundle())

    def client(self, path: str | None, ca: CertificateAuthority | None = None, **signing: Any) -> httpx.AsyncClient:
        """A client that shows the certificate of ``path``. None: an administrator, without a certificate."""
        if path is None:
            bundle = self.directory / "bundle.pem"
            write_file(bundle, self.ca.bundle())
            context = ssl.create_default_context(cafile=bundle)
        else:
            context = self.contexts(path, ca, **signing).client()
        headers = {} if path else bearer()
        return httpx.AsyncClient(base_url=self.url, verify=context, trust_env=False, headers=headers)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[TlsContexts]:
        """The service. Yields its certificate."""
        contexts = self.contexts("service", addresses=["127.0.0.1"])
        sign_in(self.store, ADMIN, "admin", {CLUSTER: Role.ADMIN})
        app = create_app(self.settings, self.store, tls=contexts)
        server = Server(app, "127.0.0.1", self.port, contexts)
        task = asyncio.create_task(server.serve())
        await eventually(lambda: server.started, "the service to start")
        try:
            yield contexts
        finally:
            server.should_exit = True
            await task

    @asynccontextmanager
    async def worker(
        self, name: str, logs: LogFiles, metrics: str = "certificate", revoked: Callable[[], dict[str, float]] = dict
    ) -> AsyncIterator[str]:
        """A node worker's HTTP server with the certificate of its host."""
        sessions = ExecSessions(self.directory, name, lambda _: None, jailed=False)
        tls = TlsSettings(enabled=True, metrics=cast(Any, metrics))

        async def votes() -> dict[str, float]:
            return {name: 1.0}

        routes = [votes_route(votes)]
        contexts = self.contexts(f"node/{name}")
        server = NodeHttp(cast(NodeWorker, logs), sessions, NodeSettings(name=name), routes, tls, contexts, revoked)
        task = asyncio.create_task(server.run())
        try:
            yield server.url
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            sessions.close()

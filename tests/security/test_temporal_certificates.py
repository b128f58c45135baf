"""Service, control worker, scheduler and gateway use a renewed certificate towards Temporal without a restart."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import PollActivityTaskQueueRequest
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from gpu_platform.domain.errors import CannotStart
from gpu_platform.identity import names
from gpu_platform.identity.ca import CertificateAuthority
from gpu_platform.identity.certificates import CertificateFiles, make_key_and_request
from gpu_platform.settings import Settings, TemporalSettings
from gpu_platform.temporal import connection as temporal_connection
from service.temporal import JobWorkflows, connect_lazily
from tests.support.relay import Relay
from tests.support.waiting import eventually
from workers.gateway.upstream import CONNECTIONS, Upstream
from workers.process import connect, run_worker


@workflow.defn
class Greeting:
    @workflow.run
    async def run(self) -> str:
        return "hello"


class TemporalWithTls(Relay):
    """A server in front of the test's Temporal that asks for certificates."""

    def __init__(self, directory: Path, behind: str) -> None:
        self._directory = directory
        self._authority = CertificateAuthority.init(directory / "ca")
        self.shown: set[str] = set()
        """Serial numbers of the certificates that it saw."""
        self.expired: set[str] = set()
        self._serials: dict[asyncio.StreamWriter, str] = {}
        own = self.write(names.SERVICE)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(own.certificate, own.key)
        context.load_verify_locations(own.trusted)
        context.verify_mode = ssl.CERT_REQUIRED
        context.set_alpn_protocols(["h2"])
        super().__init__(behind, tls=context)

    def write(self, path: str) -> CertificateFiles:
        """A new certificate."""
        key, request = make_key_and_request()
        files = CertificateFiles(*(self._directory / f"{path}{end}" for end in (".pem", ".pem", "-ca.pem")))
        files.write(key, self._authority.sign(request, path), self._authority.bundle())
        return files

    def settings(self, files: CertificateFiles) -> Settings:
        return Settings(
            temporal=TemporalSettings(
                address=self.address,
                tls=True,
                tls_ca=files.trusted,
                tls_cert=files.certificate,
                tls_server_name=names.dns_name(names.SERVICE, names.DEFAULT_DOMAIN),
            )
        )

    def let_expire(self, serials: set[str]) -> None:
        """Believe these certificates no more, as if their time were over."""
        self.expired |= serials
        for client, serial in self._serials.items():
            if serial in serials:
                client.close()

    def admits(self, client: asyncio.StreamWriter) -> bool:
        serial = self._serials[client] = client.get_extra_info("peercert")["serialNumber"]
        self.shown.add(serial)
        return serial not in self.expired


async def test_a_renewed_certificate_is_used_when_the_old_one_expires(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporal_connection, "CERTIFICATE_LOOK_S", 0.1)
    front = TemporalWithTls(tmp_path, temporal.service_client.config.target_host)
    async with front.serving():
        settings = front.settings(front.write(names.CONTROL))
        settings.temporal.namespace = temporal.namespace
        client = await connect(settings)
        service = JobWorkflows(connect_lazily(settings))
        worker = Worker(
            client, task_queue="greetings", workflows=[Greeting], workflow_runner=UnsandboxedWorkflowRunner()
        )
        running = asyncio.create_task(run_worker(settings, client, worker))
        try:
            await service.ping()
            first = set(front.shown)

            async def works(number: int) -> None:
                greeted = await client.execute_workflow(Greeting.run, id=f"greeting-{number}", task_queue="greetings")
                assert greeted == "hello"
                await service.ping()

            await works(0)
            connection = client.service_client.worker_service_client
            front.write(names.CONTROL)
            # The new connection is there a moment before the client uses it.
            await eventually(
                lambda: client.service_client.worker_service_client is not connection, "the client to be connected anew"
            )
            assert front.shown - first, "with the renewed certificate"
            await service.ping()
            front.let_expire(first)
            await works(1)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_the_gateway_uses_it_too_and_ends_no_poll_for_it(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporal_connection, "CERTIFICATE_LOOK_S", 0.1)
    front = TemporalWithTls(tmp_path, temporal.service_client.config.target_host)
    async with front.serving():
        upstream = Upstream(front.settings(front.write(names.GATEWAY)).temporal)
        keeping = asyncio.create_task(upstream.keep())
        service = "/temporal.api.workflowservice.v1.WorkflowService"

        async def call() -> None:
            await upstream.next().unary_unary(f"{service}/GetSystemInfo")(b"", timeout=10)

        async def poll(task_queue: str) -> bytes:
            request = PollActivityTaskQueueRequest(
                namespace=temporal.namespace, task_queue=TaskQueue(name=task_queue), identity="gateway"
            )
            polled = upstream.next().unary_unary(f"{service}/PollActivityTaskQueue")
            return await polled(request.SerializeToString(), timeout=4)

        try:
            await call()
            first = set(front.shown)
            running = asyncio.create_task(poll("nothing"))
            front.write(names.GATEWAY)

            async def renewed() -> set[str]:
                await call()
                return front.shown - first

            await eventually(renewed, "a connection with the renewed certificate")
            assert not running.done()
            await running
            front.let_expire(first)
            for _ in range(CONNECTIONS):
                await call()
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await upstream.aclose()


def test_a_gateway_that_cannot_read_its_certificate_says_which(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match=r"gone\.pem.*see temporal\.tls_"):
        Upstream(TemporalSettings(tls=True, tls_cert=tmp_path / "gone.pem"))

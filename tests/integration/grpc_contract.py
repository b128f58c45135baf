"""Two equal services, one asked over REST and the other over gRPC: their answers must be the same."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
from google.protobuf.message import Message

from gpu_platform.client.aio.rpc_sender import AsyncRpcSender
from gpu_platform.client.calls import Call
from gpu_platform.client.connection import Connection
from gpu_platform.client.wire import problem_of_response
from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.domain.states import JobState
from gpu_platform.identity import key_ring
from gpu_platform.rpc import methods, statuses
from gpu_platform.rpc.channels import PORT_VARIABLE
from gpu_platform.rpc.json_messages import to_json
from gpu_platform.rpc.methods import AnswerKind, Rpc
from gpu_platform.settings import AccessSettings, ServiceSettings
from gpu_platform.settings.service import RateLimitSettings
from gpu_platform.store import Store
from gpu_platform.store.reservations import attempts
from service.grpc.server import GrpcServer
from tests.support.api_server import ADMIN, LogFiles, application, recording, served, sign_in
from tests.support.store_cluster import NOW, Cluster

RUNNING, QUEUED, ENDED = "j-1jrp3k2h0x4t7za", "j-0000000000queue", "j-0000000000ended"
VIEWER = f"gpt_{'viewer00' * 5}"
SENT_TO = "http://127.0.0.1:8700"
"""Where the client believes that REST is. Only the host of it counts."""
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)")
_ID = re.compile(r"\b([aejpst]|sc)-[0-9a-z]{8,}\b|\br-[0-9a-z]{10}\b|\bgpt_[\w-]+")
_OWN = {RUNNING, QUEUED, ENDED}


@dataclass(frozen=True)
class Step:
    """One request. ``{name}`` in its path is what an earlier step kept under this name."""

    method: str
    path: str
    body: dict[str, Any] | bytes | None = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    keep: str = ""
    """The name under which the ``id`` of the answer is kept."""
    token: str | None = ADMIN

    @property
    def rpc(self) -> Rpc:
        """The RPC that stands for the request."""
        path, _, query = self.path.partition("?")
        found = methods.find(self.method, path, query)
        assert found is not None, self
        return found[0]


class _Kept(dict[str, str]):
    """What was kept. What was not, because its step failed, is an id that nothing has."""

    def __missing__(self, name: str) -> str:
        return f"no-{name}"


class Both:
    """The two services."""

    def __init__(
        self, url: str, http: httpx.AsyncClient, address: str, channel: grpc.aio.Channel, sender: AsyncRpcSender
    ) -> None:
        """``url``: of the service that is asked over REST; ``address``: of gRPC of the other one. ``sender``: of the
        client for asyncio, which asks that one, too."""
        self.url, self.http, self.address, self.channel, self.sender = url, http, address, channel, sender
        self.kept: tuple[dict[str, str], dict[str, str]] = ({}, {})

    async def differences(self, step: Step) -> list[str]:
        """Ask both, and compare: status and answer, of errors the whole problem. Empty: they are the same."""
        status, rest = await self.over_rest(step, step.path.format_map(_Kept(self.kept[0])))
        path = step.path.format_map(_Kept(self.kept[1]))
        # What succeeds is asked once, so that both services do the same. What fails changes nothing.
        code, rpc = await self.over_client(step, path) if step.status < 400 else await self.over_grpc(step, path)
        found = [f"{name}: {one}, not {step.status}" for name, one in (("REST", status), ("gRPC", code))
                 if one != step.status]  # fmt: skip
        found += [*_differences(comparable(rest), comparable(rpc))]
        if step.status >= 400:
            found += [*_differences(comparable(rpc), comparable((await self.over_client(step, path))[1]), "(client)")]
        if step.keep and status < 400:
            for kept, answer in zip(self.kept, (rest, rpc), strict=True):
                kept[step.keep] = answer.get("id") or answer["info"]["id"]
        return [f"{step.method} {step.path}: {one}" for one in found] + (
            [f"{rest}"[:600]] if status != step.status else []
        )

    async def over_rest(self, step: Step, path: str) -> tuple[int, Any]:
        """The status and the JSON of the answer; of a problem, without what the transports cannot share."""
        kind = "application/octet-stream" if isinstance(step.body, bytes) else "application/json"
        headers = {"Content-Type": kind, **step.headers, **_bearer(step.token)}
        given = {"content": step.body} if isinstance(step.body, bytes) else {"json": step.body}
        answer = await self.http.request(step.method, self.url + path, headers=headers, **given)
        if answer.status_code >= 400:
            return answer.status_code, problem_of_response(
                answer.status_code, answer.headers, answer.content
            ).model_dump(mode="json")
        if step.rpc.answer is AnswerKind.TEXT:
            return 200, answer.text
        return answer.status_code, answer.json() if answer.content else None

    async def over_client(self, step: Step, path: str) -> tuple[int, Any]:
        """As :meth:`over_rest`, by the client's own sender."""
        body = json.dumps(step.body).encode() if isinstance(step.body, dict) else step.body
        answer = await self.sender.send(SENT_TO, Call(step.method, path, body=body, headers=step.headers), step.token)
        if not answer.is_success:
            problem = problem_of_response(answer.status, answer.headers, answer.content)
            return answer.status, problem.model_dump(mode="json")
        if step.rpc.answer is AnswerKind.TEXT:
            return 200, answer.text
        return step.status, json.loads(answer.content) if answer.content else None

    async def over_grpc(self, step: Step, path: str) -> tuple[int, Any]:
        """As :meth:`over_rest`. gRPC has one status for all that is well."""
        path, _, query = path.partition("?")
        found = methods.find(step.method, path, query)
        assert found is not None
        rpc, values = found
        body = step.body if isinstance(step.body, bytes) else None if step.body is None else httpx.Request(
            "POST", "http://x", json=step.body
        ).content  # fmt: skip
        headers = {name.lower(): value for name, value in step.headers.items()}
        message = rpc.message_of(values, query, headers, body)
        metadata = [(name, value) for name, value in headers.items() if name.startswith("x-")]
        metadata += [(name.lower(), value) for name, value in _bearer(step.token).items()]
        try:
            answer = await self._call(rpc, message, metadata)
        except grpc.aio.AioRpcError as error:
            problem, code = statuses.problem_of(error), error.code()
        else:
            return step.status, answer
        assert code is statuses.code_of(problem), problem
        return problem.status, problem.model_dump(mode="json")

    async def _call(self, rpc: Rpc, message: Message, metadata: list[tuple[str, str]]) -> Any:
        options = {
            "request_serializer": rpc.request_type.SerializeToString,
            "response_deserializer": rpc.response_type.FromString,
        }
        if rpc.descriptor.server_streaming:
            pieces = [one async for one in self.channel.unary_stream(rpc.path, **options)(message, metadata=metadata)]
            return b"".join(one.text for one in pieces).decode()
        answer = await self.channel.unary_unary(rpc.path, **options)(message, metadata=metadata)
        return None if rpc.answer is AnswerKind.NOTHING else to_json(answer, complete=True)


def comparable(value: Any) -> Any:
    """JSON with a sign for each time and each id that was made up, and without what is null or empty: messages cannot
    tell that from what was left out."""
    if isinstance(value, dict):
        kept = {name: comparable(one) for name, one in value.items() if name not in _MEASURED}
        return {name: one for name, one in kept.items() if one is not None and one not in ([], {})}
    if isinstance(value, list):
        return [comparable(one) for one in value]
    if isinstance(value, str):
        return _ID.sub(lambda found: found[0] if found[0] in _OWN else "(an id)", _TIME.sub("(a time)", value))
    return value


_MEASURED = {"at", "seq", "lease_remaining_s", "workflow_url", "hash", "previous", "node_token", "key_id"}
"""Fields whose values depend on when one asks, or whom."""


def _differences(rest: Any, rpc: Any, where: str = "") -> Iterator[str]:
    if isinstance(rest, dict) and isinstance(rpc, dict):
        for name in sorted(rest.keys() | rpc.keys()):
            yield from _differences(rest.get(name, "(nothing)"), rpc.get(name, "(nothing)"), f"{where}.{name}")
    elif isinstance(rest, list) and isinstance(rpc, list) and len(rest) == len(rpc):
        for at, (one, two) in enumerate(zip(rest, rpc, strict=True)):
            yield from _differences(one, two, f"{where}[{at}]")
    elif rest != rpc:
        yield f"{where}: REST says {rest!r}, gRPC {rpc!r}"


def _bearer(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


@asynccontextmanager
async def both(template: Path, directory: Path, temporal_address: str) -> AsyncIterator[Both]:
    """Two services with the same hosts and jobs, each with a database of its own."""
    async with AsyncExitStack() as stack:
        logs = LogFiles("dgx-b")
        logs.write(ENDED, 1, 0, "epoch 1\nä €\n".encode())
        worker_url = await stack.enter_async_context(logs.served())
        await stack.enter_async_context(recording(temporal_address))
        apps = []
        for name in ("rest", "grpc"):
            shutil.copy(template, directory / f"{name}.db")
            store = Store(f"sqlite:///{directory / name}.db")
            stack.callback(store.close)
            _fill(store, worker_url)
            limits = ServiceSettings(rate_limits=RateLimitSettings(requests=None, planning=None, bad_tokens=None))
            access = AccessSettings(open_namespaces=True)
            state = directory / name
            key_ring.create(state / "ring.json")
            more = {"service": limits, "access": access, "state_dir": state, "key_ring": state / "ring.json"}
            app = application(store, temporal_address, **more)
            apps.append(app)
        url = await stack.enter_async_context(served(apps[0]))
        server = GrpcServer(apps[1], "127.0.0.1", 0)
        await stack.enter_async_context(apps[1].router.lifespan_context(apps[1]))
        await server.begin()
        stack.push_async_callback(server.end)
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=30.0))
        address = f"127.0.0.1:{server.port}"
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv(PORT_VARIABLE, str(server.port))
            sender = AsyncRpcSender(Connection(SENT_TO, None, None, None, 0.0))
        stack.push_async_callback(sender.close)
        yield Both(url, http, address, channel, sender)


def _fill(store: Store, worker_url: str) -> None:
    cluster = Cluster(store).host("dgx-a").host("dgx-b", url=worker_url).host("dgx-c")
    cluster.running(RUNNING, {"dgx-a": [0]})
    cluster.queued(QUEUED)
    ended = cluster.running(ENDED, {"dgx-b": [0]})
    attempts.end_attempt(store, ended, [JobState.COMPLETED], now=NOW + timedelta(seconds=9), actor="control")
    sign_in(store, VIEWER, "viewer", {CLUSTER: Role.VIEWER})

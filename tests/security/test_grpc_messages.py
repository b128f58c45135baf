"""Whatever a message of gRPC says, and however much of it there is: REST would refuse it in the same way."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.node.system.ports import free_port
from gpu_platform.rpc import statuses
from gpu_platform.rpc.methods import Rpc, rpcs
from gpu_platform.store import Store
from gpu_platform.v1 import array_service_pb2, job_service_pb2
from service.access.routes import ROUTES
from service.grpc import handlers, health, structure
from service.http import body_limit
from tests.support.api_server import bearer, sign_in
from tests.support.grpc_server import SIGNED_IN, Running, refusal, running_with
from tests.support.service_process import ServiceProcess, all_of, noticed, service_process
from tests.support.store_cluster import Cluster
from tests.support.waiting import eventually

MALLORY, ALICE = f"gpt_{'mallory1' * 5}", f"gpt_{'alice123' * 5}"
MOST_GROWN_MIB = 200
TEXTS = ("", "x", "日本", "é", "a\r\nb: c", "\0", "..", "a/b", "a?b=c", "{job_id}", "%2e", "💥" * 100, "x" * 5000)
SECONDS = (0, -1, 253402300800, -62135596801, 2**63 - 1, -(2**63))
NANOS = (0, -1, 999_999_999, 2**31 - 1)
NUMBERS: dict[int, tuple[Any, ...]] = {
    FieldDescriptor.CPPTYPE_BOOL: (False, True),
    FieldDescriptor.CPPTYPE_DOUBLE: (0.0, float("nan"), float("inf"), -float("inf"), 1e308, 5e-324),
    FieldDescriptor.CPPTYPE_ENUM: (0, 1, 77, -1, 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63)),
    FieldDescriptor.CPPTYPE_INT32: (0, -1, 2**31 - 1),
}
DEEPEST = 6


def odd(kind: type[Message], chosen: random.Random) -> Any:
    """A message with odd values."""
    message = kind()
    _fill(message, chosen, 0)
    return message


def _fill(message: Any, chosen: random.Random, depth: int) -> None:
    message.SetInParent()
    if message.DESCRIPTOR.full_name == "google.protobuf.Timestamp":
        message.seconds, message.nanos = chosen.choice(SECONDS), chosen.choice(NANOS)
        return
    for field in message.DESCRIPTOR.fields:
        if depth == DEEPEST or chosen.random() < (0.15, 0.4)[depth > 0]:
            continue
        inside = getattr(message, field.name)
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            value, key = entry.fields_by_name["value"], chosen.choice(TEXTS)
            if value.message_type is None:
                inside[key] = _scalar(value, chosen)
            else:
                _fill(inside[key], chosen, depth + 1)
        elif entry is not None:
            _fill(inside.add() if field.is_repeated else inside, chosen, depth + 1)
        elif field.is_repeated:
            inside.extend([_scalar(field, chosen), _scalar(field, chosen)])
        else:
            setattr(message, field.name, _scalar(field, chosen))


def _scalar(field: FieldDescriptor, chosen: random.Random) -> Any:
    if field.cpp_type != FieldDescriptor.CPPTYPE_STRING:
        return chosen.choice(NUMBERS[field.cpp_type])
    text = chosen.choice(TEXTS)
    return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text


def call(channel: grpc.aio.Channel, rpc: Rpc, data: bytes, metadata: Any = SIGNED_IN) -> Any:
    """The answer to one call, or the first of a stream."""
    made: Any = (channel.unary_stream if rpc.descriptor.server_streaming else channel.unary_unary)(rpc.path)
    begun = made(data, metadata=metadata, timeout=10)
    return begun.read() if rpc.descriptor.server_streaming else begun


def with_fields() -> list[Rpc]:
    return [rpc for rpc in rpcs().values() if rpc.request_type.DESCRIPTOR.fields]


@pytest.fixture
async def running(sqlite_store: Store) -> AsyncIterator[Running]:
    async with running_with(sqlite_store) as found:
        found.context.rate_limits._limits.clear()
        yield found


@pytest.mark.parametrize("seed", [1, 2])
async def test_odd_values_are_refused_as_what_they_are(running: Running, seed: int) -> None:
    chosen, unexpected = random.Random(seed), []
    for rpc in with_fields():
        if rpc.descriptor.name == "FollowEvents":
            continue  # it may wait for an event
        try:
            await call(running.channel, rpc, odd(rpc.request_type, chosen).SerializeToString())
        except grpc.aio.AioRpcError as error:
            problem = statuses.problem_of(error)
            if not statuses.is_ours(error) or problem.code == "internal":
                unexpected.append((rpc.path, error.code().name, error.details()))
    assert not unexpected


async def test_strangers_learn_nothing_and_are_counted_whatever_they_send(running: Running) -> None:
    late = job_service_pb2.SubmitJobRequest()
    late.body.begin_at.seconds = 2**60
    stub = running.channel.unary_unary("/gpu_platform.v1.JobService/SubmitJob")
    codes = []
    for number in range(6):
        for data in (late.SerializeToString(), b"\xff\xff\xff"):
            found, _ = await refusal(stub(data, metadata=(("authorization", f"Bearer gpt_guess{number}"),)))
            codes.append(found.name)
    assert (codes[0], codes[-1], {*codes}) == (
        "UNAUTHENTICATED", "RESOURCE_EXHAUSTED", {"UNAUTHENTICATED", "RESOURCE_EXHAUSTED"},
    )  # fmt: skip


async def test_every_method_has_the_largest_body_of_its_route(running: Running) -> None:
    for rpc in with_fields():
        if (rpc.verb, rpc.template) in body_limit.LARGER:
            continue
        unknown = b"\xfa\x7f"  # field 2047, a text
        size = body_limit.MAX_BODY_BYTES + body_limit.LARGE_BYTES
        data = unknown + b"\x80\x80\x44" + bytes(size)
        code, problem = await refusal(call(running.channel, rpc, data))
        if rpc.body is None:
            assert (code, problem.code) == (grpc.StatusCode.INVALID_ARGUMENT, "invalid_request"), rpc.path
        else:
            assert (code, problem.code) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "body_too_large"), rpc.path


@pytest.mark.long
async def test_a_refusal_fits_the_headers_of_every_client(running: Running) -> None:
    for name in ("x" * 5000, "日本" * 3000, "\0" * 4000, "💥" * 2000):
        for rpc in with_fields():
            if rpc.path_fields and rpc.route in ROUTES:
                asked = rpc.request_type(**{rpc.path_fields[0]: name})
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    await call(running.channel, rpc, asked.SerializeToString())
                assert statuses.is_ours(failed.value), (rpc.path, failed.value.details())


# -- counted before it is read ---------------------------------------------------------------------


def test_values_are_counted_without_reading_them() -> None:
    asked = array_service_pb2.SubmitArrayRequest(idempotency_key="k")
    asked.body.job.command.extend(["a", "b" * 300])
    asked.body.array.parameters.names.append("p")
    for _ in range(1000):
        asked.body.array.parameters.rows.add().items.append("x")
    data = asked.SerializeToString()
    kind = rpcs()["/gpu_platform.v1.ArrayService/SubmitArray"].descriptor.input_type
    # key, body, job, two arguments, array, parameters, name, and each row with its text
    values = 8 + 2 * 1000
    assert structure.at_most(data, kind, values)
    assert not structure.at_most(data, kind, values - 1)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_no_message_is_unreadable_for_both(seed: int) -> None:
    """What the count takes for a message may still be none: of texts, it does not look at the characters."""
    chosen = random.Random(seed)
    for rpc in with_fields():
        data = bytearray(odd(rpc.request_type, chosen).SerializeToString())
        for _ in range(chosen.randrange(3)):
            if data:
                data[chosen.randrange(len(data))] = chosen.randrange(256)
        try:
            structure.at_most(bytes(data), rpc.descriptor.input_type, 10**9)
        except structure.UnreadableMessage:
            with pytest.raises(Exception, match="pars"):
                rpc.request_type.FromString(bytes(data))


# -- how much memory and time it takes -------------------------------------------------------------


@pytest.fixture(scope="module")
def service(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServiceProcess, str]]:
    """A service process, and its address of gRPC. mallory has 60 large jobs: a list of them has 6 MB."""
    directory, port = tmp_path_factory.mktemp("grpc"), free_port()
    database = directory / "platform.db"
    database.write_bytes(sqlite_template.read_bytes())
    store = Store(f"sqlite:///{database}")
    sign_in(store, MALLORY, "mallory", {"evil": Role.USER})
    sign_in(store, ALICE, "alice", {"good": Role.USER, CLUSTER: Role.VIEWER})
    cluster = Cluster(store).host("a")
    for number in range(60):
        cluster.queued(f"j-{number:016}", namespace="evil", user="mallory", command=["x" * 100_000])
    store.close()
    with service_process(
        f"sqlite:///{database}",
        directory,
        GPU_PLATFORM_ACCESS__NAMESPACES='["evil", "good"]',
        GPU_PLATFORM_SERVICE__RATE_LIMITS__REQUESTS="null",
        GPU_PLATFORM_SERVICE__GRPC_PORT=str(port),
    ) as running:
        yield running, f"127.0.0.1:{port}"


OF_ITS_OWN = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1), ("grpc.http2.bdp_probe", 0)]


async def each_on_its_own_connection(address: str, method: str, data: bytes, count: int, token: str = "") -> set[Any]:
    metadata = (("authorization", f"Bearer {token}"),) if token else ()

    async def once() -> Any:
        async with grpc.aio.insecure_channel(address, OF_ITS_OWN) as channel:
            try:
                await channel.unary_unary(method)(data, metadata=metadata, timeout=60)
            except grpc.aio.AioRpcError as error:
                return error.code().name
            return "OK"

    return {*await all_of(*[once() for _ in range(count)])}


def length_of(size: int) -> bytes:
    return bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14 & 0x7F | 0x80, size >> 21 & 0x7F])


def nested(field: int, inside: bytes) -> bytes:
    return bytes([field << 3 | 2]) + length_of(len(inside)) + inside


@pytest.mark.long
async def test_large_messages_of_strangers_are_not_kept(service: tuple[ServiceProcess, str]) -> None:
    """By hand it was 763 MiB for eight probes of 33 MB, when those were allowed, and 423 for one list of nothings."""
    process, address = service
    listed = nested(2, nested(2, b"\x0a\x01a" + nested(2, nested(6, b"\x0a\x00" * 3_000_000))))
    with noticed(process, bearer(ALICE)) as others:
        probe = nested(1, b"x" * 6_000_000)
        found = await each_on_its_own_connection(address, "/grpc.health.v1.Health/Check", probe, 16)
        assert found <= {"INVALID_ARGUMENT", "UNAVAILABLE"}
        submit = "/gpu_platform.v1.PipelineService/SubmitPipeline"
        assert await each_on_its_own_connection(address, submit, listed, 4) == {"UNAUTHENTICATED"}
    assert others.grown_mib < MOST_GROWN_MIB


async def test_a_list_of_nothings_is_refused_before_it_is_read(service: tuple[ServiceProcess, str]) -> None:
    """Two bytes each, and sixty in memory: by hand it was 581 MiB for one message of 16 MB, when those were allowed."""
    process, address = service
    whoami, submit = "/gpu_platform.v1.AccessService/GetWhoAmI", "/gpu_platform.v1.ArrayService/SubmitArray"
    assert await each_on_its_own_connection(address, whoami, b"", 1, MALLORY) == {"OK"}
    rows = nested(2, nested(2, nested(4, b"\x12\x00" * 3_000_000)))
    with noticed(process, bearer(ALICE)) as others:
        assert await each_on_its_own_connection(address, submit, rows, 3, MALLORY) == {"RESOURCE_EXHAUSTED"}
    assert others.grown_mib < MOST_GROWN_MIB


async def test_answers_that_nobody_takes_are_bounded(service: tuple[ServiceProcess, str]) -> None:
    """By hand forty were 750 MiB."""
    process, address = service
    with noticed(process, bearer(ALICE)) as others:
        channels = [grpc.aio.insecure_channel(address, OF_ITS_OWN) for _ in range(40)]
        metadata = (("authorization", f"Bearer {MALLORY}"),)
        calls = [
            channel.unary_stream("/gpu_platform.v1.JobService/ListJobs")(b"", metadata=metadata) for channel in channels
        ]
        await asyncio.sleep(3)
        for channel in channels:
            await channel.close()
    assert others.grown_mib < MOST_GROWN_MIB
    assert calls


async def test_an_answer_that_is_not_taken_in_time_frees_its_turn_and_counts(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "TAKEN_WITHIN_S", 0.3)
    cluster = Cluster(running.store)
    for number in range(20):
        cluster.queued(f"j-{number:016}", namespace="evil", user="mallory", command=["x" * 100_000])
    async with grpc.aio.insecure_channel(f"127.0.0.1:{running.grpc.port}", OF_ITS_OWN) as channel:
        calls = [
            channel.unary_stream("/gpu_platform.v1.JobService/ListJobs")(b"", metadata=SIGNED_IN) for _ in range(2)
        ]
        kept = running.grpc._admission._not_taken
        await eventually(lambda: _has(sum(kept.values()) > 4_000_000), "what is not taken to be counted")
        await eventually(lambda: _has(not running.grpc._application._running), "the requests to end")
        assert calls
    await eventually(lambda: _has(not kept), "it to be forgotten with its connection")


async def _has(found: bool) -> bool:
    return found


async def test_any_number_of_probes_costs_as_much_as_one(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    look = health.GrpcHealth._look

    async def counted(self: health.GrpcHealth) -> Any:
        nonlocal looks
        looks += 1
        return await look(self)

    monkeypatch.setattr(health.GrpcHealth, "_look", counted)
    monkeypatch.setattr(health, "WATCHES_AT_ONCE", 20)
    monkeypatch.setattr(health, "FRESH_S", 60.0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{running.grpc.port}", OF_ITS_OWN) as channel:
        watches = [channel.unary_stream("/grpc.health.v1.Health/Watch")(b"") for _ in range(20)]
        for watch in watches:
            assert await watch.read()
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await channel.unary_stream("/grpc.health.v1.Health/Watch")(b"").read()
        assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for _ in range(50):
            assert await channel.unary_unary("/grpc.health.v1.Health/Check")(b"")
    assert looks <= 2

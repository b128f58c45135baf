"""A host carries out an order if control signed it for this step, host, workflow and argument, in time, and once."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from pathlib import Path

import pytest
from pydantic import ValidationError
from temporalio.api.common.v1 import Payload
from temporalio.converter import ActivitySerializationContext
from temporalio.testing import ActivityEnvironment

from gpu_platform.identity import signing
from gpu_platform.identity.signing import OrderRefused, OrderSigner, PinnedKeys
from gpu_platform.lanes import Stuck
from gpu_platform.node.system import records
from gpu_platform.settings import NodeSettings
from gpu_platform.temporal.payloads import orders
from gpu_platform.temporal.payloads.orders import CheckingOrders, OrderedStep, OrderGuard, SigningOrders

ARGUMENT = Payload(metadata={"encoding": b"json/plain"}, data=b'{"x":1}')


@pytest.fixture
def key(tmp_path: Path) -> Path:
    signing.create(tmp_path / "orders.key")
    return tmp_path / "orders.key"


def context(**fields: object) -> ActivitySerializationContext:
    asked = ActivitySerializationContext(
        namespace="n",
        activity_id="1",
        activity_type="launch_ranks",
        activity_task_queue="node-a",
        workflow_id="j-1",
        workflow_type="JobWorkflow",
        is_local=False,
    )
    return dataclasses.replace(asked, **fields)  # type: ignore[arg-type]


async def confirmed(asked: OrderedStep) -> str | None:
    return None


async def signed(key: Path, **fields: object) -> Payload:
    return await SigningOrders(OrderSigner.load(key), confirmed).encode(context(**fields), ARGUMENT)


async def carry_out(
    key: Path, payload: Payload, guard: OrderGuard | None = None, *, host: str = "a", run: str = "r", **fields: object
) -> None:
    """What a node worker does before an activity runs. Raises :class:`OrderRefused`."""
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, workflow_run_id=run, activity_id="1")
    checks, guard = CheckingOrders(host, PinnedKeys(key.with_suffix(".pub"))), guard or OrderGuard(required=True)

    async def step() -> None:
        checks.decode(context(**fields), [payload])
        await guard.admit()

    await asyncio.create_task(environment.run(step))


async def test_a_signed_order_is_carried_out_and_may_be_tried_again(key: Path) -> None:
    payload, guard = await signed(key), OrderGuard(required=True)
    await carry_out(key, payload, guard)
    await carry_out(key, payload, guard)
    with pytest.raises(OrderRefused, match="for another activity"):
        await carry_out(key, payload, guard, run="another run")


@pytest.mark.parametrize("step", ["reset_gpu", "reset_host", "reboot_host"])
async def test_a_repair_is_not_repeated_by_the_next_node_worker(key: Path, tmp_path: Path, step: str) -> None:
    """Its order is good for a day, and nothing else on the host remembers it."""
    payload, kept = await signed(key, activity_type=step), tmp_path / "used.json"
    await carry_out(key, payload, OrderGuard(required=True, kept=kept), activity_type=step)
    restarted = OrderGuard(required=True, kept=kept)
    await carry_out(key, payload, restarted, activity_type=step)
    for guard in (restarted, OrderGuard(required=True, kept=kept)):
        with pytest.raises(OrderRefused, match="for another activity"):
            await carry_out(key, payload, guard, run="another run", activity_type=step)
    await carry_out(key, await signed(key, activity_type=step), restarted, run="another run", activity_type=step)


async def test_a_disk_that_hangs_keeps_nobody_but_the_repair_waiting(
    key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repair that is not written down is not carried out: the next node worker would carry it out again."""
    answers = threading.Event()
    write = records.write_record

    def hang(*arguments: object, **more: bool) -> None:
        answers.wait(10)
        write(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(records, "write_record", hang)
    monkeypatch.setattr(orders, "DISK_S", 0.5)
    guard = OrderGuard(required=True, kept=tmp_path / "used.json")
    repair = await signed(key, activity_type="reset_gpu")
    for _ in range(2):
        began = time.monotonic()
        repairing = asyncio.create_task(carry_out(key, repair, guard, activity_type="reset_gpu"))
        await asyncio.sleep(0.05)
        await carry_out(key, await signed(key), guard)
        assert time.monotonic() - began < 0.4, "the loop goes on"
        with pytest.raises(Stuck):
            await repairing
    answers.set()
    await carry_out(key, repair, guard, activity_type="reset_gpu")
    with pytest.raises(OrderRefused, match="for another activity"):
        await carry_out(
            key, repair, OrderGuard(required=True, kept=tmp_path / "used.json"), activity_type="reset_gpu", run="x"
        )


@pytest.mark.parametrize(
    "fields",
    [{"activity_type": "prepare_host"}, {"workflow_id": "j-2"}, {"host": "b", "activity_task_queue": "node-b"}],
    ids=str,
)
async def test_an_order_for_something_else_is_refused(key: Path, fields: dict[str, str]) -> None:
    with pytest.raises(OrderRefused, match="the signature is of launch_ranks on a for j-1"):
        await carry_out(key, await signed(key), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["order", "order-signature", "order-key", "data"])
async def test_every_change_is_found(key: Path, name: str) -> None:
    payload = await signed(key)
    if name == "data":
        payload.data = b'{"x":2}'
    else:
        payload.metadata[name] = payload.metadata[name][:-1] + bytes([payload.metadata[name][-1] ^ 1])
    with pytest.raises(OrderRefused):
        await carry_out(key, payload)


async def test_an_order_of_another_key_is_refused(key: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "orders.key"
    signing.create(other)
    with pytest.raises(OrderRefused, match="is not in"):
        await carry_out(key, await signed(other))


async def test_an_expired_order_is_refused_and_a_stop_never_expires(key: Path) -> None:
    guard = OrderGuard(required=True, now=lambda: 4e9)
    with pytest.raises(OrderRefused, match="it expired"):
        await carry_out(key, await signed(key), guard)
    await carry_out(key, await signed(key, activity_type="stop_ranks"), guard, activity_type="stop_ranks")


async def test_an_unsigned_order_is_carried_out_only_while_the_setting_says_so(key: Path) -> None:
    await carry_out(key, ARGUMENT, OrderGuard(required=False))
    with pytest.raises(OrderRefused, match="not signed by control"):
        await carry_out(key, ARGUMENT)
    # A wrong signature is refused all the same.
    forged = Payload(metadata={**ARGUMENT.metadata, "order": b"{}"}, data=ARGUMENT.data)
    with pytest.raises(OrderRefused):
        await carry_out(key, forged, OrderGuard(required=False))


async def test_control_does_not_sign_what_the_database_does_not_confirm(key: Path) -> None:
    async def refused(asked: OrderedStep) -> str | None:
        return f"no {asked.step} on {asked.host} for {asked.workflow_id}"

    assert await SigningOrders(OrderSigner.load(key), refused).encode(context(), ARGUMENT) == ARGUMENT


def test_orders_expire_before_a_host_forgets_the_attempt() -> None:
    """Even if its clock is set two hours back meanwhile."""
    launches = ("prepare_host", "launch_ranks", "launch_elements")
    with pytest.raises(ValidationError):
        NodeSettings(record_keep_hours=4.9)
    assert max(orders.EXPIRES_S[step] for step in launches) + 2 * 3600 < 4.9 * 3600


@pytest.mark.parametrize("hours", [-2, 2])
async def test_a_host_whose_clock_is_two_hours_wrong_carries_out_a_launch(key: Path, hours: int) -> None:
    guard = OrderGuard(required=True, now=lambda: time.time() + hours * 3600)
    await carry_out(key, await signed(key), guard)

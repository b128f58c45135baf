"""Signed orders in Temporal: control signs the argument of a step on a host, and the node worker checks it.

The signature travels in the metadata of the payload. The codec reads it, and notes what it found for the activity that
the payload is the argument of; an interceptor of the node worker asks for that before the activity's code runs.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.converter import ActivitySerializationContext
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from gpu_platform.domain.contracts import node_task_queue
from gpu_platform.identity.signing import Order, OrderRefused, OrderSigner, PinnedKeys, SignedOrder, digest_of
from gpu_platform.lanes import Lane, Stuck
from gpu_platform.node.system import records
from gpu_platform.observability import get_logger
from gpu_platform.temporal.errors import final

ORDER_REFUSED = "OrderRefused"
"""The type of the failure of a step that the host did not carry out."""
EXPIRES_S = {
    "prepare_host": 8_100.0,
    "launch_ranks": 8_100.0,
    "launch_elements": 8_100.0,
    "reset_gpu": 86_400.0,
    "reset_host": 3_600.0,
    "reboot_host": 3_600.0,
}
"""Seconds until an order expires: longer than Temporal tries the step, and shorter than a host keeps the records of an
attempt (``node.record_keep_hours``), by which it refuses to start the attempt twice. Of the 2.25 hours, two are for
clocks that differ: a launch is 15 minutes late at most. The other steps may be repeated for ever: a stop stays right, a
watch and a check change nothing."""

FORGET_EVERY_S = 60.0
"""How often a host forgets used orders that have expired. It may have carried out thousands."""
DISK_S = 10.0
"""A repair waits so long for the disk that its order is written to, and is tried again later."""
_REPAIRS = ("reset_gpu", "reset_host", "reboot_host")

log = get_logger(__name__)


@dataclass(frozen=True)
class OrderedStep:
    """A step that a workflow asks of a host."""

    step: str
    host: str
    workflow_id: str
    workflow_type: str
    argument: bytes
    """JSON."""


Confirm = Callable[[OrderedStep], Awaitable[str | None]]
"""Why the database does not confirm the step. None: it does."""


class SigningOrders:
    """Control's side: signs what ``confirm`` finds in the database. Everything else goes out unsigned."""

    def __init__(self, signer: OrderSigner, confirm: Confirm) -> None:
        self._signer, self._confirm = signer, confirm

    async def encode(self, context: ActivitySerializationContext, payload: Payload) -> Payload:
        """The payload with the signature, if the database confirms the step."""
        asked = OrderedStep(
            step=context.activity_type or "",
            host=(context.activity_task_queue or "").removeprefix(node_task_queue("")),
            workflow_id=context.workflow_id or "",
            workflow_type=context.workflow_type or "",
            argument=payload.data,
        )
        refusal = await self._confirm(asked)
        if refusal is not None:
            # Nobody but an attacker, or a workflow that is older than the database, gets here.
            log.warning(
                "order.not_signed", step=asked.step, host=asked.host, workflow=asked.workflow_id, reason=refusal
            )
            return payload
        lasts_s = EXPIRES_S.get(asked.step)
        expires_at = None if lasts_s is None else time.time() + lasts_s
        signed = self._signer.sign(Order.new(asked.step, asked.host, asked.workflow_id, asked.argument, expires_at))
        of_order = {"order": signed.text, "order-key": signed.key_id.encode(), "order-signature": signed.signature}
        return Payload(metadata={**payload.metadata, **of_order}, data=payload.data)

    def decode(self, context: ActivitySerializationContext, payloads: Sequence[Payload]) -> None:
        """Nothing: a host's answers are no orders."""


@dataclass(frozen=True)
class _Found:
    order: Order | None = None
    """None: the argument has no signature."""
    refusal: str = ""


_found: ContextVar[_Found | None] = ContextVar("found", default=None)
"""What came with the argument of the activity that this task runs. Temporal runs each activity in a task of its own,
and decodes its argument first."""


class CheckingOrders:
    """A host's side: remembers what it found, for :class:`OrderGuard`."""

    def __init__(self, host: str, keys: PinnedKeys) -> None:
        self._host, self._keys = host, keys

    async def encode(self, context: ActivitySerializationContext, payload: Payload) -> Payload:
        """The payload as it is: a host gives no orders."""
        return payload

    def decode(self, context: ActivitySerializationContext, payloads: Sequence[Payload]) -> None:
        """Check the argument of an activity. What is decoded later in its task (heartbeats) is no order."""
        if _found.get() is None:
            try:
                _found.set(_Found(self._check(context, payloads)))
            except OrderRefused as refused:
                _found.set(_Found(refusal=refused.message))

    def _check(self, context: ActivitySerializationContext, payloads: Sequence[Payload]) -> Order | None:
        if len(payloads) != 1:
            raise OrderRefused("an order has one argument")
        [payload] = payloads
        if "order" not in payload.metadata:
            return None
        text, key_id, signature = (payload.metadata.get(f"order{part}", b"") for part in ("", "-key", "-signature"))
        order = self._keys.check(SignedOrder(text, key_id.decode("ascii", "replace"), signature))
        here = (context.activity_type, self._host, context.workflow_id, digest_of(payload.data))
        if here != (order.step, order.host, order.workflow_id, order.digest):
            raise OrderRefused(
                f"the signature is of {order.step} on {order.host} for {order.workflow_id}, or of another argument"
            )
        return order


class OrderGuard(Interceptor):
    """Runs an activity of a host only if its order is signed, has not expired and was not used by another activity.

    ``required`` False: unsigned orders are carried out, too: see ``node.require_signed_orders``. ``kept``: the file in
    which used orders of repairs outlast this process. The records of an attempt do that for the other orders.
    """

    def __init__(self, *, required: bool, kept: Path | None = None, now: Callable[[], float] = time.time) -> None:
        self._required, self._now, self._kept = required, now, kept
        self._disk = Lane("used-orders", patience_s=DISK_S)
        self._used: dict[str, tuple[str, str, float]] = {}
        """Nonce -> run and activity that it belongs to, and when it expires."""
        self._of_repairs: set[str] = set()
        """Nonces that are on disk."""
        self._next_look = 0.0
        if kept is not None and (record := records.read_record(str(kept))) is not None:
            self._used = {nonce: (run, step, until) for nonce, (run, step, until) in record["used"].items()}
            self._of_repairs = set(self._used)
        self._to_keep = set(self._of_repairs)

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Called by Temporal's worker."""
        return _Guarded(next, self)

    async def admit(self) -> None:
        """Raise :class:`OrderRefused` unless the activity of this task may run, and :class:`Stuck` if that cannot be
        written down because the disk hangs."""
        found = _found.get() or _Found(refusal="it has no argument")
        if found.refusal:
            raise OrderRefused(found.refusal)
        if found.order is None:
            if self._required:
                raise OrderRefused("it is not signed by control")
            return
        if found.order.expires_at is not None:
            await self._use(found.order, found.order.expires_at)

    async def _use(self, order: Order, expires_at: float) -> None:
        now, info, nonce = self._now(), activity.info(), order.nonce
        if now > expires_at:
            raise OrderRefused(f"it expired {now - expires_at:.0f} s ago (do the clocks of the hosts agree?)")
        # Temporal tries one activity again with the same order; another activity must have its own.
        if now > self._next_look:
            self._next_look = now + FORGET_EVERY_S
            self._used = {used: seen for used, seen in self._used.items() if seen[2] >= now}
        mine = (info.workflow_run_id or "", info.activity_id, expires_at)
        if self._used.setdefault(nonce, mine) != mine:
            raise OrderRefused("it was carried out before, for another activity")
        if self._kept is not None and order.step in _REPAIRS and nonce not in self._of_repairs:
            self._to_keep.add(nonce)
            kept = {one: self._used[one] for one in self._to_keep & self._used.keys()}
            await self._disk.run(partial(records.write_record, str(self._kept), {"used": kept}, durable=True))
            self._of_repairs = {nonce, *(self._of_repairs & self._used.keys())}


class _Guarded(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, guard: OrderGuard) -> None:
        super().__init__(next)
        self._guard = guard

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        try:
            await self._guard.admit()
        except Stuck as stuck:
            raise ApplicationError(f"the order cannot be written down: the disk of the host hangs ({stuck})") from stuck
        except OrderRefused as refused:
            info = activity.info()
            log.error("order.refused", step=info.activity_type, workflow=info.workflow_id, reason=refused.message)
            message = f"the host refused {info.activity_type}: {refused.message}"
            raise final(message, ORDER_REFUSED) from refused
        return await super().execute_activity(input)

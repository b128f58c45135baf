"""The payload codec: everything that the platform writes into Temporal is sealed, and orders to hosts are signed.

There are two kinds of keys, from one key ring. What only the control plane reads is sealed with the keys of
``control``. Arguments and results of steps on a host, what a host sends, and the answer to its report, are sealed with
the keys of its task queue, ``node-<host>``; the host has no others. So a host that somebody broke into reads nothing of
other hosts' jobs.

A payload belongs to its workflow: copied into another workflow it cannot be opened.

What gets smaller by it is compressed first. The length of a payload then tells more about its content than before. It
tells nothing to those who choose a part of the content, because secrets of other people are never in the same payload.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Protocol

from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    ActivitySerializationContext,
    PayloadCodec,
    SerializationContext,
    WithSerializationContext,
    WorkflowSerializationContext,
)

from gpu_platform.domain.contracts import host_of_report, node_task_queue
from gpu_platform.domain.errors import CannotStart
from gpu_platform.identity.key_ring import CannotOpen, KeyRing
from gpu_platform.observability import get_logger

CONTROL_SCOPE = "control"
"""The scope of the keys that the control plane alone has."""
ENCODING = b"binary/encrypted"
REFUSED = b"binary/refused"
REPLAYED = "replayed"
"""In the metadata of a payload that a workflow made while it was replayed. Temporal has the real one in the history."""
_NODE = "node-"
_COMPRESSION = b"zlib"
_COMPRESSED_FROM = 256
"""Bytes. Shorter payloads gain nothing worth the time."""
_LEVEL = 1
_LARGEST = 16 << 20
"""Bytes of a payload after decompression. Without this limit, whoever holds the keys of one host could fill the memory
of the control plane with a few kilobytes. Temporal takes 2 MiB."""

log = get_logger(__name__)


class PayloadsOfOrders(Protocol):
    """Signs the arguments of steps on hosts, or checks the signatures."""

    async def encode(self, context: ActivitySerializationContext, payload: Payload) -> Payload:
        """The argument of a step that goes to a host."""
        ...

    def decode(self, context: ActivitySerializationContext, payloads: Sequence[Payload]) -> None:
        """What came with a step that this host may carry out."""
        ...


class SealedPayloads(PayloadCodec, WithSerializationContext):
    """Seals and opens payloads with a key ring.

    ``home``: the scope of what this process writes outside a step on a host. ``accepts_plain``: payloads that are not
    sealed are taken as they are: the workflow began before there was a key ring.
    """

    def __init__(
        self,
        ring: KeyRing | None,
        *,
        home: str = CONTROL_SCOPE,
        accepts_plain: bool = False,
        orders: PayloadsOfOrders | None = None,
        context: SerializationContext | None = None,
        scoped: dict[str, KeyRing] | None = None,
    ) -> None:
        self._ring, self._home, self._accepts_plain, self._orders = ring, home, accepts_plain, orders
        self._context = context
        self._scoped = {} if scoped is None else scoped

    def with_context(self, context: SerializationContext) -> SealedPayloads:
        """The codec for payloads of one workflow or activity."""
        return SealedPayloads(
            self._ring,
            home=self._home,
            accepts_plain=self._accepts_plain,
            orders=self._orders,
            context=context,
            scoped=self._scoped,
        )

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Sign what is an order, then seal all."""
        host_step = self._host_step()
        if host_step is not None and self._orders is not None:
            # A replay makes all orders of a workflow once more. To confirm hundreds of them in the database took longer
            # than a workflow task may take, so an array was replayed for ever.
            payloads = [
                payload if REPLAYED in payload.metadata else await self._orders.encode(host_step, payload)
                for payload in payloads
            ]
        if self._ring is None:
            return list(payloads)
        scope = self._scope()
        return [self._seal(payload, scope) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Open all, then check what is an order. Raises :class:`CannotOpen`."""
        opened = [self._opened(payload) for payload in payloads]
        host_step = self._host_step()
        if host_step is not None and self._orders is not None:
            self._orders.decode(host_step, opened)
        return opened

    def _opened(self, payload: Payload) -> Payload:
        """The payload opened. In a workflow, one that cannot be opened becomes one that nothing reads.

        Temporal drops a signal whose argument it cannot read, and an answer of a host becomes a failure of that host.
        An error here would stop the whole workflow, so that anybody who writes into Temporal could stop any job with
        one signal, and a host each gang and array with one answer.
        """
        try:
            return self._open(payload)
        except CannotOpen as error:
            # Hosts run no workflows: what they read here is the answer to a question that they asked.
            of_workflow = isinstance(self._context, WorkflowSerializationContext) or self._host_step() is not None
            if self._home != CONTROL_SCOPE or not of_workflow:
                raise
            log.warning("payload.refused", workflow=self._workflow_id(), reason=error.message)
            return Payload(metadata={"encoding": REFUSED}, data=error.message.encode())

    def _seal(self, payload: Payload, scope: str) -> Payload:
        workflow = self._workflow_id()
        content, compression = _compressed(payload.SerializeToString())
        sealed = self._keys(scope).seal(content, associated=_belongs_to(scope, workflow, compression))
        metadata = {
            "encoding": ENCODING,
            "encryption-key-id": KeyRing.key_id(sealed).encode(),
            "scope": scope.encode(),
            "workflow": workflow.encode(),
            **({"compression": compression} if compression else {}),
        }
        return Payload(metadata=metadata, data=sealed)

    def _open(self, payload: Payload) -> Payload:
        metadata = payload.metadata
        if metadata.get("encoding") != ENCODING:
            if self._accepts_plain or self._ring is None:
                return payload
            raise CannotOpen(
                "this payload in Temporal is not sealed, so anybody may have written it; workflows that began without "
                "a key ring need `temporal.plain_payloads: accept` until they have ended"
            )
        if self._ring is None:
            raise CannotOpen("this payload is sealed, and this process has no key ring: set `key_ring`")
        scope, workflow = (metadata.get(name, b"").decode(errors="replace") for name in ("scope", "workflow"))
        host_step = self._host_step()
        if host_step is not None and scope != host_step.activity_task_queue:
            raise CannotOpen(f"a step on {host_step.activity_task_queue} came with what {scope} sealed")
        here = self._workflow_id()
        if workflow and here and workflow != here:
            raise CannotOpen(f"a payload of workflow {workflow} was found in workflow {here}")
        compression = metadata.get("compression", b"")
        opened = self._keys(scope).open(payload.data, associated=_belongs_to(scope, workflow, compression))
        return Payload.FromString(_decompressed(opened, compression))

    def _keys(self, scope: str) -> KeyRing:
        assert self._ring is not None
        keys = self._scoped.get(scope)
        if keys is None:
            if scope != CONTROL_SCOPE and not scope.startswith(_NODE):
                raise CannotOpen(f"nothing in Temporal is sealed for {scope!r}")
            try:
                keys = self._scoped[scope] = self._ring.scoped(scope)
            except CannotStart as error:
                raise CannotOpen(f"it is sealed for {scope}: {error.message}") from error
        return keys

    def _scope(self) -> str:
        """Whose keys seal what is written now: those of the host that reads it, or this process's own."""
        if (host_step := self._host_step()) is not None:
            return str(host_step.activity_task_queue)
        host = host_of_report(self._workflow_id())
        return self._home if host is None else node_task_queue(host)

    def _host_step(self) -> ActivitySerializationContext | None:
        """The step on a host that the payloads are of. None: they are of something else."""
        return step_on_host(self._context)

    def _workflow_id(self) -> str:
        context = self._context
        if isinstance(context, (ActivitySerializationContext, WorkflowSerializationContext)):
            return context.workflow_id or ""
        return ""


def step_on_host(context: SerializationContext | None) -> ActivitySerializationContext | None:
    """The step on a host that payloads with this context are of. None: they are of something else."""
    if isinstance(context, ActivitySerializationContext) and not context.is_local:
        return context if (context.activity_task_queue or "").startswith(_NODE) else None
    return None


def _belongs_to(scope: str, workflow: str, compression: bytes) -> bytes:
    parts = (b"temporal", scope.encode(), workflow.encode())
    return b"\0".join((*parts, compression) if compression else parts)


def _compressed(content: bytes) -> tuple[bytes, bytes]:
    """What is sealed, and how it is compressed. Empty: it is not."""
    if _COMPRESSED_FROM <= len(content) <= _LARGEST:
        smaller = zlib.compress(content, _LEVEL)
        if len(smaller) < len(content):
            return smaller, _COMPRESSION
    return content, b""


def _decompressed(sealed: bytes, compression: bytes) -> bytes:
    if not compression:
        return sealed
    if compression != _COMPRESSION:
        raise CannotOpen(f"it is compressed with {compression[:20]!r}, which this release does not know")
    inflating = zlib.decompressobj()
    try:
        content = inflating.decompress(sealed, _LARGEST)
    except zlib.error as error:
        raise CannotOpen(f"it cannot be decompressed: {error}") from error
    if not inflating.eof:
        raise CannotOpen(f"it is cut off, or larger than {_LARGEST >> 20} MiB")
    return content

"""The data converter of every client and worker of ours: pydantic models, sealed by the payload codec."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import (
    DataConverter,
    DefaultFailureConverter,
    DefaultFailureConverterWithEncodedAttributes,
    PayloadConverter,
    SerializationContext,
)
from temporalio.exceptions import ApplicationError

from gpu_platform.identity.key_ring import KeyRing
from gpu_platform.settings import Settings
from gpu_platform.temporal.payloads.codec import CONTROL_SCOPE, REPLAYED, PayloadsOfOrders, SealedPayloads, step_on_host
from gpu_platform.temporal.payloads.unreadable import UnreadablePayload

_CONVERTERS = PydanticPayloadConverter().converters
UNREADABLE_FAILURE = "UnreadableFailure"


class SharedPydanticConverter(PydanticPayloadConverter):
    """Temporal's converter for pydantic models, whose parts are made once.

    With a codec, the SDK makes a new converter for each payload, several times. Each would begin with an empty cache of
    pydantic's validators: that took a tenth of the control worker's CPU.
    """

    def __init__(self) -> None:
        self.converters = _CONVERTERS

    def to_payloads(self, values: Sequence[Any]) -> list[Payload]:
        """As Temporal's. Payloads that a workflow makes while it is replayed are marked: Temporal has the real ones."""
        payloads = super().to_payloads(values)
        if workflow.in_workflow() and workflow.unsafe.is_replaying():
            for payload in payloads:
                payload.metadata[REPLAYED] = b""
        return payloads


class ControlConverter(SharedPydanticConverter):
    """Of the control plane. An answer of a host that nobody can read becomes :class:`UnreadablePayload`."""

    of_host_step = False

    def with_context(self, context: SerializationContext) -> ControlConverter:
        """The converter for the payloads of one workflow or step."""
        return _OF_HOST_STEP if step_on_host(context) is not None else _OF_ANYTHING

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """As Temporal's; see above."""
        if not self.of_host_step:
            return super().from_payloads(payloads, type_hints)
        try:
            return super().from_payloads([_plain(payload) for payload in payloads], type_hints)
        except Exception as error:  # whatever a host wrote, its error must not stop the workflow
            return [UnreadablePayload(f"{type(error).__name__}: {error}"[:500])] * len(payloads)


class _OfHostStep(ControlConverter):
    of_host_step = True


_OF_ANYTHING, _OF_HOST_STEP = ControlConverter(), _OfHostStep()
_UNUSUAL = re.compile(rb"\\u0000|\\ud[89a-f]|[0-9]{16}|NaN|Infinity|[0-9]e", re.IGNORECASE)
_LARGEST_NUMBER = 2**53


def _plain(payload: Payload) -> Payload:
    """The payload without what a database or another host cannot take: NUL, halves of surrogates, endless numbers."""
    if not _UNUSUAL.search(payload.data):
        return payload
    return Payload(metadata=payload.metadata, data=json.dumps(_cleaned(json.loads(payload.data))).encode())


def _cleaned(value: Any) -> Any:
    match value:
        case str():
            return value.replace("\0", "").encode(errors="replace").decode()
        case float() if not math.isfinite(value):
            return 0.0
        case bool() | None:
            return value
        case int() | float():
            return max(-_LARGEST_NUMBER, min(value, _LARGEST_NUMBER))
        case list():
            return [_cleaned(item) for item in value]
        case dict():
            return {_cleaned(name): _cleaned(item) for name, item in value.items()}
        case _:
            return value


class _Failures(DefaultFailureConverter):
    """A failure of a step that nobody can read is a failure all the same: an error here would stop the workflow."""

    def from_failure(self, failure: Failure, payload_converter: PayloadConverter) -> BaseException:
        try:
            return super().from_failure(failure, payload_converter)
        except Exception as error:
            return ApplicationError(f"a failure that nobody can read: {type(error).__name__}", type=UNREADABLE_FAILURE)


class _SealedFailures(_Failures, DefaultFailureConverterWithEncodedAttributes):
    """Messages and stack traces of failures hold users' data, too."""


def data_converter(
    ring: KeyRing | None,
    *,
    home: str = CONTROL_SCOPE,
    accepts_plain: bool = False,
    orders: PayloadsOfOrders | None = None,
) -> DataConverter:
    """The data converter with these keys; see :class:`SealedPayloads`. Without any: pydantic models as they are."""
    converter = ControlConverter if home == CONTROL_SCOPE else SharedPydanticConverter
    if ring is None and orders is None:
        return DataConverter(payload_converter_class=converter, failure_converter_class=_Failures)
    codec = SealedPayloads(ring, home=home, accepts_plain=accepts_plain, orders=orders)
    return DataConverter(
        payload_converter_class=converter,
        payload_codec=codec,
        failure_converter_class=_Failures if ring is None else _SealedFailures,
    )


def converter_of(
    settings: Settings, *, home: str = CONTROL_SCOPE, orders: PayloadsOfOrders | None = None
) -> DataConverter:
    """The data converter of a process, by its settings."""
    return data_converter(
        ring_of(settings), home=home, accepts_plain=settings.temporal.plain_payloads == "accept", orders=orders
    )


def ring_of(settings: Settings) -> KeyRing | None:
    """The key ring of the settings. None: nothing is sealed."""
    return None if settings.key_ring is None else KeyRing.load(settings.key_ring)

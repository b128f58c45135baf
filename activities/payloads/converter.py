"""The data converter of every client and worker of ours: pydantic models, sealed by the payload codec."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import (
    DataConverter,
    DefaultFailureConverter,
    DefaultFailureConverterWithEncodedAttributes,
)

from activities.payloads.codec import CONTROL_SCOPE, REPLAYED, PayloadsOfOrders, SealedPayloads
from gpu_platform.identity.key_ring import KeyRing
from gpu_platform.settings import Settings

_CONVERTERS = PydanticPayloadConverter().converters


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


def data_converter(
    ring: KeyRing | None,
    *,
    home: str = CONTROL_SCOPE,
    accepts_plain: bool = False,
    orders: PayloadsOfOrders | None = None,
) -> DataConverter:
    """The data converter with these keys; see :class:`SealedPayloads`. Without any: pydantic models as they are."""
    if ring is None and orders is None:
        return DataConverter(payload_converter_class=SharedPydanticConverter)
    codec = SealedPayloads(ring, home=home, accepts_plain=accepts_plain, orders=orders)
    return DataConverter(
        payload_converter_class=SharedPydanticConverter,
        payload_codec=codec,
        # Messages and stack traces of failures hold users' data, too.
        failure_converter_class=DefaultFailureConverter
        if ring is None
        else DefaultFailureConverterWithEncodedAttributes,
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

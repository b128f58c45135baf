"""The data converter of every client and worker of ours: pydantic models, sealed by the payload codec."""

from __future__ import annotations

from temporalio.contrib.pydantic import PydanticPayloadConverter, pydantic_data_converter
from temporalio.converter import DataConverter, DefaultFailureConverterWithEncodedAttributes

from activities.payloads.codec import CONTROL_SCOPE, PayloadsOfOrders, SealedPayloads
from gpu_platform.identity.key_ring import KeyRing
from gpu_platform.settings import Settings


def data_converter(
    ring: KeyRing | None,
    *,
    home: str = CONTROL_SCOPE,
    accepts_plain: bool = False,
    orders: PayloadsOfOrders | None = None,
) -> DataConverter:
    """The data converter with these keys; see :class:`SealedPayloads`. Without any: pydantic models as they are."""
    if ring is None and orders is None:
        return pydantic_data_converter
    codec = SealedPayloads(ring, home=home, accepts_plain=accepts_plain, orders=orders)
    return DataConverter(
        payload_converter_class=PydanticPayloadConverter,
        payload_codec=codec,
        # Messages and stack traces of failures hold users' data, too.
        failure_converter_class=pydantic_data_converter.failure_converter_class
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

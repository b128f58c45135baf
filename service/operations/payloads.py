"""Temporal's payloads in clear, for the Temporal UI and its command line: the "remote codec" protocol.

Reference: Temporal's documentation, "Codec Server"; ``codec-server/protocol.md`` of its Go samples. Only decoding is
offered. A payload of ours is sealed for one workflow, and a request to encode does not name one.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, EncodedBytes, EncoderProtocol, Field
from temporalio.api.common.v1 import Payload

from gpu_platform.domain.errors import CannotOpen
from gpu_platform.identity.key_ring import KeyRing
from gpu_platform.temporal.payloads.codec import ENCODING, SealedPayloads
from service.access.masking import SECRET

MOST_PAYLOADS = 1000
_ENVIRONMENTS = frozenset({"env", "environ", "environment"})
"""Fields with environments, in every message of ours."""
_SHOWN_METADATA = frozenset({"encoding", "messageType"})
"""What else is in the metadata of a message, the signature of an order, is of no use to a reader."""


class _Base64(EncoderProtocol):
    """Both alphabets, with or without padding, as protobuf's JSON has it."""

    @classmethod
    def decode(cls, data: bytes) -> bytes:
        return base64.b64decode(
            data + b"=" * (-len(data) % 4), altchars=b"-_" if set(data) & set(b"-_") else None, validate=True
        )

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return base64.b64encode(value)

    @classmethod
    def get_json_format(cls) -> str:
        return "base64"


Base64 = Annotated[bytes, EncodedBytes(encoder=_Base64)]


class WirePayload(BaseModel):
    """Temporal's ``Payload`` as JSON: bytes are base64 texts. Fields of newer releases go through unread."""

    model_config = ConfigDict(extra="allow")

    metadata: dict[str, Base64] = {}
    data: Base64 | None = None

    @classmethod
    def of(cls, payload: Payload) -> WirePayload:
        """A payload as it is shown."""
        shown = {name: value for name, value in payload.metadata.items() if name in _SHOWN_METADATA}
        return cls.model_construct(metadata=shown, data=payload.data)

    @property
    def workflow(self) -> str | None:
        """The workflow that it says it belongs to. None: it is not sealed."""
        if self.metadata.get("encoding") != ENCODING:
            return None
        return self.metadata.get("workflow", b"").decode(errors="replace")


class WirePayloads(BaseModel):
    """Temporal's ``Payloads`` as JSON."""

    payloads: Annotated[list[WirePayload], Field(max_length=MOST_PAYLOADS)] = []


def workflows_of(payloads: Iterable[WirePayload]) -> list[str]:
    """The workflows whose payloads these are."""
    return sorted({found for payload in payloads if (found := payload.workflow) is not None})


async def in_clear(ring: KeyRing | None, payloads: WirePayloads) -> WirePayloads:
    """Each payload opened, without the values of environments. What cannot be opened stays as it is."""
    codec = SealedPayloads(ring, accepts_plain=True)
    return WirePayloads.model_construct(payloads=[await _in_clear(codec, payload) for payload in payloads.payloads])


async def _in_clear(codec: SealedPayloads, payload: WirePayload) -> WirePayload:
    if payload.workflow is None:
        return payload
    try:
        [opened] = await codec.decode([Payload(metadata=payload.metadata, data=payload.data or b"")])
    except CannotOpen:
        return payload
    if opened.metadata.get("encoding", b"").startswith(b"json/"):
        opened.data = _without_environments(opened.data)
    return WirePayload.of(opened)


def _without_environments(data: bytes) -> bytes:
    try:
        return json.dumps(_masked(json.loads(data)), separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        return json.dumps(SECRET).encode()


def _masked(value: Any) -> Any:
    if isinstance(value, list):
        return [_masked(one) for one in value]
    if isinstance(value, dict):
        return {name: _hidden(one) if name in _ENVIRONMENTS else _masked(one) for name, one in value.items()}
    return value


def _hidden(value: Any) -> Any:
    return dict.fromkeys(value, SECRET) if isinstance(value, dict) else value and SECRET

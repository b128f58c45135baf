"""Payloads are compressed when that helps, those from before stay readable, and none fills the memory."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.converter import WorkflowSerializationContext

from gpu_platform.domain.errors import CannotOpen
from gpu_platform.identity import key_ring
from gpu_platform.identity.key_ring import KeyRing
from gpu_platform.temporal.payloads import codec as module
from gpu_platform.temporal.payloads.codec import SealedPayloads

TEXT = b'{"command":["true"],"namespace":"default","user":"ada"}' * 20


@pytest.fixture
def codec(tmp_path: Path) -> SealedPayloads:
    key_ring.create(tmp_path / "ring.json")
    return SealedPayloads(KeyRing.load(tmp_path / "ring.json"))


def payload(data: bytes) -> Payload:
    return Payload(metadata={"encoding": b"json/plain"}, data=data)


@pytest.mark.parametrize("data", [TEXT, b"{}", b"", os.urandom(2000)], ids=["long", "short", "empty", "random"])
async def test_it_is_compressed_only_if_that_makes_it_smaller(codec: SealedPayloads, data: bytes) -> None:
    [sealed] = await codec.encode([payload(data)])
    assert ("compression" in sealed.metadata) is (data is TEXT)
    assert len(sealed.data) < len(data) / 4 or data is not TEXT
    assert await codec.decode([sealed]) == [payload(data)]


async def test_what_was_sealed_before_stays_readable(codec: SealedPayloads) -> None:
    with patch.object(module, "_COMPRESSED_FROM", 1 << 30):
        [sealed] = await codec.encode([payload(TEXT)])
    assert "compression" not in sealed.metadata
    assert await codec.decode([sealed]) == [payload(TEXT)]


@pytest.mark.parametrize("compression", [b"", b"zlib", b"other"])
async def test_nobody_changes_how_it_is_read(codec: SealedPayloads, compression: bytes) -> None:
    for data in (TEXT, b"{}"):
        [sealed] = await codec.encode([payload(data)])
        if sealed.metadata.get("compression", b"") != compression:
            sealed.metadata["compression"] = compression
            with pytest.raises(CannotOpen):
                await codec.decode([sealed])


async def test_a_few_kilobytes_do_not_become_a_gigabyte(codec: SealedPayloads) -> None:
    """A host seals with keys of its own, and control opens that."""
    with patch.object(module, "_LARGEST", 64 << 20):
        [bomb] = await codec.encode([payload(b" " * (17 << 20))])
    assert len(bomb.data) < 100_000
    with pytest.raises(CannotOpen, match="larger than 16 MiB"):
        await codec.decode([bomb])
    # In a workflow it is dropped like any other payload that cannot be read.
    [dropped] = await codec.with_context(WorkflowSerializationContext("default", "")).decode([bomb])
    assert dropped.metadata["encoding"] == module.REFUSED

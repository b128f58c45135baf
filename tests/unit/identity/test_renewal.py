"""A certificate that cannot be renewed is logged and counted, and tried again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from gpu_platform.domain.errors import Unavailable
from gpu_platform.identity import renewal
from gpu_platform.identity.certificates import CertificateFiles
from gpu_platform.identity.enrolment import Issued
from tests.support.waiting import eventually


async def test_a_renewal_that_fails_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def away(_: bytes) -> Issued:
        raise Unavailable("no service answers")

    def failed() -> float:
        name = "gpu_platform_certificate_renewals_failed_total"
        return REGISTRY.get_sample_value(name, {"name": "node/x"}) or 0.0

    files = CertificateFiles(*(tmp_path / name for name in ("own.pem", "own.pem", "ca.pem")))
    keeping = asyncio.create_task(renewal.keep_renewed(files, away, "node/x"))
    await eventually(lambda: failed() >= 2, "two tries")
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    assert "no service answers" in capsys.readouterr().out

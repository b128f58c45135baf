"""A full disk of the host is not the fault of uploaded code."""

from __future__ import annotations

import errno
import io
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpu_platform.client.calls import UPLOAD_SIZE_HEADER
from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.node.environments import unpacking
from tests.support.hosts_rig import HostRig
from workers.node.service_uploads import ServiceUploads

PART = bytes(300_000)


def test_to_unpack_onto_a_full_disk_is_another_end_than_a_bad_archive(small_disk: Path) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo("large")
        entry.size = 8 << 20
        tar.addfile(entry, io.BytesIO(bytes(entry.size)))
    command = [sys.executable, "-I", "-S", unpacking.__file__, str(len(archive.getvalue())), "10"]
    done = subprocess.run(command, input=archive.getvalue(), cwd=small_disk, capture_output=True, check=False)
    assert done.returncode == unpacking.NOT_WRITTEN
    assert int(done.stderr.split()[0]) == errno.ENOSPC


class Identity:
    """What a host shows to the service."""

    def headers(self) -> dict[str, str]:
        return {}


def test_a_part_that_is_half_written_is_not_gone_on_with(tmp_path: Path) -> None:
    """It would ask for a place where no part begins, and the service would say that there is no such code."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.params["offset"])
        return httpx.Response(200, content=PART, headers={UPLOAD_SIZE_HEADER: str(2 * len(PART))})

    rig = HostRig(tmp_path / "state")
    identity: Any = Identity()
    with (
        open("/dev/full", "r+b", buffering=0) as file,
        httpx.Client(transport=httpx.MockTransport(answer)) as http,
        pytest.raises(
            HostUnavailable,
            match=r"box cannot keep the job's code: the disk of .* is full \(No space left on device\): make",
        ),
    ):
        ServiceUploads(rig.settings, identity)._fetch(http, "http://service", rig.plan("true"), file)
    assert asked == ["0"]
    rig.worker.close()


def test_code_takes_no_room_that_is_kept_for_records_of_what_runs(small_disk: Path) -> None:
    """It is on the disk twice while it is unpacked."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.params["offset"])
        return httpx.Response(200, content=PART, headers={UPLOAD_SIZE_HEADER: str(2 * len(PART))})

    rig = HostRig(small_disk, disk_reserve_mib=2)
    identity: Any = Identity()
    with (
        open(small_disk / "upload.tar", "w+b") as file,
        httpx.Client(transport=httpx.MockTransport(answer)) as http,
        pytest.raises(HostUnavailable, match=r"2 MiB are kept for others, and 2 MiB are needed\): make room there"),
    ):
        ServiceUploads(rig.settings, identity)._fetch(http, "http://service", rig.plan("true"), file)
    assert asked == ["0"]
    assert (small_disk / "upload.tar").stat().st_size == 0
    rig.worker.close()

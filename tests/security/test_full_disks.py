"""A job fills the disk of the checkpoints: it fails with a clear reason, and nobody else does."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_platform.node.system import paths, records
from tests.security.attacks import attack
from tests.support.hosts_rig import HostRig
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("jails")

FILL = """
with open(os.environ["GPU_PLATFORM_CHECKPOINT_DIR"] + "/checkpoint", "wb", buffering=0) as file:
    while True:
        file.write(bytes(1 << 16))
"""

WORK = """
while not os.path.exists(GO):
    time.sleep(0.01)
print("to the end")
"""


@pytest.fixture
def checkpoints() -> Iterator[Path]:
    """A real ext4 of its own for checkpoints, which root makes in a file."""
    path = Path("/var/lib/gpu-platform-test-checkpoints")
    image = path.with_suffix(".img")
    path.mkdir(exist_ok=True)
    with image.open("wb") as file:
        file.truncate(16 << 20)
    try:
        for command in (["mkfs.ext4", "-q", "-F", str(image)], ["mount", "-o", "loop", str(image), str(path)]):
            if subprocess.run(command, capture_output=True, check=False).returncode != 0:
                pytest.skip(f"{command[0]} does not work here")
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False)
        path.rmdir()
        image.unlink()


async def test_a_job_that_fills_the_disk_of_checkpoints_fails_alone(tmp_path: Path, checkpoints: Path) -> None:
    host = HostRig(tmp_path / "state", isolation="required", checkpoint_root=checkpoints)
    try:
        other = attack(host, WORK.replace("GO", 'os.environ["GPU_PLATFORM_CHECKPOINT_DIR"] + "/go"'))
        host.launch(other)
        hog = attack(host, FILL, gpu=1)
        host.launch(hog)
        failed = (await host.watch(hog)).first_failure
        assert failed is not None
        assert failed.failure is not None
        assert "exited with code 1, and the disk of its checkpoints (" in failed.failure.message
        assert "is full: make room there" in failed.failure.message
        assert failed.failure.kind == "user"
        assert host.log(hog).splitlines()[-1].startswith("gpu-platform: the disk of its checkpoints (")
        # The records are elsewhere, so the host goes on: it starts jobs, and knows the end of each.
        (paths.checkpoint_dir(checkpoints, other.key) / "go").touch()
        assert (await host.watch(other)).first_failure is None
        assert host.log(other) == "to the end\n"
        third = attack(host, "print('starts')")
        host.launch(third)
        assert (await host.watch(third)).first_failure is None
        await host.stop(hog.key)
        assert records.read_record(str(host.worker.local.rank(hog.key, 0).directory / records.EXIT)) is not None
        await eventually(lambda: not host.processes(hog.key), "nothing of the first is left")
    finally:
        await host.aclose()

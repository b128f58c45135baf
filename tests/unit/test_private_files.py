"""Secret files have one writer: whole, on disk, for their owner only."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest

from gpu_platform import private_files
from gpu_platform.client import credentials
from gpu_platform.identity.ca import CertificateAuthority
from gpu_platform.private_files import make_private_directory, write_file, write_new_file

PACKAGES = [
    Path(__file__).parents[2] / name for name in ("gpu_platform", "activities", "workflows", "service", "workers")
]
_MAKES_A_SECRET_FILE = re.compile(r"O_EXCL|chmod\(0o600\)")
_CHANGES_THE_MODE_ONLY = {"workers/local/token.py"}
_WRITES_TO_MEMORY = {"gpu_platform/node/isolation/secret_files.py"}
"""For the account of a job, on a file system that has no disk."""
_UNPACKS = {
    "gpu_platform/node/environments/unpacking.py",
    "gpu_platform/node/isolation/image_root.py",
    "gpu_platform/cli/jobs/received_archive.py",
}
"""Files of a job, in a tree that somebody else filled: they may replace nothing, and no link may lead them away."""
_PROGRAMS_IN_A_NEW_DIRECTORY = {"gpu_platform/node/processes/mpi_gang.py", "gpu_platform/steps/runner.py"}
"""For one run of a rank, in a directory that ``tempfile`` made for this account alone."""
_COMMANDS_FOR_ALL = {"gpu_platform/cli/slurm/compat.py"}
"""Programs without a secret, which everybody may run."""
_NOTES_OF_A_PROCESS = {"workers/poison.py"}
"""Which steps are under way, without a secret: mapped into memory, and of no use after a power cut."""
_OTHERS = {
    *(_CHANGES_THE_MODE_ONLY | _WRITES_TO_MEMORY | _UNPACKS),
    *(_PROGRAMS_IN_A_NEW_DIRECTORY | _COMMANDS_FOR_ALL | _NOTES_OF_A_PROCESS),
}


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files and directories that were synced, in order."""
    paths: list[str] = []
    sync = os.fsync

    def count(descriptor: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr(private_files.os, "fsync", count)
    return paths


def test_a_private_directory_is_its_owners_and_on_disk(tmp_path: Path, synced: list[str]) -> None:
    directory = tmp_path / "state" / "keys"
    make_private_directory(directory)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert set(synced) == {str(tmp_path), str(tmp_path / "state")}, "each holds the name of a directory that is new"
    directory.chmod(0o750)
    make_private_directory(directory)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o750
    assert len(synced) == 2, "nothing was made, so nothing is synced"


def test_a_secret_file_is_its_owners_and_on_disk(tmp_path: Path, synced: list[str]) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    path.chmod(0o644)
    write_file(path, b"new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [Path(name).name.startswith(".token.") for name in synced] == [True, False], "the file, then its folder"
    assert os.listdir(tmp_path) == ["token"]
    assert not write_new_file(path, b"newer")
    assert path.read_text() == "new"


def test_each_step_of_a_rotation_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def names() -> dict[str, int]:
        return {entry.name: entry.inode() for entry in os.scandir(tmp_path)}

    kept: dict[str, int] = {}
    sync = os.fsync

    def keep(descriptor: int) -> None:
        sync(descriptor)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            kept.clear()
            kept.update(names())

    monkeypatch.setattr(private_files.os, "fsync", keep)
    authority = CertificateAuthority.init(tmp_path)
    for step in ("trust", "sign", "retire"):
        authority.rotate(step)
        assert kept == names(), f"after {step} a power cut leaves what was before"


def test_clients_keep_tokens_by_the_same_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    credentials.write_note("https://gpu.example:8700", {"access_token": "secret"})
    path = credentials.note_path("https://gpu.example:8700")
    assert credentials.read_note("https://gpu.example:8700") == {"access_token": "secret"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_there_is_no_second_writer() -> None:
    found = [
        file.relative_to(package.parent).as_posix()
        for package in PACKAGES
        for file in package.rglob("*.py")
        if _MAKES_A_SECRET_FILE.search(file.read_text())
    ]
    assert set(found) == {"gpu_platform/private_files.py", *_OTHERS}

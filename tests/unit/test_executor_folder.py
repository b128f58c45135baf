"""Results are code to whoever unpickles them: what an executor refuses to read."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import gpu_platform
from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.executor import Executor
from gpu_platform.executor.folder import Folder
from gpu_platform.executor.futures import Future

pytestmark = pytest.mark.processes

CALLS = [pickle.dumps(((), {}))]


class Attack:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    folder = Folder.make(tmp_path / "calls" / "one", pickle.dumps(len), CALLS)
    (folder.path / "results" / "0").write_bytes(pickle.dumps("mine"))
    return folder


def test_what_was_made_is_for_this_account_alone(folder: Folder) -> None:
    assert folder.value(0) == "mine"
    for path in (folder.path, folder.path / "results", folder.path / "errors", folder.path.parent):
        assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.parametrize("place", ["", "results", "results/0", ".."])
def test_what_others_may_write_is_not_unpickled(folder: Folder, tmp_path: Path, place: str) -> None:
    (folder.path / "results" / "0").write_bytes(pickle.dumps(Attack(tmp_path / "ran")))
    (folder.path / place).chmod(0o777)
    with pytest.raises(InvalidRequest, match="may be written by others"):
        folder.value(0)
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("place", ["", "results", "results/0"])
def test_what_belongs_to_another_account_is_not_unpickled(folder: Folder, place: str) -> None:
    os.chown(folder.path / place, 65534, 65534)
    with pytest.raises(InvalidRequest, match="belongs to another account"):
        folder.value(0)


def test_links_and_pipes_are_not_followed(folder: Folder, tmp_path: Path) -> None:
    result = folder.path / "results" / "0"
    (tmp_path / "evil").write_bytes(pickle.dumps(Attack(tmp_path / "ran")))
    result.unlink()
    result.symlink_to(tmp_path / "evil")
    with pytest.raises(OSError, match="symbolic links"):
        folder.value(0)
    result.unlink()
    os.mkfifo(result, 0o600)
    with pytest.raises(InvalidRequest):
        folder.value(0)
    assert not (tmp_path / "ran").exists()


def test_a_place_that_others_may_change_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(InvalidRequest, match="Executor\\(directory=…\\)"):
        Folder.make(shared / "one", b"", CALLS)
    shared.chmod(0o1777)  # as /tmp: nobody replaces what is another's there
    Folder.make(shared / "mine" / "one", b"", CALLS)


def test_a_job_whose_python_cannot_read_the_function_says_what_to_install(folder: Folder) -> None:
    (folder.path / "results" / "0").unlink()
    without_packages = [sys.executable, "-I", "-S", folder.path / "run_call.py", folder.path]
    assert subprocess.run(without_packages, capture_output=True, check=False).returncode == 1
    failed = folder.failed(0, 1)
    assert failed is not None
    assert f"cloudpickle is not installed for {sys.executable}" in failed.trace
    assert folder.failed(0, 2) is None


def test_a_result_that_comes_after_a_cancel_is_dropped() -> None:
    future = Future("j-1", lambda: None)
    assert future.cancel()
    future.settle(1)
    future.settle_error(ValueError())
    assert future.cancelled()
    late = Future("j-2", lambda: None)
    late.settle(1)
    assert not late.cancel()
    assert late.result() == 1


def test_the_package_gives_the_executor() -> None:
    assert gpu_platform.Executor is Executor
    with pytest.raises(AttributeError):
        gpu_platform.Other  # noqa: B018  # type: ignore[attr-defined]

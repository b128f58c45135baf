"""Which checkpoints a host sees, which it trusts, and what an attempt goes on from."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpu_platform import job
from gpu_platform.domain.errors import PreflightFailed
from gpu_platform.domain.jobs.checkpoint import CheckpointPolicy, Verified, parse_resume_point
from gpu_platform.node.checkpoints.pins import pinned
from gpu_platform.node.checkpoints.resume_choice import choose_resume, release_resume
from gpu_platform.node.checkpoints.store import CheckpointStore
from tests.support.hosts_rig import HostRig
from tests.support.store_cluster import key


def write(root: Path, label: str, at: float | None = None, text: str = "state") -> Path:
    """A checkpoint as ``gpu_platform.job`` writes it: ``j/1/step-10``."""
    parent, _, name = label.rpartition("/")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPU_PLATFORM_CHECKPOINT_DIR", str(root / parent))
        with job.save(int(name.removeprefix("step-"))) as directory:
            (directory / "state").write_text(text)
    if at is not None:
        os.utime(root / label / job.COMPLETE, (at, at))
    return root / label


def test_hosts_that_share_a_root_find_one_identity(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        found = set(pool.map(lambda _: CheckpointStore(tmp_path / "shared").identity(), range(64)))
    assert len(found) == 1
    assert None not in found
    assert CheckpointStore(tmp_path / "own").identity() not in found
    (tmp_path / "file").touch()
    assert CheckpointStore(tmp_path / "file").identity() is None


def test_a_damaged_checkpoint_is_passed_over_and_named(tmp_path: Path) -> None:
    write(tmp_path, "j/1/step-10", 100.0)
    (write(tmp_path, "j/1/step-20", 200.0) / "state").write_text("other")
    (write(tmp_path, "j/2/step-30", 300.0) / "state").unlink()
    found, damaged = CheckpointStore(tmp_path).newest("j", 2)
    assert found is not None
    assert (found.label, found.verified) == ("1/step-10", Verified.HASHES)
    assert [(one.label, one.problem) for one in damaged] == [
        ("2/step-30", "state is missing"),
        ("1/step-20", "state was changed: its SHA-256 differs"),
    ]


def test_without_a_manifest_the_marker_counts(tmp_path: Path) -> None:
    for path in ("j/1/COMPLETE", "j/1/step_5/COMPLETE", "j/1/step_6/part"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    found = CheckpointStore(tmp_path).list_job("j")
    assert {(one.label, one.step, one.verified) for one in found} == {
        ("1", None, Verified.MARKER),
        ("1/step_5", 5, Verified.MARKER),
    }


def test_no_link_that_a_user_puts_there_is_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("state")
    state = write(tmp_path, "j/1/step-10") / "state"
    state.unlink()
    state.symlink_to(secret)
    [found] = CheckpointStore(tmp_path).list_job("j", hashes=True)
    assert found.problem is not None
    assert "cannot be read" in found.problem


@pytest.fixture
def plan(tmp_path: Path):
    rig = HostRig(tmp_path / "state")
    yield lambda attempt, **policy: rig.plan(
        "true",
        key=key("mine", attempt),
        resume_from_attempt=attempt - 1 or None,
        checkpoint=CheckpointPolicy(**policy),
    )
    rig.worker.close()


def test_a_job_begins_with_what_it_was_submitted_with_and_goes_on_from_its_own(tmp_path: Path, plan) -> None:
    store = CheckpointStore(tmp_path)
    write(tmp_path, "j/1/step-10", 100.0)
    write(tmp_path, "j/2/step-20", 200.0)
    write(tmp_path, "j/2/step-30", 300.0)
    for asked, label in (("j", "2/step-30"), ("j:2", "2/step-30"), ("j:1", "1/step-10"), ("j:2/step-20", "2/step-20")):
        first = plan(1, resume_from=asked)
        chosen = choose_resume(store, first).checkpoint
        assert chosen is not None
        assert chosen.label == label
        assert pinned(tmp_path, "j") == {label}
        release_resume(store, first)
        assert pinned(tmp_path, "j") == set()
    write(tmp_path, "mine/1/step-40")
    chosen = choose_resume(store, plan(2, resume_from="j:1")).checkpoint
    assert chosen is not None
    assert (chosen.job_id, chosen.label) == ("mine", "1/step-40")


def test_it_never_starts_at_zero_when_a_checkpoint_was_asked_for(tmp_path: Path, plan) -> None:
    store = CheckpointStore(tmp_path)
    with pytest.raises(PreflightFailed, match=r"was to resume from j:1/step-10, but box sees no such complete"):
        choose_resume(store, plan(1, resume_from="j:1/step-10"))
    (write(tmp_path, "j/1/step-10") / "state").unlink()
    with pytest.raises(PreflightFailed, match=r"but it is damaged \(state is missing\): choose one that"):
        choose_resume(store, plan(1, resume_from="j:1/step-10"))


@pytest.mark.parametrize("text", ["", "j:", "j:x", "j:1/", "j:1/..", "j:1/a/b", "../x", "j:1/a:b"])
def test_what_names_no_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"names no checkpoint: write JOB, JOB:ATTEMPT or JOB:ATTEMPT/NAME"):
        parse_resume_point(text)

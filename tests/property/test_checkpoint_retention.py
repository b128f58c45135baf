"""Retention on a real file system: whatever crashes where, the work of a job is never lost."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpu_platform import job
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.node.checkpoints.pins import pin, unpin
from gpu_platform.node.checkpoints.retention import CheckpointRetention
from gpu_platform.node.checkpoints.store import CheckpointStore
from tests.support.examples import few

KEEP = 2
JOB = "j"


class Crash(BaseException):
    """The node worker died."""


class CrashingRetention(CheckpointRetention):
    """Dies before its next step when ``steps`` have been done: a rename, or the removal of one file."""

    steps = 10_000

    def _rename(self, source: Path, target: Path) -> None:
        self._step()
        super()._rename(source, target)

    def _remove_tree(self, path: Path) -> None:
        for parent, directories, files in os.walk(path, topdown=False):
            for name in files:
                self._step()
                (Path(parent) / name).unlink()
            for name in directories:
                (Path(parent) / name).rmdir()
        self._step()
        path.rmdir()

    def _step(self) -> None:
        if self.steps == 0:
            raise Crash
        self.steps -= 1


class Retention(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.attempt = 1
        self.clock = 1000.0
        self.saved: list[tuple[str, float]] = []
        """Labels whose ``save`` returned, oldest first, with when; what is damaged is not in it."""
        self.kept: set[str] = set()
        self.pins: dict[AttemptKey, str] = {}
        self.others = 0
        self.step = 0

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    @rule(keep=st.booleans(), damage=st.booleans())
    def save(self, keep: bool, damage: bool) -> None:
        self.step += 1
        self.clock += 1
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GPU_PLATFORM_CHECKPOINT_DIR", str(self.root / JOB / str(self.attempt)))
            with job.save(self.step, keep=keep) as directory:
                for name in ("a", "b"):
                    (directory / name).write_text(str(self.step))
        name = f"step-{self.step}"
        label = f"{self.attempt}/{name}"
        marker = self.root / JOB / label / job.COMPLETE
        os.utime(marker, (self.clock, self.clock))
        if damage:
            (marker.parent / "a").unlink()
            return
        self.saved.append((label, self.clock))
        if keep:
            self.kept.add(label)

    @rule()
    def die_while_saving(self) -> None:
        Path(self.root / JOB / str(self.attempt) / f"{job.SAVING}{self.step}-{self.clock}").mkdir(parents=True)
        self.clock += 1

    @rule()
    def next_attempt(self) -> None:
        self.attempt += 1

    @precondition(lambda self: self.saved)
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        """Another attempt, perhaps of another job, begins with one of those that are there."""
        store = CheckpointStore(self.root)
        there = [one for one in store.list_job(JOB) if one.complete]
        chosen = data.draw(st.sampled_from(there))
        self.others += 1  # an attempt begins with one checkpoint, once
        by = AttemptKey(job_id=f"other-{self.others}", attempt=1)
        pin(self.root, chosen, by)
        if store.look(JOB, chosen.attempt, chosen.name) is not None:
            self.pins[by] = chosen.label

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        by = data.draw(st.sampled_from(sorted(self.pins, key=str)))
        del self.pins[by]
        unpin(self.root, JOB, by)

    @rule(steps=st.integers(0, 12))
    def sweep_and_crash(self, steps: int) -> None:
        retention = CrashingRetention(CheckpointStore(self.root), KEEP, 0.0)
        retention.steps = steps
        try:
            retention.sweep_job(AttemptKey(job_id=JOB, attempt=self.attempt), None)
        except Crash:
            return

    @rule()
    def sweep(self) -> None:
        retention = CheckpointRetention(CheckpointStore(self.root), KEEP, 0.0)
        retention.sweep_job(AttemptKey(job_id=JOB, attempt=self.attempt), None)
        there = {one.label for one in CheckpointStore(self.root).list_job(JOB) if one.complete}
        newest = {label for label, _ in self.saved[-KEEP:]}
        assert there == newest | ((self.kept | set(self.pins.values())) & there), "nothing that is surplus stays"
        assert not list(self.root.glob(f"{JOB}/*/.removed-*"))

    @invariant()
    def the_work_of_the_job_is_there(self) -> None:
        whole = {one.label for one in CheckpointStore(self.root).list_job(JOB, hashes=True) if one.complete}
        assert {label for label, _ in self.saved[-KEEP:]} <= whole, "the newest are there, and whole"
        assert self.kept <= whole
        assert set(self.pins.values()) <= whole, "what somebody goes on from is there"


TestRetention = Retention.TestCase
TestRetention.settings = settings(max_examples=few(40), stateful_step_count=30, deadline=None)


def test_two_hosts_sweep_one_root_at_once(tmp_path: Path) -> None:
    """A second sweep runs between any two steps of the first."""
    from tests.unit.node.test_checkpoint_store import write

    for step in range(1, 7):
        write(tmp_path, f"{JOB}/1/step-{step}", float(step))
    key = AttemptKey(job_id=JOB, attempt=1)
    store = CheckpointStore(tmp_path)

    class Interrupted(CheckpointRetention):
        def _rename(self, source: Path, target: Path) -> None:
            super()._rename(source, target)
            CheckpointRetention(store, KEEP, 0.0).sweep_job(key, None)

    Interrupted(store, KEEP, 0.0).sweep_job(key, None)
    assert [one.label for one in store.list_job(JOB)] == ["1/step-5", "1/step-6"]


def test_what_has_no_manifest_goes_only_if_the_job_says_how_many_to_keep(tmp_path: Path) -> None:
    for step in range(1, 5):
        marker = tmp_path / JOB / "1" / f"step-{step}" / job.COMPLETE
        marker.parent.mkdir(parents=True)
        marker.touch()
        os.utime(marker, (step, step))
    (tmp_path / JOB / "1" / job.COMPLETE).touch()
    key = AttemptKey(job_id=JOB, attempt=1)
    retention = CheckpointRetention(CheckpointStore(tmp_path), 1, 0.0)
    assert retention.sweep_job(key, None) == []
    assert len(retention.sweep_job(key, 2)) == 3
    assert {one.label for one in CheckpointStore(tmp_path).list_job(JOB)} == {"1/step-4", "1"}


def test_young_ones_stay_for_a_while(tmp_path: Path) -> None:
    from tests.unit.node.test_checkpoint_store import write

    for step in range(1, 5):
        write(tmp_path, f"{JOB}/1/step-{step}")
    key = AttemptKey(job_id=JOB, attempt=1)
    assert CheckpointRetention(CheckpointStore(tmp_path), 1, 3600.0).sweep_job(key, None) == []

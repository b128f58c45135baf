"""The reconciler against random interleavings: it hurts no healthy job, and in the end nothing is lost or leaked."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.jobs import jobs
from gpu_platform.store.restoring.orphans import HeldAttempt
from gpu_platform.temporal.job_workflows import CleanupInput, WorkflowLife
from tests.support.reconciled_world import Hurt, World
from workers.scheduler.reconciler import Reconciler

LIVES = 20
UNTIL_FOUND = 100


class LooksOnce(Reconciler):
    """As it once was: one look, the row is read after it, and the answer is believed."""

    async def _look_at_job(self, job_id: str) -> None:
        view = await self._workflows.look(job_id)
        if view.life is WorkflowLife.OPEN:
            return
        job = await self._in_thread(jobs.get_job, self._store, job_id)
        if job.state.is_terminal or job.state is JobState.PENDING:
            return
        key = AttemptKey(job_id=job_id, attempt=job.attempt)
        await self._workflows.clean_up(CleanupInput(key=key, message="its workflow was not known"))


class SweepsOnlyTheLiving(Reconciler):
    async def _look_at_held(self, held: HeldAttempt) -> None:
        return


@pytest.fixture
def live(sqlite_template: Path, tmp_path: Path) -> Callable[..., object]:
    async def live(seed: int, kind: type[Reconciler] = Reconciler, **planted: bool) -> None:
        path = tmp_path / f"{seed}.db"
        shutil.copy(sqlite_template, path)
        store = Store(f"sqlite:///{path}")
        try:
            world = World(store, random.Random(seed), **planted)
            await world.live(kind(store, world, clock=lambda: world.now, in_thread=world.in_thread))
        finally:
            store.close()

    return live


@pytest.mark.some(5)
@pytest.mark.parametrize("seed", range(LIVES))
async def test_no_healthy_job_is_hurt_and_nothing_is_lost_or_leaked(live: Callable[..., object], seed: int) -> None:
    await live(seed)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("kind", "planted", "breaks"),
    [
        (LooksOnce, {"looking": False}, Hurt),
        (SweepsOnlyTheLiving, {}, AssertionError),
    ],
    ids=["one look is believed", "what ended jobs hold is not swept"],
)
async def test_a_planted_defect_is_found(
    live: Callable[..., object], kind: type[Reconciler], planted: dict[str, bool], breaks: type[AssertionError]
) -> None:
    for seed in range(UNTIL_FOUND):
        try:
            await live(seed, kind, **planted)  # type: ignore[misc]
        except breaks:
            return
        except AssertionError:
            continue
    pytest.fail(f"not found in {UNTIL_FOUND} lives")

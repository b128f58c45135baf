"""Whatever was tried and rolled back leaves no trace, and caches notice."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gpu_platform.domain.jobs.placement import HostSlice
from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.scheduling.cluster.snapshot import ChangeKind, Snapshot
from gpu_platform.scheduling.cluster.statement import Statement
from gpu_platform.scheduling.placing.candidates import CandidateIndex
from gpu_platform.scheduling.policy import Policy, build_framework
from tests.builders import cluster, job

ROWS = [job(gpus=1).row, job(gpus=2).row, job(gpus=4).row, job(gpus=8).row]


def look(snapshot: Snapshot) -> dict[str, list[object]]:
    """All that anybody can read, but for versions."""
    arrays = {name: array for name, array in vars(snapshot).items() if isinstance(array, np.ndarray)}
    assert {"free", "held", "uses", "working"} <= arrays.keys()
    return {name: array.tolist() for name, array in arrays.items()}


def part(snapshot: Snapshot, host_index: int, gpus: int) -> HostSlice:
    there = snapshot.gpus_of(host_index, gpus)
    uuids, indices = [uuid for uuid, _ in there], [index for _, index in there]
    return HostSlice(host=snapshot.names[host_index], gpu_uuids=uuids, gpu_indices=indices)


def having(uuids: list[str]) -> RunningRow:
    return RunningRow("j", 1, "a", "anna", 0, tuple(uuids), 0.0)


@pytest.mark.some(1)
@pytest.mark.parametrize("seed", range(4))
def test_rolling_back_restores_everything_thousands_of_times(seed: int) -> None:
    chance = random.Random(seed)
    machines = cluster().hosts(3, "dgx-h100", leaf="a").hosts(2, "l40s-4x-dual-socket", leaf="b")
    for name in machines.host_rows:
        machines.busy(name, *chance.sample(range(4), 2))
    snapshot = machines.scheduler().snapshot
    framework = build_framework(Policy())
    index = CandidateIndex(framework, snapshot)
    uuids = list(machines.gpu_rows)
    for _ in range(150):
        with Statement(snapshot) as attempt:
            marks = [(attempt.checkpoint(), look(snapshot))]
            for _ in range(chance.randrange(1, 12)):
                match chance.randrange(5):
                    case 0 | 1:
                        attempt.hold(part(snapshot, chance.randrange(5), chance.getrandbits(4)), "a")
                    case 2:
                        attempt.end(having(chance.sample(uuids, 3)))
                    case 3:
                        marks.append((attempt.checkpoint(), look(snapshot)))
                    case _:
                        mark, before = marks[chance.randrange(len(marks))]
                        marks = [m for m in marks if m[0] <= mark]
                        attempt.rollback(mark)
                        assert look(snapshot) == before
                index.of(ROWS[chance.randrange(4)])
            commits = chance.random() < 0.05
            if commits:
                attempt.commit()
                marks = [(0, look(snapshot))]
        assert look(snapshot) == marks[0][1]
        if commits:  # back to where tests can go on for long
            for host_index in range(len(snapshot)):
                snapshot.release_hold(part(snapshot, host_index, int(snapshot.held[host_index])), "a")
        for row in ROWS:
            fresh = CandidateIndex(framework, snapshot).of(row)
            known = index.of(row)
            assert known.fits.tolist() == fresh.fits.tolist()
            assert known.offers.gpus[known.fits].tolist() == fresh.offers.gpus[fresh.fits].tolist()


def test_what_is_not_committed_is_undone_when_something_raises() -> None:
    snapshot = cluster().host("a").scheduler().snapshot

    def fails() -> None:
        with Statement(snapshot) as attempt:
            attempt.hold(part(snapshot, 0, 0b11), "a")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert snapshot.held.tolist() == [0]


def test_a_statement_notices_that_somebody_else_writes() -> None:
    machines = cluster().host("a")
    snapshot = machines.scheduler().snapshot
    attempt = Statement(snapshot)
    attempt.hold(part(snapshot, 0, 0b1), "a")
    snapshot.upsert_gpus([machines.busy("a", 5).gpu_rows[uuid] for uuid, _ in snapshot.gpus_of(0, 1 << 5)])
    with pytest.raises(RuntimeError, match="somebody else"):
        attempt.rollback()


def test_a_rollback_counts_as_a_change_of_use_only() -> None:
    snapshot = cluster().hosts(2).scheduler().snapshot
    before = {change: snapshot.changed_at[change].copy() for change in ChangeKind}
    with Statement(snapshot) as attempt:
        attempt.hold(part(snapshot, 1, 0b1), "a")
    assert snapshot.changed_at[ChangeKind.USE][1] > before[ChangeKind.USE][1]
    assert snapshot.changed_at[ChangeKind.USE][0] == before[ChangeKind.USE][0]
    assert snapshot.changed_at[ChangeKind.HEALTH].tolist() == before[ChangeKind.HEALTH].tolist()

"""A gang starts once the jobs that ran before it have ended, however many small jobs come after it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import cluster, job
from tests.support.examples import few


@given(
    before=st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=12),
    gang=st.tuples(st.integers(1, 3), st.sampled_from([4, 8])),
    data=st.data(),
)
@settings(max_examples=few(60), deadline=None)
def test_small_jobs_that_keep_coming_never_starve_a_gang(
    before: list[int], gang: tuple[int, int], data: st.DataObject
) -> None:
    machines = cluster().hosts(3, leaf="l")
    scheduler = machines.scheduler()
    running: dict[str, list[tuple[str, list[int]]]] = {}

    def step() -> list[str]:
        """Decide, and let the store accept everything."""
        started = []
        for row, placement in scheduler.decide(0.0).placements:
            for part in placement.slices:
                machines.busy(part.host, *part.gpu_indices)
            running[row.job_id] = [(part.host, part.gpu_indices) for part in placement.slices]
            machines.tell(scheduler)
            scheduler.confirm(row.job_id, row.attempt)
            started.append(row.job_id)
        return started

    earlier = [job(gpus).row for gpus in before]
    for row in earlier:
        scheduler.add(row)
    step()
    old = sorted(running)
    hosts, gpus = gang
    scheduler.add(job(gpus, hosts=hosts, name="gang").row)
    begun = step()
    for finished in data.draw(st.permutations(old)):
        scheduler.add(job(1).row)
        for host, indices in running.pop(finished):
            machines.free(host, *indices)
        machines.tell(scheduler)
        begun += step()
    # Jobs that queued before the gang may have started on the way; they end too, the later ones need not.
    for finished in [row.job_id for row in earlier if row.job_id in running]:
        if "gang" in running:
            break
        for host, indices in running.pop(finished):
            machines.free(host, *indices)
        machines.tell(scheduler)
        begun += step()
    assert "gang" in begun

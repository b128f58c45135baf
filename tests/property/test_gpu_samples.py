"""Whatever samples hosts have written, the figures are those of a list in memory.

Days in any order, torn ends, several hosts, and GPUs that were held for a part of the time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_platform.domain.hosts.samples import (
    DAY_S,
    MEASUREMENTS,
    SAMPLE_S,
    Figures,
    HeldGpu,
    HostSamples,
    Point,
    SampleQuery,
    Tally,
    point_length,
)
from gpu_platform.node.accounting.sample_files import RECORD_BYTES, SUFFIX, SampleFiles
from gpu_platform.node.accounting.sample_recorder import Sample
from tests.support.examples import few

BEGIN = 1_800_000_000 // DAY_S * DAY_S
GPUS = {"a": ("GPU-1", "GPU-2"), "b": ("GPU-3",)}
"""Host -> its GPUs."""

times = st.integers(BEGIN - DAY_S // 2, BEGIN + 2 * DAY_S) | st.sampled_from([BEGIN, BEGIN - 1, BEGIN + SAMPLE_S])


def samples_of(host: str) -> st.SearchStrategy[tuple[str, list[Sample]]]:
    value = st.none() | st.integers(0, 3)
    temperature = st.none() | st.integers(-3, 300)
    memory = st.none() | st.integers(0, 300_000)
    sample = st.builds(Sample, times, st.sampled_from(GPUS[host]), value, memory, temperature, value)
    return st.tuples(st.just(host), st.lists(sample, max_size=25))


@st.composite
def queries(draw: st.DrawFn) -> SampleQuery:
    since, until = sorted((draw(times), draw(times)))
    uuids = [uuid for host in GPUS.values() for uuid in host]
    held = [
        HeldGpu(gpu_uuid=draw(st.sampled_from(uuids)), since=first, until=last)
        for first, last in draw(st.lists(st.tuples(times, times), max_size=6))
    ]
    held += [HeldGpu(gpu_uuid=uuid, since=0, until=2**32 - 1) for uuid in draw(st.sets(st.sampled_from(uuids)))]
    return SampleQuery(since=since, until=until, point_s=point_length(until - since), gpus=held)


written = st.sampled_from(sorted(GPUS)).flatmap(samples_of)
tears = st.none() | st.integers(-RECORD_BYTES + 1, RECORD_BYTES - 1).filter(bool)
"""How many bytes of the next record were written (above 0), or are missing of the last one."""


class WrittenHost:
    """A host's files, and the same samples in a list."""

    def __init__(self, directory: Path) -> None:
        self.files = SampleFiles(directory, 30)
        self.kept: list[Sample] = []
        self._directory = directory

    def write(self, samples: Sequence[Sample]) -> None:
        self.files.append(samples)
        self.kept += samples

    def tear(self, at: int, by: int) -> None:
        """Cut off a record of the file of that day in its middle, as a power cut does."""
        [*paths] = sorted(self._directory.glob(f"*{SUFFIX}"))
        if not paths:
            return
        path = paths[at % len(paths)]
        data = path.read_bytes()
        if len(data) % RECORD_BYTES:  # it is torn already
            return
        if by > 0:
            path.write_bytes(data + bytes(range(200, 200 + by)))
        else:
            path.write_bytes(data[:by])
            day = path.name.removesuffix(SUFFIX)
            of_day = [one for one in self.kept if str(datetime.fromtimestamp(one.at, UTC).date()) == day]
            last = max(number for number, one in enumerate(self.kept) if one is of_day[-1])
            del self.kept[last]


def counts(sample: Sample, query: SampleQuery) -> bool:
    return any(
        held.gpu_uuid == sample.gpu_uuid
        and max(held.since, query.since) <= sample.at - SAMPLE_S
        and sample.at <= min(held.until, query.until)
        for held in query.gpus
    )


def figures_in_memory(samples: Sequence[tuple[int, int]], query: SampleQuery) -> Figures:
    """``samples``: (time, value)."""
    ends = [query.until - number * query.point_s for number in range(query.points)][::-1]
    points = []
    for end in ends:
        inside = [value for at, value in samples if end - query.point_s < at <= end]
        mean = round(sum(inside) / len(inside), 2) if inside else None
        points.append(Point(at=datetime.fromtimestamp(end, UTC), mean=mean, max=max(inside, default=None)))
    values = sorted(value for _, value in samples)
    if not values:
        return Figures(points=points)
    ranked = [values[-(-len(values) * percent // 100) - 1] for percent in (50, 90, 99)]
    mean = round(sum(values) / len(values), 2)
    return Figures(
        count=len(values), mean=mean, p50=ranked[0], p90=ranked[1], p99=ranked[2], max=values[-1], points=points
    )


@settings(max_examples=few(100), deadline=None)
@given(st.lists(st.tuples(written, tears, st.integers(0, 3)), max_size=6), queries())
def test_the_figures_are_those_of_all_samples_in_memory(
    steps: list[tuple[tuple[str, list[Sample]], int | None, int]], query: SampleQuery
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        hosts = {name: WrittenHost(Path(directory) / name) for name in GPUS}
        for (name, samples), tear, which in steps:
            hosts[name].write(samples)
            if tear is not None:
                hosts[name].tear(which, tear)
        tally = Tally(query)
        for host in hosts.values():
            answer = host.files.read(query)
            tally.add(HostSamples.model_validate_json(answer.model_dump_json()).measured)
        found = tally.figures()
    chosen = [sample for host in hosts.values() for sample in host.kept if counts(sample, query)]
    assert query.points <= 120
    for name in MEASUREMENTS:
        of_name = [(one.at, getattr(one, name)) for one in chosen if getattr(one, name) is not None]
        assert found[name] == figures_in_memory(of_name, query), name

"""Samples of GPUs: made of readings, kept on disk, and never a reason for the node worker to end."""

from __future__ import annotations

import asyncio
import stat
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gpu_platform.domain.hosts.samples import (
    DAY_S,
    MEASUREMENTS,
    SAMPLE_S,
    HeldGpu,
    SampleQuery,
    Tally,
    figures_of,
    point_length,
)
from gpu_platform.node.accounting.sample_files import RECORD_BYTES, SampleFiles
from gpu_platform.node.accounting.sample_recorder import Sample, SampleRecorder
from gpu_platform.node.nvml.gpu_signals import Reading
from gpu_platform.node.system.paths import samples_dir
from gpu_platform.settings import NodeSettings
from tests.support.hosts_rig import HostRig
from tests.support.waiting import eventually
from workers.node.samples import SampleKeeper, sample_keeper

NOON = 1_800_000_000 // DAY_S * DAY_S + DAY_S // 2


def sample(at: int, percent: int | None = 50, gpu: str = "GPU-1") -> Sample:
    return Sample(at, gpu, percent, 1000, 40, 300)


def percents(files: SampleFiles, since: int = NOON - DAY_S, until: int = NOON + DAY_S) -> dict[int, int]:
    """Utilisation -> how often it was measured."""
    held = HeldGpu(gpu_uuid="GPU-1", since=since, until=until)
    query = SampleQuery(since=since, until=until, point_s=point_length(until - since), gpus=[held])
    return dict(files.read(query).measured["utilization_percent"].counts)


class SetClock:
    def __init__(self, at: float) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


def test_a_sample_is_the_mean_of_the_readings_within_its_seconds() -> None:
    clock = SetClock(NOON + 1.0)
    recorder = SampleRecorder(clock)
    for at, percent, power in ((1, 0, 100.4), (8, 100, None), (14.9, 20, 200.4), (15.1, 90, 10.0)):
        clock.at = NOON + at
        recorder.on_reading("GPU-1", Reading(at, 40, percent, power, None))
    assert recorder.take() == [Sample(NOON + 15, "GPU-1", 40, None, 40, 150)]
    assert recorder.take() == []
    clock.at = NOON + 31
    assert recorder.take() == [Sample(NOON + 30, "GPU-1", 90, None, 40, 10)]


def test_a_gpu_without_an_answer_has_no_samples() -> None:
    clock = SetClock(NOON + 1.0)
    recorder = SampleRecorder(clock)
    recorder.on_reading("GPU-1", Reading(1, 40, 10))
    clock.at += 600
    recorder.on_reading("GPU-2", Reading(1, 40, 10))
    clock.at += 15
    assert [(one.gpu_uuid, one.at) for one in recorder.take()] == [("GPU-1", NOON + 15), ("GPU-2", NOON + 615)]


def test_a_disk_that_takes_nothing_for_long_costs_samples_and_no_memory() -> None:
    clock = SetClock(NOON)
    recorder = SampleRecorder(clock)
    for _ in range(5000):
        clock.at += 15
        recorder.on_reading("GPU-1", Reading(1, 40, 10))
    kept = recorder.take()
    assert len(kept) == 1024
    assert kept[-1].at == clock.at


def test_files_and_their_directory_are_private(tmp_path: Path) -> None:
    files = SampleFiles(tmp_path / "samples", 30)
    files.append([sample(NOON)])
    [path] = (tmp_path / "samples").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.stat().st_size == RECORD_BYTES


def test_damage_costs_the_records_that_it_meets_and_no_others(tmp_path: Path) -> None:
    files = SampleFiles(tmp_path, 30)
    files.append([sample(NOON + number * SAMPLE_S, percent=number) for number in range(6)])
    [path] = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    data[1 * RECORD_BYTES : 2 * RECORD_BYTES] = bytes(RECORD_BYTES)  # zeros, as a power cut leaves them
    data[3 * RECORD_BYTES + 12] ^= 0xFF
    path.write_bytes(data + b"half a record")
    assert percents(files) == {0: 1, 2: 1, 4: 1, 5: 1}
    files.append([sample(NOON + 900, percent=77)])
    assert percents(files) == {0: 1, 2: 1, 4: 1, 5: 1, 77: 1}


def test_a_day_that_cannot_be_read_leaves_the_other_days(tmp_path: Path) -> None:
    files = SampleFiles(tmp_path, 30)
    files.append([sample(NOON - DAY_S + 900, 1), sample(NOON, 2)])
    unreadable = sorted(tmp_path.iterdir())[0]
    unreadable.unlink()
    unreadable.mkdir()
    with capture_logs() as logs:
        assert percents(files) == {2: 1}
    assert [line["event"] for line in logs] == ["samples.unreadable"]


def test_values_that_no_record_can_hold_are_cut(tmp_path: Path) -> None:
    files = SampleFiles(tmp_path, 30)
    files.append([Sample(NOON, "GPU-1", 70_000, 2**40, 99_999, 70_000), Sample(NOON, "GPU-1", -1, -1, -9_999, -1)])
    since = NOON - 60
    query = SampleQuery(since=since, until=NOON, point_s=15, gpus=[HeldGpu(gpu_uuid="GPU-1", since=since, until=NOON)])
    found = {name: [value for value, _ in one.counts] for name, one in files.read(query).measured.items()}
    assert found["utilization_percent"] == [0, 65534]
    assert found["memory_used_mib"] == [0, 2**32 - 2]
    assert found["temperature_c"] == [-300, 32767]


@pytest.mark.parametrize(("days", "left"), [(1, 2), (2, 3), (30, 5), (0, 0)])
def test_days_older_than_the_retention_are_removed_and_nothing_else(tmp_path: Path, days: int, left: int) -> None:
    files = SampleFiles(tmp_path, days, clock=lambda: NOON)
    files.append([sample(NOON - number * DAY_S) for number in range(5)])
    (tmp_path / "notes.samples").write_text("mine")
    files.sweep()
    assert len([path for path in tmp_path.iterdir() if path.name[0].isdigit()]) == left
    assert (tmp_path / "notes.samples").exists()


def test_a_clock_that_is_set_forward_removes_nothing(tmp_path: Path) -> None:
    files = SampleFiles(tmp_path, 30)
    files.append([sample(NOON - 400 * DAY_S)])
    ahead = SampleFiles(tmp_path, 30, clock=lambda: NOON - 400 * DAY_S)
    assert ahead.sweep() == 0


async def test_what_a_running_monitor_reads_is_on_disk(tmp_path: Path) -> None:
    rig = HostRig(tmp_path)
    monitor = rig.monitor(lambda fault: None)
    keeper = SampleKeeper(monitor, rig.home, 30, interval_s=1)
    rig.strike(3, utilization_percent=37)
    monitor.start()
    keeping = asyncio.create_task(keeper.run())
    try:
        uuid = rig.inventory.gpus[3].uuid
        held = HeldGpu(gpu_uuid=uuid, since=0, until=2**32 - 1)

        def measured() -> bool:
            at = int(time.time())
            query = SampleQuery(since=at - 600, until=at + 60, point_s=15, gpus=[held])
            tally = Tally(query)
            tally.add(keeper.files.read(query).measured)
            found = tally.figures()
            return found["utilization_percent"].p99 == 37 and all(found[name].count for name in MEASUREMENTS)

        await eventually(measured, "a sample of GPU 3")
    finally:
        keeping.cancel()
        monitor.stop()
        await rig.aclose()


async def test_a_disk_that_refuses_is_one_warning_and_ends_nothing(tmp_path: Path) -> None:
    rig = HostRig(tmp_path)
    monitor = rig.monitor(lambda fault: None)
    clock = SetClock(NOON)
    keeper = SampleKeeper(monitor, rig.home, 30, clock=clock)
    directory = samples_dir(rig.home)
    directory.write_text("no directory can be made here")
    try:
        with capture_logs() as logs:
            for _ in range(3):
                monitor.poll_once()
                clock.at += SAMPLE_S
                keeper.write()
        assert [line["event"] for line in logs] == ["samples.not_written"]
        directory.unlink()
        monitor.poll_once()
        clock.at += SAMPLE_S
        keeper.write()
        [path] = directory.iterdir()
        assert path.stat().st_size == len(rig.inventory.gpus) * RECORD_BYTES
    finally:
        await rig.aclose()


def test_percentiles_are_nearest_ranks() -> None:
    figures = figures_of({1: 50, 2: 40, 3: 9, 100: 1})
    assert (figures.p50, figures.p90, figures.p99, figures.max, figures.count) == (1, 2, 3, 100, 100)
    assert figures_of({7: 1}).model_dump(include={"p50", "p90", "p99"}) == {"p50": 7, "p90": 7, "p99": 7}
    assert figures_of({}).count == 0


@pytest.mark.parametrize("window_s", [15, 60, 1800, 1815, 3600, 86_400, 30 * 86_400])
def test_a_window_has_at_most_120_points_of_whole_samples(window_s: int) -> None:
    point_s = point_length(window_s)
    assert point_s % SAMPLE_S == 0
    assert SampleQuery(since=NOON, until=NOON + window_s, point_s=point_s, gpus=[]).points <= 120


@pytest.mark.parametrize(
    ("fields", "days"), [({}, 30), ({"metrics_retention_days": 0}, 0), ({"metrics_retention_days": None}, 0)]
)
async def test_the_settings_say_whether_samples_are_kept(tmp_path: Path, fields: dict[str, int], days: int) -> None:
    rig = HostRig(tmp_path)
    monitor = rig.monitor(lambda fault: None)
    keeper = sample_keeper(monitor, rig.home, NodeSettings(name="box", simulate="dgx-h100", **fields))
    assert keeper.files.retention_days == days
    assert bool(monitor._observers) == bool(days)
    await rig.aclose()

"""How many SMs work: from the second sample on, where the GPU tells it, and never a fault where it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_platform.node.nvml import sm_activity
from gpu_platform.node.nvml.gpu_signals import GpuReader
from gpu_platform.node.nvml.sm_activity import PERIOD_S, SmActivity
from tests.fake_nvml import FakeNvml


@pytest.fixture
def watched(fake: FakeNvml) -> SmActivity:
    fake.set(gpu__0__gpm=1, gpu__0__sm_activity=40)
    nvml = fake.load()
    return SmActivity(nvml, nvml.nvmlDeviceGetHandleByIndex(0))


def test_it_is_the_mean_between_two_samples(fake: FakeNvml, watched: SmActivity) -> None:
    assert watched.percent(100.0) is None, "one sample says nothing"
    fake.set(gpu__0__sm_activity=80)
    assert watched.percent(100.0 + PERIOD_S / 2) is None
    assert watched.percent(100.0 + PERIOD_S) == 60
    assert watched.percent(100.0 + 1.5 * PERIOD_S) == 60, "it is not asked more often"
    assert watched.percent(100.0 + 2 * PERIOD_S) == 80
    fake.set(gpu__0__sm_activity=0)
    assert watched.percent(100.0 + 3 * PERIOD_S) == 40, "samples change places, and none is too old"


def test_a_gpu_that_does_not_tell_is_asked_again_a_minute_later(fake: FakeNvml, watched: SmActivity) -> None:
    fake.set(gpu__0__gpm=0)
    assert watched.percent(0.0) is None
    fake.set(gpu__0__gpm=1)
    assert watched.percent(PERIOD_S) is None
    assert watched._samples is None
    assert watched.percent(60.0) is None
    assert watched.percent(60.0 + PERIOD_S) == 40


def test_an_error_of_gpm_is_no_fault_of_the_gpu(fake: FakeNvml, watched: SmActivity) -> None:
    watched.percent(0.0)
    assert watched.percent(PERIOD_S) == 40
    fake.set(gpu__0__gpm_fails=1)
    assert watched.percent(2 * PERIOD_S) is None
    fake.set(gpu__0__gpm_fails=0)
    assert watched.percent(100.0) is None
    assert watched.percent(100.0 + PERIOD_S) == 40


def test_a_lost_gpu_is_one(fake: FakeNvml, watched: SmActivity) -> None:
    watched.percent(0.0)
    fake.strike(0, lost=True)
    with pytest.raises(watched._nvml.NVMLError) as raised:
        watched.percent(PERIOD_S)
    assert raised.value.value == watched._nvml.NVML_ERROR_GPU_IS_LOST


def test_a_driver_without_it_gives_readings_all_the_same(tmp_path: Path, fake: FakeNvml) -> None:
    fake.set(lacks__nvmlGpmQueryDeviceSupport=1)
    nvml = fake.load()
    assert GpuReader(nvml, nvml.nvmlDeviceGetHandleByIndex(0)).read().sm_activity_percent is None


def test_a_reading_has_it(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sm_activity, "PERIOD_S", 0.0)
    fake.set(gpu__0__gpm=1, gpu__0__sm_activity=25)
    nvml = fake.load()
    reader = GpuReader(nvml, nvml.nvmlDeviceGetHandleByIndex(0))
    assert reader.read().sm_activity_percent is None
    assert reader.read().sm_activity_percent == 25

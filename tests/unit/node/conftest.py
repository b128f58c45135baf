"""The libraries on which the contract of NVML is checked: simulated, ``pynvml`` on a library of ours, and real."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gpu_platform.node.nvml.fault_injection import inject_fault
from gpu_platform.node.nvml.opening import has_gpus, open_nvml
from gpu_platform.node.nvml.simulated_nvml import SimulatedNvml
from gpu_platform.node.system import paths
from gpu_platform.settings import NodeSettings
from gpu_platform.topology.description import load_description
from tests.fake_nvml import FakeNvml, has_compiler


class Struck(NamedTuple):
    nvml: Any
    strike: Callable[..., None]


@pytest.fixture(params=["simulated", "fake", "real"])
def nvml(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "fake":
        opened = request.getfixturevalue("fake").load()
    else:
        if request.param == "real" and not has_gpus():
            pytest.skip("NVML finds no GPU on this machine: the contract is checked on the simulated and the fake one")
        simulate = "dgx-h100" if request.param == "simulated" else None
        opened = open_nvml(NodeSettings(name="box", simulate=simulate), tmp_path)
    yield opened
    opened.nvmlShutdown()


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """The real ``pynvml`` on a library of ours."""
    if not has_compiler():
        assert not os.environ.get("CI"), "CI needs a C compiler: apt-get install gcc libc6-dev"
        pytest.skip("no C compiler (Debian: apt-get install gcc libc6-dev)")
    library = FakeNvml(tmp_path / "fake")
    monkeypatch.setenv("FAKE_NVML_STATE", str(library.state_file))
    return library


@pytest.fixture(params=["simulated", "fake"])
def struck(request: pytest.FixtureRequest, tmp_path: Path) -> Struck:
    """GPUs that something can befall; from any process."""
    if request.param == "simulated":
        nvml = request.getfixturevalue("simulated")
        return Struck(nvml, partial(inject_fault, nvml.control_dir))
    fake = request.getfixturevalue("fake")
    return Struck(fake.load(), fake.strike)


@pytest.fixture
def simulated(tmp_path: Path) -> SimulatedNvml:
    return SimulatedNvml(load_description("dgx-h100"), "box", paths.control_dir(tmp_path))


@pytest.fixture
def sleeping() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()

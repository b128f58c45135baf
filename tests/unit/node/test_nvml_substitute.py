"""The simulated GPU library is a substitute for the real one: the code above never asks which it has."""

from __future__ import annotations

import re
from pathlib import Path

import gpu_platform
from gpu_platform.node.nvml.library import NvmlLibrary, RealNvml
from gpu_platform.node.nvml.opening import NoGpus, SilentNvml
from gpu_platform.node.nvml.simulated_nvml import SimulatedNvml

ROOT = Path(gpu_platform.__file__).parent.parent
PACKAGES = ("gpu_platform", "activities", "workflows", "workers", "service")
ASKS = re.compile(r"isinstance\([^)]*SimulatedNvml|type\([^)]*nvml[^)]*\)|import SimulatedNvml")


def test_no_code_above_asks_whether_the_library_is_simulated() -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    above = [path for path in files if path.parent != ROOT / "gpu_platform" / "node" / "nvml"]
    assert len(above) > 100
    assert [str(path.relative_to(ROOT)) for path in above if ASKS.search(path.read_text())] == []


def test_every_library_answers_what_nvml_has_no_function_for() -> None:
    own = {name for name in vars(NvmlLibrary) if not name.startswith("_")}
    assert own >= {"reset_gpu", "reset_all_gpus", "set_time_slice", "add_process", "described_machine"}
    for library in (RealNvml, SimulatedNvml, SilentNvml, NoGpus):
        assert issubclass(library, NvmlLibrary)
    differing = {name for name in own if getattr(SimulatedNvml, name) is not getattr(NvmlLibrary, name)}
    assert differing == own, "each difference of a simulated machine is answered by its library"

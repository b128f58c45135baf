"""A real ``pynvml`` on a shared library of our own: the whole path of a GPU host but for the driver.

``FakeNvml(directory, machine).load()`` gives a copy of the module ``pynvml`` that talks to the library;
another process loads it by ``environ``. What the GPUs are comes from a machine description, what befalls
them from :meth:`FakeNvml.strike`, with the words of ``gpu_platform.node.nvml.fault_injection``.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

from gpu_platform.node.nvml.library import RealNvml
from gpu_platform.topology.description import MachineDescription, load_description, simulated_uuid
from gpu_platform.topology.mig import mig_model

SONAME = "libnvidia-ml.so.1"
_SOURCE = Path(__file__).parent / "nvml.c"
_NVLINK_VERSIONS = {2: 2, 3: 4, 4: 6, 5: 7}
"""NVML_NVLINK_VERSION_…"""


def has_compiler() -> bool:
    return shutil.which("cc") is not None


class FakeNvml:
    """``old_driver``: one without remapped rows, field values and process lists. The state is a file: see nvml.c."""

    def __init__(
        self,
        directory: Path,
        machine: str | MachineDescription = "dgx-h100",
        host: str = "box",
        *,
        old_driver: bool = False,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.description = load_description(machine) if isinstance(machine, str) else machine
        self.host = host
        self.library = directory / SONAME
        self.state_file = directory / "state"
        options = ["-DOLD_DRIVER"] if old_driver else []
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", *options, "-o", self.library, _SOURCE],
            check=True,
        )
        self._state = _healthy(self.description, host)
        self._events = 0
        self._write()

    @property
    def environ(self) -> dict[str, str]:
        """For another process, whose ``pynvml`` then finds this library first."""
        return {**os.environ, "LD_LIBRARY_PATH": str(self.library.parent), "FAKE_NVML_STATE": str(self.state_file)}

    def load(self) -> RealNvml:
        """The real library over a fresh, initialised module.

        Put ``FAKE_NVML_STATE`` into this process' environment before.
        """
        spec = importlib.util.find_spec("pynvml")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        with mock.patch.dict(sys.modules, pynvml=module):  # it looks itself up there, to make its exceptions
            spec.loader.exec_module(module)
        module.__dict__["nvmlLib"] = ctypes.CDLL(str(self.library))
        module.nvmlInit()
        return RealNvml(module)

    def uuid(self, index: int) -> str:
        return simulated_uuid(self.host, index)

    def strike(self, gpu: int, *, xid: int | None = None, clear: bool = False, **conditions: object) -> None:
        if clear:
            self._state |= {f"gpu.{gpu}.{name}": value for name, value in _HEALTHY.items()}
        if xid == 79:
            conditions.setdefault("lost", True)
        for name, value in conditions.items():
            self._state[f"gpu.{gpu}.{name}"] = int(value) if isinstance(value, bool) else value
        if xid is not None:
            self._events += 1
            self._state |= {"events": self._events, f"event.{self._events}": f"{gpu} {xid}"}
        self._write()

    def set(self, **keys: object) -> None:
        """Keys of the state file, with ``__`` for a dot."""
        self._state |= {name.replace("__", "."): value for name, value in keys.items()}
        self._write()

    def _write(self) -> None:
        partial = self.state_file.with_suffix(".partial")
        partial.write_text("".join(f"{key} {value}\n" for key, value in self._state.items()))
        partial.rename(self.state_file)


_HEALTHY: dict[str, object] = {
    "lost": 0,
    "reset_required": 0,
    "temperature_c": 35,
    "power_mw": 70_000,
    "clock_reasons": 1,
    "corrected_ecc": 0,
    "uncorrected_ecc": 0,
    "remap_pending": 0,
    "remap_failed": 0,
    "recovery_action": 0,
    "energy_mj": 1_000_000,
    "pcie_width": 16,
    "pcie_replays": 0,
    "nvlinks_down": 0,
    "nvlink_errors": 0,
    "fabric_status": 0,
    "sram_threshold": 0,
    "remap_exhausted": 0,
    "repair_pending": 0,
}


def _healthy(machine: MachineDescription, host: str) -> dict[str, object]:
    state: dict[str, object] = {"count": len(machine.gpus), "driver": "580.65.06", "cuda": 13000}
    bus_ids = {slot.index: slot.pci_bus_id or f"0000:{slot.index + 1:02x}:00.0" for slot in machine.gpus}
    for slot in machine.gpus:
        peers = _peers(machine, slot.index)
        facts = {
            "uuid": simulated_uuid(host, slot.index),
            "name": machine.gpu.model,
            "serial": 1_650_000_000_000 + slot.index,
            "minor": slot.index,
            "memory_mib": machine.gpu.memory_mib,
            "compute_capability": machine.gpu.compute_capability,
            "pci": bus_ids[slot.index],
            "numa": slot.numa_node or 0,
            "links": len(peers),
            **_HEALTHY,
        }
        if slot.pcie_switch is not None:
            facts["switch"] = slot.pcie_switch
        if machine.gpu.mig_capable:
            facts["mig"] = 0
            state |= _mig_rules(machine)
        if machine.nvlink_generation is not None:
            facts["nvlink_version"] = _NVLINK_VERSIONS[machine.nvlink_generation]
        for number, peer in enumerate(peers):
            facts[f"link.{number}"] = f"1 {'switch' if peer is None else bus_ids[peer]}"
        state |= {f"gpu.{slot.index}.{name}": value for name, value in facts.items()}
    return state


def _mig_rules(machine: MachineDescription) -> dict[str, object]:
    model = mig_model(machine.gpu.model)
    if model is None:
        return {}
    rules: dict[str, object] = {
        "mig_compute_slices": model.compute_slices,
        "mig_needs_reset": int(float(machine.gpu.compute_capability) < 9),
    }
    for profile in model.profiles:
        slices, media = profile.compute_slices, profile.media_extensions
        revised = {(1, True): 7, (2, True): 8, (1, False): 9 if profile.memory_slices == 2 else 0}
        index = revised.get((slices, media), {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}[slices])
        words = (profile.profile_id, slices, profile.memory_slices, profile.max_instances, int(media), *profile.starts)
        rules[f"profile.{index}"] = " ".join(map(str, words))
    return rules


def _peers(machine: MachineDescription, index: int) -> list[int | None]:
    if isinstance(machine.nvlink, dict):
        return [None] * machine.nvlink["nvswitch"]
    ends = [(link.b if link.a == index else link.a, link.links) for link in machine.links if index in (link.a, link.b)]
    return [peer for peer, links in ends for _ in range(links)]

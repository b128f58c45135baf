"""MIG and compute mode of simulated GPUs, with the placement rules of the real models.

As with a real driver, the state of MIG outlives the process that set it: it is in the control directory, in
``driver-<index>.json``.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpu_platform.node.nvml.lazy_pynvml import pynvml
from gpu_platform.node.nvml.simulated_gpu import SimulatedGpus
from gpu_platform.topology.mig import MigModel, MigProfile, state_of

_NO_COMPUTE_INSTANCE = -1
_CI = 0
"""The id of the compute instance. Here a GPU instance has only one, which fills it."""
_GI_BITS = 8
_FIRST_WITHOUT_RESET = 9.0
"""Compute capability from which MIG mode is switched without a reset (Hopper)."""
_INDEX_OF = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}
"""Compute slices -> NVML_GPU_INSTANCE_PROFILE_<n>_SLICE."""


@dataclass
class DriverState:
    """The MIG state of one GPU, as the simulated driver keeps it."""

    mig: int = 0
    mig_pending: int = 0
    instances: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """GPU instance -> profile id, start, size, and its compute instance or -1."""


def read_state(control_dir: Path, index: int) -> DriverState:
    """The MIG state of a simulated GPU. MIG is off if there is no file."""
    try:
        return DriverState(**json.loads(_path(control_dir, index).read_bytes()))
    except (FileNotFoundError, ValueError):  # or a file that a power loss cut off
        return DriverState()


@contextmanager
def changed_state(control_dir: Path, index: int) -> Iterator[DriverState]:
    """The MIG state, which is written back afterwards. A lock keeps processes from undoing each other's changes."""
    with (control_dir / ".driver.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        state = read_state(control_dir, index)
        yield state
        partial = control_dir / f".driver-{index}.partial"
        partial.write_text(json.dumps(asdict(state)))
        partial.rename(_path(control_dir, index))


def reset_state(control_dir: Path, index: int) -> None:
    """Do what a GPU reset does: the pending MIG mode becomes the mode, and all instances are gone."""
    if _path(control_dir, index).exists():
        with changed_state(control_dir, index) as state:
            state.mig, state.instances = state.mig_pending, {}


def _path(control_dir: Path, index: int) -> Path:
    return control_dir / f"driver-{index}.json"


class MigHandle:
    """NVML's "MIG device": functions that read a GPU also take it."""

    def __init__(self, gpu: Any, gi: int, ci: int) -> None:
        self.index: int = gpu.index
        self.uuid = f"MIG-{uuid.uuid5(uuid.NAMESPACE_OID, f'{gpu.uuid}/{gi}/{ci}')}"
        self.gi, self.ci = gi, ci
        self.condition, self.stamp, self.living = gpu.condition, gpu.stamp, gpu.living


class SimulatedMig(SimulatedGpus):
    """The functions of ``pynvml`` for MIG and compute mode. Handles of instances are its own opaque pointers."""

    mig_capable: bool
    mig_model: MigModel | None
    """The MIG rules of this GPU model. None: they are not known."""
    compute_capability: str

    def nvmlDeviceGetComputeMode(self, handle: Any) -> int:
        self._condition(handle)
        return handle.compute_mode

    def nvmlDeviceSetComputeMode(self, handle: Any, mode: int) -> None:
        self._condition(handle)
        handle.compute_mode = mode

    def nvmlDeviceGetMigMode(self, handle: Any) -> list[int]:
        self._capable(handle)
        state = read_state(self.control_dir, handle.index)
        return [state.mig, state.mig_pending]

    def nvmlDeviceSetMigMode(self, handle: Any, mode: int) -> int:
        """Set the MIG mode. Returns the activation's status, as NVML does."""
        self._capable(handle)
        at_once = float(self.compute_capability) >= _FIRST_WITHOUT_RESET
        with changed_state(self.control_dir, handle.index) as state:
            if self._is_busy(handle) or state.instances:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_IN_USE)
            state.mig_pending = mode
            if at_once:
                state.mig = mode
        return pynvml.NVML_SUCCESS if at_once else pynvml.NVML_ERROR_RESET_REQUIRED

    def nvmlDeviceGetGpuInstanceProfileInfo(self, handle: Any, profile: int, version: int = 2) -> Any:
        found = next((p for p in self._rules().profiles if _profile_index(p) == profile), None)
        if found is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        kind = pynvml.c_nvmlGpuInstanceProfileInfo_v2_t if version == 2 else pynvml.c_nvmlGpuInstanceProfileInfo_t
        info = kind()
        info.id, info.sliceCount, info.instanceCount = found.profile_id, found.compute_slices, found.max_instances
        return info

    def nvmlDeviceGetGpuInstancePossiblePlacements(
        self, handle: Any, profile_id: int, placements: Any, count: Any
    ) -> None:
        profile = self._profile(profile_id)
        for position, start in enumerate(profile.starts):
            placements[position].start, placements[position].size = start, profile.memory_slices
        count.contents.value = len(profile.starts)

    def nvmlDeviceCreateGpuInstanceWithPlacement(self, handle: Any, profile_id: int, placement: Any) -> Any:
        self._condition(handle)
        profile, start = self._profile(profile_id), placement.contents.start
        with changed_state(self.control_dir, handle.index) as state:
            if not state.mig:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            if start not in self._rules().starts(profile, self._taken(state)):
                raise pynvml.NVMLError(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
            gi = next(number for number in range(1, 100) if str(number) not in state.instances)
            state.instances[str(gi)] = [profile_id, start, profile.memory_slices, _NO_COMPUTE_INSTANCE]
        return _pointer(handle.index, gi, pynvml.c_nvmlGpuInstance_t)

    def nvmlDeviceGetGpuInstances(self, handle: Any, profile_id: int, instances: Any, count: Any) -> None:
        self._condition(handle)
        state = read_state(self.control_dir, handle.index)
        found = [int(gi) for gi, instance in state.instances.items() if instance[0] == profile_id]
        for position, gi in enumerate(found):
            instances[position] = _pointer(handle.index, gi, pynvml.c_nvmlGpuInstance_t)
        count.contents.value = len(found)

    def nvmlDeviceGetGpuInstanceById(self, handle: Any, gi: int) -> Any:
        self._condition(handle)
        if str(gi) not in read_state(self.control_dir, handle.index).instances:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return _pointer(handle.index, gi, pynvml.c_nvmlGpuInstance_t)

    def nvmlGpuInstanceGetInfo(self, instance: Any) -> Any:
        index, gi = _numbers(instance)
        profile_id, start, size, _ = self._instance(index, gi)
        info = pynvml.c_nvmlGpuInstanceInfo_t()
        info.id, info.profileId = gi, profile_id
        info.placement = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
        return info

    def nvmlGpuInstanceDestroy(self, instance: Any) -> None:
        index, gi = _numbers(instance)
        with changed_state(self.control_dir, index) as state:
            if self._instance(index, gi)[3] != _NO_COMPUTE_INSTANCE:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_IN_USE)
            del state.instances[str(gi)]

    def nvmlGpuInstanceGetComputeInstanceProfileInfo(
        self, instance: Any, profile: int, engine: int, version: int = 2
    ) -> Any:
        slices = self._profile(self._instance(*_numbers(instance))[0]).compute_slices
        if _INDEX_OF[slices] != profile:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        info = pynvml.c_nvmlComputeInstanceProfileInfo_v2_t()
        info.id, info.sliceCount, info.instanceCount = profile, slices, 1
        return info

    def nvmlGpuInstanceCreateComputeInstance(self, instance: Any, profile_id: int) -> Any:
        return self._set_compute_instance(instance, _NO_COMPUTE_INSTANCE, _CI)

    def nvmlGpuInstanceGetComputeInstances(self, instance: Any, profile_id: int, instances: Any, count: Any) -> None:
        index, gi = _numbers(instance)
        has_one = self._instance(index, gi)[3] != _NO_COMPUTE_INSTANCE
        if has_one:
            instances[0] = _pointer(index, gi, pynvml.c_nvmlComputeInstance_t)
        count.contents.value = int(has_one)

    def nvmlComputeInstanceDestroy(self, compute_instance: Any) -> None:
        self._set_compute_instance(compute_instance, _CI, _NO_COMPUTE_INSTANCE)

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any) -> int:
        return self.mig_model.compute_slices if self.mig_model is not None else 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: int) -> MigHandle:
        self._condition(handle)
        instances = read_state(self.control_dir, handle.index).instances
        ready = [(int(gi), instance[3]) for gi, instance in instances.items() if instance[3] != _NO_COMPUTE_INSTANCE]
        if index >= len(ready):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return MigHandle(handle, *sorted(ready)[index])

    def nvmlDeviceGetGpuInstanceId(self, handle: MigHandle) -> int:
        return handle.gi

    def nvmlDeviceGetComputeInstanceId(self, handle: MigHandle) -> int:
        return handle.ci

    def _is_busy(self, gpu: Any) -> bool: ...

    def _capable(self, gpu: Any) -> None:
        self._condition(gpu)
        if not self.mig_capable:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def _rules(self) -> MigModel:
        if self.mig_model is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return self.mig_model

    def _profile(self, profile_id: int) -> MigProfile:
        for profile in self._rules().profiles:
            if profile.profile_id == profile_id:
                return profile
        raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)

    def _instance(self, index: int, gi: int) -> list[int]:
        try:
            return read_state(self.control_dir, index).instances[str(gi)]
        except KeyError:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND) from None

    def _taken(self, state: DriverState) -> int:
        return state_of(
            (profile.mask(start), profile.compute_slices, profile.media_extensions)
            for profile_id, start, _, _ in state.instances.values()
            for profile in [self._profile(profile_id)]
        )

    def _set_compute_instance(self, instance: Any, old: int, new: int) -> Any:
        index, gi = _numbers(instance)
        with changed_state(self.control_dir, index) as state:
            if self._instance(index, gi)[3] != old:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
            state.instances[str(gi)][3] = new
        return _pointer(index, gi, pynvml.c_nvmlComputeInstance_t)


def _profile_index(profile: MigProfile) -> int:
    """NVML_GPU_INSTANCE_PROFILE_…: by slices, with revisions for +me and for one slice with twice the memory."""
    if profile.media_extensions:
        return {1: pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1, 2: pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_REV1}[
            profile.compute_slices
        ]
    if (profile.compute_slices, profile.memory_slices) == (1, 2):
        return pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2
    return _INDEX_OF[profile.compute_slices]


def _pointer(index: int, gi: int, kind: Any) -> Any:
    return ctypes.cast((index + 1) << _GI_BITS | gi, kind)


def _numbers(pointer: Any) -> tuple[int, int]:
    """(GPU index, GPU instance)."""
    value = ctypes.cast(pointer, ctypes.c_void_p).value or 0
    return (value >> _GI_BITS) - 1, value & (1 << _GI_BITS) - 1

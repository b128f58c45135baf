"""MIG instances through NVML: a GPU instance at the placement that the scheduler chose, and one compute instance
that fills it. NVIDIA Multi-Instance GPU User Guide; nvml.h "Multi Instance GPU Management"."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from gpu_platform.domain.errors import HostUnavailable, PreflightFailed
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.node.nvml.gpu_signals import unsupported
from gpu_platform.node.nvml.library import NvmlLibrary

_ENTIRE = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4, 8: 5, 6: 6}
"""Compute slices -> NVML_COMPUTE_INSTANCE_PROFILE_<n>_SLICE, the profile that fills such a GPU instance."""
_PLAIN_PROFILES = (0, 1, 2, 3, 4, 5, 6, 9)
"""NVML_GPU_INSTANCE_PROFILE_<n>_SLICE, and 1_SLICE_REV2: one slice with twice the memory."""
_MEDIA_PROFILES = (7, 8)
"""NVML_GPU_INSTANCE_PROFILE_<n>_SLICE_REV1: profiles whose names end in ``+me``."""
_MAX_INSTANCES = 8


@dataclass(frozen=True)
class Instance:
    """A GPU instance as the driver reports it. ``start`` and ``size`` count memory slices."""

    gi: int
    start: int
    size: int
    uuid: str | None
    """The uuid of the MIG device, for ``CUDA_VISIBLE_DEVICES``. None: it has no compute instance yet."""
    ci: int | None


def mode(nvml: NvmlLibrary, gpu_uuid: str) -> bool | None:
    """True if MIG is on now. None: the GPU has no MIG."""
    try:
        return bool(nvml.nvmlDeviceGetMigMode(nvml.nvmlDeviceGetHandleByUUID(gpu_uuid))[0])
    except unsupported(nvml):
        return None


def set_mode(nvml: NvmlLibrary, gpu_uuid: str, on: bool) -> bool:
    """Switch MIG on or off. False: the GPU must be reset first (Ampere; Hopper and later switch at once).

    Raises :class:`HostUnavailable` if something uses the GPU, :class:`PreflightFailed` if the driver refuses.
    """
    try:
        nvml.nvmlDeviceSetMigMode(nvml.nvmlDeviceGetHandleByUUID(gpu_uuid), int(on))
    except nvml.NVMLError as error:
        raise _refused(nvml, gpu_uuid, f"MIG mode cannot be switched {'on' if on else 'off'}", error) from None
    return mode(nvml, gpu_uuid) is on


def instances(nvml: NvmlLibrary, gpu_uuid: str) -> list[Instance]:
    """All instances of the GPU, whoever made them. Empty while MIG is off, or if the GPU must be reset."""
    try:
        if not mode(nvml, gpu_uuid):
            return []
    except (nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired):
        return []  # the next reset or reboot removes them
    device = nvml.nvmlDeviceGetHandleByUUID(gpu_uuid)
    uuids = _device_uuids(nvml, device)
    found: list[Instance] = []
    for info in _profiles(nvml, device):
        for handle in _gpu_instances(nvml, device, info.id):
            of = nvml.nvmlGpuInstanceGetInfo(handle)
            ci, uuid = uuids.get(of.id, (None, None))
            found.append(Instance(of.id, of.placement.start, of.placement.size, uuid, ci))
    return sorted(found, key=lambda instance: instance.start)


def create(nvml: NvmlLibrary, gpu_uuid: str, profile: str, start: int, size: int) -> Instance:
    """Make a GPU instance and its compute instance.

    Raises :class:`PreflightFailed` (``kind="hardware"``) if the GPU has no such profile or the place is taken.
    """
    device = nvml.nvmlDeviceGetHandleByUUID(gpu_uuid)
    info = _profile(nvml, device, profile, start, size)
    if info is None:
        raise _unfit(gpu_uuid, f"has no MIG profile {profile} at memory slices {start} to {start + size - 1}")
    what = f"the MIG instance {profile} at memory slice {start} cannot be made"
    placement = nvml.c_nvmlGpuInstancePlacement_t(start, size)
    try:
        handle = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, info.id, ctypes.pointer(placement))
    except nvml.NVMLError as error:
        raise _refused(nvml, gpu_uuid, what, error) from None
    gi = nvml.nvmlGpuInstanceGetInfo(handle).id
    try:
        filling = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(handle, _ENTIRE[info.sliceCount], 0)
        nvml.nvmlGpuInstanceCreateComputeInstance(handle, filling.id)
    except nvml.NVMLError as error:
        destroy(nvml, gpu_uuid, gi)
        raise _refused(nvml, gpu_uuid, what, error) from None
    [made] = [instance for instance in instances(nvml, gpu_uuid) if instance.gi == gi]
    return made


def destroy(nvml: NvmlLibrary, gpu_uuid: str, gi: int) -> None:
    """Remove the instance and its compute instance. Does nothing if the instance or the GPU is gone.

    Raises :class:`HostUnavailable` while something uses it.
    """
    try:
        device = nvml.nvmlDeviceGetHandleByUUID(gpu_uuid)
        handle = nvml.nvmlDeviceGetGpuInstanceById(device, gi)
        slices = {info.id: info.sliceCount for info in _profiles(nvml, device)}
        filling = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
            handle, _ENTIRE[slices[nvml.nvmlGpuInstanceGetInfo(handle).profileId]], 0
        )
        for compute in _list(nvml.c_nvmlComputeInstance_t, nvml.nvmlGpuInstanceGetComputeInstances, handle, filling.id):
            nvml.nvmlComputeInstanceDestroy(compute)
        nvml.nvmlGpuInstanceDestroy(handle)
    except (nvml.NVMLError_NotFound, nvml.NVMLError_GpuIsLost):
        return
    except nvml.NVMLError as error:
        raise HostUnavailable(f"MIG instance {gi} of GPU {gpu_uuid} cannot be destroyed: {error}") from None


def _profile(nvml: NvmlLibrary, device: Any, name: str, start: int, size: int) -> Any:
    """The profile with this shape. The name does not decide: drivers disagree (3g.40gb was 3g.39gb in R535)."""
    slices = int(name.split("g.")[0])
    kinds = _MEDIA_PROFILES if name.endswith("+me") else _PLAIN_PROFILES
    for info in _profiles(nvml, device, kinds):
        count = ctypes.c_uint(32)
        places = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, info.id, places, ctypes.pointer(count))
        if info.sliceCount == slices and (start, size) in {(p.start, p.size) for p in places[: count.value]}:
            return info
    return None


def _profiles(
    nvml: NvmlLibrary, device: Any, kinds: tuple[int, ...] = (*_PLAIN_PROFILES, *_MEDIA_PROFILES)
) -> list[Any]:
    found: list[Any] = []
    for kind in kinds:
        try:
            found.append(nvml.nvmlDeviceGetGpuInstanceProfileInfo(device, kind, version=1))
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):  # this GPU has no such profile
            continue
    return found


def _gpu_instances(nvml: NvmlLibrary, device: Any, profile_id: int) -> list[Any]:
    return _list(nvml.c_nvmlGpuInstance_t, nvml.nvmlDeviceGetGpuInstances, device, profile_id)


def _list(kind: Any, ask: Any, of: Any, profile_id: int) -> list[Any]:
    count = ctypes.c_uint(_MAX_INSTANCES)
    handles = (kind * count.value)()
    ask(of, profile_id, handles, ctypes.pointer(count))
    return list(handles[: count.value])


def _device_uuids(nvml: NvmlLibrary, device: Any) -> dict[int, tuple[int, str]]:
    """GPU instance -> (compute instance, uuid) of its MIG device."""
    uuids: dict[int, tuple[int, str]] = {}
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(device)):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index)
        except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
            continue
        gi = nvml.nvmlDeviceGetGpuInstanceId(handle)
        uuids[gi] = nvml.nvmlDeviceGetComputeInstanceId(handle), nvml.nvmlDeviceGetUUID(handle)
    return uuids


def _refused(nvml: NvmlLibrary, gpu_uuid: str, what: str, error: Any) -> Exception:
    if isinstance(error, nvml.NVMLError_InUse):
        return HostUnavailable(f"GPU {gpu_uuid}: {what}: something uses the GPU ({error})")
    return _unfit(gpu_uuid, f"{what}: {error}")


def _unfit(gpu_uuid: str, problem: str) -> PreflightFailed:
    return PreflightFailed(f"GPU {gpu_uuid}: {problem}", kind=blame(FailureCause.GPU_UNFIT), gpu_uuid=gpu_uuid)

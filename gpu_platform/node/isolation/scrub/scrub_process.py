"""A process that overwrites a GPU's memory and proves it: ``python -m`` this module.

It allocates all memory that CUDA gives (the GPU must be empty), sets it to zero, reads it back and prints what it did
as one line of JSON. Which device: ``CUDA_VISIBLE_DEVICES``, so that a MIG device is scrubbed like a GPU. CUDA Driver
API: cuMemGetInfo, cuMemAlloc, cuMemsetD32, cuMemcpyDtoH. Standard library only; exit codes below.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import sys
import time

DONE, DIRTY, NO_CUDA, FAILED = 0, 3, 4, 5
"""Exit codes: overwritten and verified; a byte was not zero afterwards; CUDA cannot be used here; CUDA reported an
error."""

_SMALLEST = 2 << 20
"""Bytes of a page: CUDA allocates device memory in pages of this size."""
_WINDOW = 32 << 20
"""Bytes that are read back at the same time."""
_OUT_OF_MEMORY = 2
_UNUSABLE = (3, 34, 100, 999)
"""CUDA_ERROR_NOT_INITIALIZED, STUB_LIBRARY, NO_DEVICE, and UNKNOWN (which ``cuInit`` returns without a driver)."""


class CudaError(Exception):
    """A call of the CUDA driver failed."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} returned CUDA error {code}")
        self.call, self.code = call, code


class Cuda:
    """The functions of libcuda.so.1 that are needed here. Raises ``OSError`` if there is no such library."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        self._library = ctypes.CDLL(library)
        self._ordinary: ctypes.Array[ctypes.c_char] | None = None
        self._call("cuInit", 0)
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)

    def memory(self) -> tuple[int, int]:
        """(free bytes, all bytes)."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def allocate(self, size: int) -> int | None:
        """The address of ``size`` bytes on the device. None: there is no free piece of this size."""
        address = ctypes.c_uint64()
        try:
            self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        except CudaError as error:
            if error.code == _OUT_OF_MEMORY:
                return None
            raise
        return address.value

    def zero(self, address: int, size: int) -> None:
        """Overwrite the memory with zeros."""
        self._call("cuMemsetD32_v2", ctypes.c_uint64(address), ctypes.c_uint(0), ctypes.c_size_t(size // 4))

    def wait(self) -> None:
        """Wait until the GPU has finished all work."""
        self._call("cuCtxSynchronize")

    def host_buffer(self, size: int) -> int:
        """The address of page-locked memory, to which the device copies at full speed. If there is none: ordinary
        memory."""
        address = ctypes.c_void_p()
        with contextlib.suppress(CudaError, AttributeError):
            self._call("cuMemAllocHost_v2", ctypes.byref(address), ctypes.c_size_t(size))
        if not address.value:
            self._ordinary = ctypes.create_string_buffer(size)
            return ctypes.addressof(self._ordinary)
        return address.value

    def read(self, buffer: int, address: int, size: int) -> None:
        """Copy the memory to the host."""
        self._call("cuMemcpyDtoH_v2", ctypes.c_void_p(buffer), ctypes.c_uint64(address), ctypes.c_size_t(size))

    def free(self, address: int) -> None:
        """Free the memory."""
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def _call(self, name: str, *arguments: object) -> None:
        if code := getattr(self._library, name)(*arguments):
            raise CudaError(name, code)


def take_all(cuda: Cuda) -> list[tuple[int, int]]:
    """Allocate all memory, the largest pieces first, down to one page. Returns (address, bytes) of each piece."""
    pieces: list[tuple[int, int]] = []
    size = cuda.memory()[0] // _SMALLEST * _SMALLEST
    while size >= _SMALLEST:
        address = cuda.allocate(size)
        if address is None:
            size = size // 2 // _SMALLEST * _SMALLEST
        else:
            pieces.append((address, size))
            size = min(size, cuda.memory()[0] // _SMALLEST * _SMALLEST)
    return pieces


def first_dirty_byte(cuda: Cuda, pieces: list[tuple[int, int]], every: int) -> int | None:
    """The address of a byte that is not zero. None: all is clean.

    It checks every ``every``-th window, and the last window of each piece.
    """
    buffer, zeros = cuda.host_buffer(_WINDOW), bytes(_WINDOW)
    differ = ctypes.CDLL(None).memcmp
    differ.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
    for address, size in pieces:
        offsets = list(range(0, size, _WINDOW))
        for offset in sorted({*offsets[::every], offsets[-1]}):
            length = min(_WINDOW, size - offset)
            cuda.read(buffer, address + offset, length)
            if differ(buffer, zeros, length):
                window = ctypes.string_at(buffer, length)
                return address + offset + next(position for position, byte in enumerate(window) if byte)
    return None


def main() -> int:
    """Scrub the GPU that this process sees. ``argv[1]`` = n: every n-th window is verified; 1 verifies all."""
    began = time.monotonic()
    try:
        cuda = Cuda()
    except OSError as error:
        return _print_result(NO_CUDA, f"libcuda.so.1 does not load: {error}")
    except CudaError as error:
        return _print_result(NO_CUDA if error.code in _UNUSABLE else FAILED, str(error))
    try:
        total = cuda.memory()[1]
        pieces = take_all(cuda)
        for address, size in pieces:
            cuda.zero(address, size)
        cuda.wait()
        dirty = first_dirty_byte(cuda, pieces, int(sys.argv[1]) if len(sys.argv) > 1 else 1)
        for address, _ in pieces:
            cuda.free(address)
    except CudaError as error:
        return _print_result(FAILED, str(error))
    scrubbed = sum(size for _, size in pieces)
    facts = {"total_mib": total >> 20, "scrubbed_mib": scrubbed >> 20, "seconds": round(time.monotonic() - began, 3)}
    if dirty is not None:
        return _print_result(DIRTY, f"the byte at {dirty:#x} is not zero after it was set to zero", **facts)
    return _print_result(DONE, "", **facts)


def _print_result(code: int, problem: str, **facts: float) -> int:
    print(json.dumps({"problem": problem, **facts}))
    return code


if __name__ == "__main__":
    sys.exit(main())

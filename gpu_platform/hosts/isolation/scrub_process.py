"""Overwrite a GPU's memory and prove it: a process, ``python -m gpu_platform.hosts.isolation.scrub_process``.

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
"""Overwritten and verified; a byte was not zero after it; CUDA cannot be used here; CUDA reported an error."""

_SMALLEST = 2 << 20
"""Bytes; CUDA hands out device memory in pages of this size."""
_WINDOW = 32 << 20
"""Bytes that are read back at once."""
_OUT_OF_MEMORY = 2
_UNUSABLE = (3, 34, 100, 999)
"""CUDA_ERROR_NOT_INITIALIZED, STUB_LIBRARY, NO_DEVICE, UNKNOWN (as ``cuInit`` says it without a driver)."""


class CudaError(Exception):
    """A call of the CUDA driver failed."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} returned CUDA error {code}")
        self.call, self.code = call, code


class Cuda:
    """The few calls of libcuda.so.1 that it takes. Raises ``OSError`` when there is no such library."""

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
        """(free, total), bytes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def allocate(self, size: int) -> int | None:
        """A device address; None when there is not so much in one piece."""
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
        """Wait until the GPU has done what was asked."""
        self._call("cuCtxSynchronize")

    def host_buffer(self, size: int) -> int:
        """The address of memory that the device copies into at full speed (page-locked); ordinary if there is none."""
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
        """Give the memory back."""
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def _call(self, name: str, *arguments: object) -> None:
        if code := getattr(self._library, name)(*arguments):
            raise CudaError(name, code)


def take_all(cuda: Cuda) -> list[tuple[int, int]]:
    """Allocate everything: pieces (address, bytes), the largest that there are, down to one page."""
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
    """The address of a byte that is not zero in every ``every``-th window, the last of each piece included."""
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
    """``argv[1]``: every how-many-th window is verified; 1 is all of them."""
    began = time.monotonic()
    try:
        cuda = Cuda()
    except OSError as error:
        return _tell(NO_CUDA, f"libcuda.so.1 does not load: {error}")
    except CudaError as error:
        return _tell(NO_CUDA if error.code in _UNUSABLE else FAILED, str(error))
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
        return _tell(FAILED, str(error))
    scrubbed = sum(size for _, size in pieces)
    facts = {"total_mib": total >> 20, "scrubbed_mib": scrubbed >> 20, "seconds": round(time.monotonic() - began, 3)}
    if dirty is not None:
        return _tell(DIRTY, f"the byte at {dirty:#x} is not zero after it was set to zero", **facts)
    return _tell(DONE, "", **facts)


def _tell(code: int, problem: str, **facts: float) -> int:
    print(json.dumps({"problem": problem, **facts}))
    return code


if __name__ == "__main__":
    sys.exit(main())

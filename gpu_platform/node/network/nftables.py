"""The packet filter of the kernel, by libnftables: the library that the program ``nft`` is made of.

A change by ``nft`` takes 10 to 20 ms. The kernel has it at once, but when the program ends, its socket is closed, and
that waits until no packet sees the rules that were removed. Here the socket stays open, so a change takes less than
1 ms. libnftables(3).
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache

from gpu_platform.domain.errors import HostUnavailable

_LIBRARY = "libnftables.so.1"
_DEFAULT = 0


class Nftables:
    """Runs commands of ``nft`` in the network namespace of the thread that makes this. Thread-safe."""

    def __init__(self) -> None:
        """Raises :class:`HostUnavailable` without the library."""
        self._library = library()
        self._lock = threading.Lock()
        self._context = ctypes.c_void_p(self._library.nft_ctx_new(_DEFAULT))
        self._library.nft_ctx_buffer_output(self._context)
        self._library.nft_ctx_buffer_error(self._context)

    def run(self, commands: str) -> str:
        """Carry out all of the commands or none, and return what ``nft`` prints. Raises :class:`HostUnavailable`."""
        with self._lock:
            if not self._context:
                raise HostUnavailable("the packet filter of this host's ranks is not changed any more")
            failed = self._library.nft_run_cmd_from_buffer(self._context, commands.encode())
            # The buffers are emptied by reading them.
            said = self._library.nft_ctx_get_output_buffer(self._context)
            error = self._library.nft_ctx_get_error_buffer(self._context)
        if failed:
            raise HostUnavailable(f"the packet filter of this host's ranks cannot be written: {_end_of(error)}")
        return said.decode(errors="replace")

    def close(self) -> None:
        """Give the socket back. This waits for the kernel, see above."""
        with self._lock:
            self._library.nft_ctx_free(self._context)
            self._context = ctypes.c_void_p(None)


@cache
def library() -> ctypes.CDLL:
    """The library. Raises :class:`HostUnavailable` if it is not installed."""
    try:
        found = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise HostUnavailable(f"{_LIBRARY} cannot be loaded (apt-get install nftables): {error}") from None
    found.nft_ctx_new.restype = ctypes.c_void_p
    found.nft_ctx_new.argtypes = [ctypes.c_uint32]
    found.nft_run_cmd_from_buffer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    for name in ("nft_ctx_buffer_output", "nft_ctx_buffer_error", "nft_ctx_free"):
        getattr(found, name).argtypes = [ctypes.c_void_p]
    for name in ("nft_ctx_get_output_buffer", "nft_ctx_get_error_buffer"):
        getattr(found, name).argtypes = [ctypes.c_void_p]
        getattr(found, name).restype = ctypes.c_char_p
    return found


def _end_of(error: bytes) -> str:
    return error.decode(errors="replace").strip()[-300:]

"""gpu-platform: a GPU job lifecycle service.

This package is the library: it imports neither Temporal nor a web framework. Inside it, ``scheduling`` builds on
``topology``, and ``topology`` on ``domain``. ``hosts`` and ``store`` build on ``domain`` and never import each other.
``cli`` is the command line, a program that uses ``client``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["Executor"]  # pyright: ignore[reportUnsupportedDunderAll]  # __getattr__ finds it


def __getattr__(name: str) -> Any:
    """``gpu_platform.Executor``, imported when somebody asks for it: most who import this package do not."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.executor"), name)

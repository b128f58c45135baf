"""Imports ``pynvml`` at its first use: a host without GPU support never needs it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pynvml
else:

    class _Lazy:
        def __getattr__(self, name: str) -> Any:
            return getattr(importlib.import_module("pynvml"), name)

    pynvml = _Lazy()

__all__ = ["pynvml"]

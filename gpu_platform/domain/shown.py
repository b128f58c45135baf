"""How models look in notebooks."""

from __future__ import annotations

from importlib import import_module


class ShownInNotebooks:
    """A model with this base is a table where it is the value of a notebook's cell."""

    def _repr_html_(self) -> str:
        # The page's code is needed in notebooks only.
        return import_module("gpu_platform.pages.notebook").rows_table([self])

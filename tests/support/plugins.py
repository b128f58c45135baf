"""Packages with filters, scores, order factors and binders, as if they were installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
FILTERS, SCORES = "gpu_platform.filters", "gpu_platform.plugins"
ORDER_FACTORS, BINDERS = "gpu_platform.orders", "gpu_platform.binders"


def install(monkeypatch: pytest.MonkeyPatch, site: Path, module: Path, group: str, **plugins: str) -> None:
    """Announce in ``site``, a folder of packages, what the file ``module`` holds. ``plugins``: name -> class."""
    name = module.stem
    announced = site / f"{name}-0.1.0.dist-info"
    announced.mkdir(parents=True)
    (announced / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    lines = [f"{plugin} = {name}:{made}" for plugin, made in plugins.items()]
    (announced / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    monkeypatch.syspath_prepend(site)
    monkeypatch.syspath_prepend(module.parent)
    # Forgotten at the test's end, as monkeypatch restores what was set.
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, name)

"""Scores of other packages, found by entry point; see ``examples/plugin-quiet-hosts``."""

from __future__ import annotations

from importlib.metadata import entry_points

from gpu_platform.scheduling.placing.framework import Score

GROUP = "gpu_platform.plugins"


def load_plugins() -> dict[str, Score]:
    """Name -> score, of every installed package that announces one under ``gpu_platform.plugins``.

    An entry point names a class without required arguments. Its score counts only where the policy's
    ``weights`` name it. Raises ValueError for something that is no score.
    """
    found: dict[str, Score] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        score: Score = entry.load()()
        if getattr(score, "name", None) != entry.name:
            raise ValueError(f"plugin {entry.name} ({entry.value}) must be a score with name = {entry.name!r}")
        found[entry.name] = score
    return found

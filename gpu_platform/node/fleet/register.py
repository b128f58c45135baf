"""Which hosts the fleets of this machine have, and under which leaf: for commands that strike many at once."""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpu_platform.domain.errors import NotFound

_DIRECTORY = "fleets"


def note_hosts(state_dir: Path, part: str, leaves: Mapping[str, str]) -> None:
    """Write down the hosts of one process of a fleet. ``leaves``: host -> leaf."""
    directory = state_dir / _DIRECTORY
    directory.mkdir(parents=True, exist_ok=True)
    draft = directory / f".{part}.{os.getpid()}.partial"
    draft.write_text(json.dumps(dict(leaves)))
    draft.rename(directory / f"{part}.json")


def fleet_hosts(state_dir: Path) -> dict[str, str]:
    """Host -> leaf, of all fleets with this state directory."""
    found: dict[str, str] = {}
    for path in sorted((state_dir / _DIRECTORY).glob("*.json")):
        found |= json.loads(path.read_text())
    return found


def select_hosts(state_dir: Path, patterns: Sequence[str], leaves: Sequence[str] = ()) -> list[str]:
    """The hosts whose names match one of ``patterns`` (``rack00*``), or that are below one of ``leaves``.

    Raises :class:`NotFound` if a pattern or a leaf has none.
    """
    known = fleet_hosts(state_dir)
    chosen: set[str] = set()
    for pattern in patterns:
        chosen |= _some(fnmatch.filter(known, pattern), f"no host of a fleet is called {pattern!r}", state_dir)
    for leaf in leaves:
        below = [name for name, of in known.items() if of == leaf]
        chosen |= _some(below, f"no host of a fleet is below a leaf {leaf!r}", state_dir)
    return sorted(chosen)


def _some(found: list[str], otherwise: str, state_dir: Path) -> set[str]:
    if not found:
        raise NotFound(f"{otherwise}: {state_dir} knows {len(fleet_hosts(state_dir))} hosts of fleets")
    return set(found)

"""``gpu-platform simulate derive-mix``: the tasks of a trace, as ``typical_tasks`` of a policy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpu_platform.cli import session


def derive_mix(
    trace: Annotated[Path, typer.Argument(help="As for `simulate`.")],
    covering: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Leave rare tasks out: this part of all tasks is enough.")
    ] = 1.0,
    host_size: Annotated[
        int, typer.Option(min=1, max=64, help="GPUs of a host, if a trace or a job says only how many in all.")
    ] = 8,
) -> None:
    """Print what the jobs of a trace ask of one host, and how often: `typical_tasks` of a policy, in YAML.

    With them the score `fragmentation` packs for these jobs. See docs/how-to/simulate.md.
    """
    from gpu_platform.scheduling.simulator.inputs import files
    from gpu_platform.scheduling.simulator.inputs.typical_mix import as_policy, derive_mix

    loaded = files.load_trace(trace, host_size)
    for note in loaded.notes:
        session.say(f"note: {note}")
    session.write(as_policy(derive_mix(loaded, covering, host_size), loaded.name))

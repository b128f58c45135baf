"""``gpu-platform doctor``: checks the deployment from this machine."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from gpu_platform.cli import session

Role = Annotated[
    list[str] | None,
    typer.Option(
        "--role",
        metavar="ROLE",
        help="What this machine is: control-plane, host or client; may be repeated. Default: found out from its "
        "settings and files.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command ``doctor``."""
    app.command()(doctor)


def doctor(role: Role = None, json: session.Json = False) -> None:
    """Check the deployment from this machine: what is reachable, versions, clocks, schema, isolation, GPUs,
    certificates; and say what to do. Returns 1 if a check failed."""
    arguments = [part for one in role or [] for part in ("--role", one)] + (["--json"] if json else [])
    # It executes another program, because processes depend on the command line and never the other way round.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "workers.doctor", *arguments])

"""``gpu-platform up``: the whole platform on this machine."""

from __future__ import annotations

import os
import sys

import typer


def register(app: typer.Typer) -> None:
    """Add the command ``up``, which parses its own options."""
    app.command(
        "up",
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(up)


def up(context: typer.Context) -> None:
    """Run everything on this machine: Temporal, database, service, scheduler, node workers. Ctrl-C stops it."""
    # It executes another program, because processes depend on the service and never the other way round.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "workers.local.up", *context.args])

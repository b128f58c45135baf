"""``gpu-platform compat slurm``: installs Slurm's commands as small files that call ours."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from gpu_platform.cli import session
from gpu_platform.cli.slurm.entry import COMMANDS

MARK = "# Slurm's command by gpu-platform; written by: gpu-platform compat slurm"
app = typer.Typer(help="Commands of other schedulers, for scripts and habits.", no_args_is_help=True)


def register(parent: typer.Typer) -> None:
    """Add the commands of ``compat``."""
    parent.add_typer(app, name="compat")


@app.callback()
def _group() -> None:
    """Keep ``slurm`` a word of its own, although it is the only command."""


@app.command()
def slurm(
    directory: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="Where; default: ~/.local/share/gpu-platform/slurm."),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove them again.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files of these names that are not ours.")] = False,
) -> None:
    """Install sbatch, srun, squeue, scancel, sinfo, scontrol and sacct."""
    place = directory or Path.home() / ".local" / "share" / "gpu-platform" / "slurm"
    foreign = [name for name in COMMANDS if not _is_ours(place / name)]
    if foreign and not force:
        raise typer.BadParameter(
            f"{place} has {', '.join(foreign)} already, and not from us: choose another --dir, or write --force"
        )
    if remove:
        for name in COMMANDS:
            if name not in foreign:
                (place / name).unlink(missing_ok=True)
        session.say(f"removed from {place}")
        return
    try:
        place.mkdir(parents=True, exist_ok=True)
        for name in COMMANDS:
            _write(place / name, name)
    except OSError as error:
        raise typer.BadParameter(f"cannot write {error.filename}: {error.strerror}") from None
    session.write(str(place))
    if str(place) not in os.environ.get("PATH", "").split(os.pathsep):
        session.say(f"installed; use them with: export PATH={shlex.quote(str(place))}:$PATH")


def text_of(name: str) -> str:
    """The file of one command. It runs the interpreter of this installation, and looks for no module in the current
    directory (``-P``), in which anybody may have put one."""
    call = f"from gpu_platform.cli.slurm.entry import main; main({name!r})"
    return f'#!/bin/sh\n{MARK}\nexec {shlex.quote(sys.executable)} -P -c "{call}" "$@"\n'


def _is_ours(path: Path) -> bool:
    """True if nothing is there, or a file of an earlier installation."""
    if not os.path.lexists(path):
        return True
    try:
        return not path.is_symlink() and MARK in path.read_text("utf-8", errors="replace")[:1000]
    except OSError:
        return False


def _write(path: Path, name: str) -> None:
    temporary = path.with_name(f".{name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755), "w", encoding="utf-8") as file:
        file.write(text_of(name))
    temporary.replace(path)

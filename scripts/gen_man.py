"""Writes a man page for each command from the parser of the command line: ``make docs``, into ``docs/man``, from where
the wheel takes them to ``share/man/man1``.

``gpu-platform.1`` names all commands; ``gpu-platform-jobs.1`` has ``gpu-platform jobs`` and all commands below it.
"""

from __future__ import annotations

import inspect
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from gpu_platform.cli.app import app
from gpu_platform.cli.option_groups import headed_options

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "man"
NAME = "gpu-platform"


def main() -> int:
    folder = Path(sys.argv[1]) if sys.argv[1:] else TARGET
    folder.mkdir(parents=True, exist_ok=True)
    written = pages()
    for old in set(folder.glob("*.1")) - {folder / name for name in written}:
        old.unlink()  # of a command that is gone
    for name, text in written.items():
        (folder / name).write_text(text, encoding="utf-8")
    print(f"wrote man pages into {folder}")
    return 0


def pages() -> dict[str, str]:
    """File name -> text in the language of man(7)."""
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    context = typer.Context(root, info_name=NAME)
    shown = {name: command for name, command in root.commands.items() if not command.hidden}
    found = {f"{NAME}.1": "".join(_root_page(root, context, shown))}
    for name, command in shown.items():
        below = typer.Context(command, info_name=name, parent=context)
        found[f"{NAME}-{name}.1"] = "".join(_page(command, below, name))
    return found


def _root_page(root: Any, context: Any, shown: dict[str, Any]) -> Iterator[str]:
    yield from _head(NAME, root)
    yield f".SH SYNOPSIS\n.B {_text(NAME)}\n{_text('[OPTIONS] COMMAND [ARGS]...')}\n"
    yield from _options(root, context)
    yield ".SH COMMANDS\n"
    for name, command in shown.items():
        yield f".TP\n.BR {_text(f'{NAME}-{name}')} (1)\n{_text(_first_sentence(command.help))}\n"
    yield f".SH EXIT STATUS\n{_text(root.epilog)}\n"


def _page(command: Any, context: Any, name: str) -> Iterator[str]:
    yield from _head(f"{NAME}-{name}", command)
    yield ".SH COMMANDS\n" if isinstance(command, TyperGroup) else ".SH SYNOPSIS\n"
    yield from _section(command, context)
    yield f".SH SEE ALSO\n.BR {_text(NAME)} (1)\n"


def _section(command: Any, context: Any) -> Iterator[str]:
    """The usage of a command, what it does, and its options; of a group, those of all commands below it."""
    if isinstance(command, TyperGroup):
        yield from _options(command, context)
        for name, below in command.commands.items():
            if not below.hidden:
                yield from _section(below, typer.Context(below, info_name=name, parent=context))
        return
    usage = " ".join(command.collect_usage_pieces(context))
    yield f".SS {_quoted(context.command_path)}\n.B {_text(context.command_path)}\n{_text(usage)}\n"
    for paragraph in inspect.cleandoc(command.help or "").replace("\b", "").split("\n\n"):
        yield f".PP\n{_text(paragraph)}\n"
    yield from _options(command, context, heading="")


def _options(command: Any, context: Any, heading: str = ".SH OPTIONS\n") -> Iterator[str]:
    found = headed_options(command, context)
    if found:
        yield heading
    for title, records in found.items():
        if title:
            yield f".PP\n.I {_text(title)}\n"
        for names, meaning in records:
            yield f".TP\n.B {_text(names)}\n{_text(meaning)}\n"


def _head(name: str, command: Any) -> Iterator[str]:
    yield f'.TH {_quoted(name.upper())} 1 "" {_quoted(f"{NAME} {_version()}")} {_quoted(NAME)}\n'
    yield f".SH NAME\n{_text(name)} \\- {_text(_first_sentence(command.help))}\n"


@cache
def _version() -> str:
    """That of the tree, which need not be the one that is installed."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def _first_sentence(text: str | None) -> str:
    return re.split(r"(?<=[.:])\s", " ".join((text or "").split()), maxsplit=1)[0].rstrip(".:")


def _text(text: str | None) -> str:
    """Text on one line that man(7) does not read as its own language."""
    line = " ".join((text or "-").split()).replace("\\", "\\e").replace("-", "\\-") or "\\-"
    return f"\\&{line}" if line[0] in ".'" else line


def _quoted(text: str) -> str:
    return '"' + _text(text).replace('"', "\\(dq") + '"'


if __name__ == "__main__":
    sys.exit(main())

"""A batch script and its directives: ``#SBATCH`` lines with Slurm's options, ``#GPU`` lines with our own."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_platform.slurm.getopt import Given, OptionTable, WrongOption

SLURM, OURS = "#SBATCH", "#GPU"
MAX_BYTES = 96 * 1024
"""A script travels as one variable, of which Linux takes 128 KiB (MAX_ARG_STRLEN, execve(2))."""


class WrongScript(ValueError):
    """A script that cannot be submitted. The message has a line for each thing that is wrong."""


@dataclass(frozen=True)
class Directive:
    """The words of one directive."""

    words: tuple[str, ...]
    where: str
    """``job.sh:3``."""


@dataclass(frozen=True)
class Script:
    """A script as it is submitted: its text, not its path."""

    name: str
    text: str
    slurm: tuple[Directive, ...] = ()
    ours: tuple[Directive, ...] = ()
    late: tuple[str, ...] = ()
    """Where directives stand behind the first command, which nobody reads: ``job.sh:12``."""


def looks_like_script(path: Path) -> bool:
    """True for a readable file that begins with ``#!`` and has a directive. Nothing else is read as a script."""
    if not path.is_file():  # also for a pipe, which would be read for ever
        return False
    try:
        with path.open("rb") as file:
            if file.read(2) != b"#!":
                return False
            head = file.read(MAX_BYTES)
    except OSError:
        return False
    return any(_is_directive(line.decode("utf-8", "replace")) for line in head.split(b"\n"))


def read_script(path: Path) -> Script:
    """Read a script. Raises :class:`WrongScript`."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise WrongScript(f"cannot read {path}: {error.strerror}") from None
    return parse(content, str(path))


def parse(content: bytes, name: str) -> Script:
    """The script of this content. ``name``: for messages. Raises :class:`WrongScript`."""
    if len(content) > MAX_BYTES:
        raise WrongScript(f"{name} has more than {MAX_BYTES} bytes: put data into files, and read them in the script")
    if b"\0" in content:
        raise WrongScript(f"{name} is no text: it has a NUL character. To run a program, write it after --")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise WrongScript(f"{name} is not UTF-8 text (byte {error.start})") from None
    if not text.startswith("#!"):
        raise WrongScript(
            f"{name} does not look like a script: its first line must be #! and the path of a program, e.g. #!/bin/bash"
        )
    if "\r\n" in text:
        raise WrongScript(f"{name} has line breaks of DOS (\\r\\n), which shells do not read: convert it with dos2unix")
    slurm: list[Directive] = []
    ours: list[Directive] = []
    late: list[str] = []
    wrong: list[str] = []
    in_head = True
    # Not splitlines(): a shell, and who reads the script, see no new line at a form feed or U+2028.
    for number, line in enumerate(text.split("\n"), 1):
        where = f"{name}:{number}"
        in_head = in_head and (not line.strip() or line.lstrip().startswith("#"))
        if not _is_directive(line):
            continue
        if not in_head:
            late.append(where)
            continue
        marker = SLURM if line.startswith(SLURM) else OURS
        try:
            words = tuple(shlex.split(line[len(marker) :], comments=True))
        except ValueError as error:
            wrong.append(f"{where}: {error}".replace("No closing quotation", "a quotation mark is not closed"))
            continue
        (slurm if marker == SLURM else ours).append(Directive(words, where))
    if wrong:
        raise WrongScript("\n".join(wrong))
    return Script(name, text, tuple(slurm), tuple(ours), tuple(late))


def read_directives(directives: Sequence[Directive], table: OptionTable) -> list[Given]:
    """All options of directives, in their order. Raises :class:`WrongScript`, with every wrong line."""
    found: list[Given] = []
    wrong: list[str] = []
    for directive in directives:
        try:
            given, rest = table.read(directive.words, directive.where)
        except WrongOption as error:
            wrong.append(f"{directive.where}: {SLURM} {error}")
            continue
        if rest and rest[0] in ("hetjob", "packjob"):
            wrong.append(
                f"{directive.where}: {SLURM} {rest[0]}: there are no heterogeneous jobs: hosts of different kinds are "
                "rank groups (gpu-platform submit --file)"
            )
        elif rest:
            wrong.append(f"{directive.where}: {SLURM} {rest[0]!r} is no option: options begin with --")
        found += given
    if wrong:
        raise WrongScript("\n".join(wrong))
    return found


def _is_directive(line: str) -> bool:
    return any(line.startswith((f"{marker} ", f"{marker}\t")) for marker in (SLURM, OURS))

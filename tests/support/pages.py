"""The pages of the documentation: their blocks of code, what is said about each, and the commands in them.

A block of shell or Python is run by ``tests/integration/test_docs.py``. One that cannot be run has a comment on the
line above it, which the site does not show: ``<!-- not run here: it needs a terminal -->``. Its commands are parsed all
the same. One that needs a machine of its own names it, ``<!-- run on: gpu-control -->``, and
``tests/integration/test_docs_on_machines.py`` runs it there.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
HOW_TOS = sorted((DOCS / "how-to").glob("*.md"))
FOLLOWED = [ROOT / "README.md", DOCS / "index.md", DOCS / "tutorial.md", *HOW_TOS]
"""The pages that a reader follows by typing what they show."""
EXPLAINING = sorted((DOCS / "explanation").glob("*.md"))
SHELL = {"sh", "console", "bash"}
RUN = SHELL | {"python"}
"""Languages of blocks that are run."""
OURS = {"gpu-platform", "/opt/gpu-platform/.venv/bin/gpu-platform", "as_service"}
_COMMENT = re.compile(r"<!--\s*(?P<what>not run here|run on|exit code)\s*:?\s*(?P<said>.*?)\s*-->", re.DOTALL)
_SEPARATORS = {"|", "||", "&&", ";", "do"}
_OPERATORS = {">", ">>", "<"}


@dataclass(frozen=True)
class Block:
    """A block of code of a page."""

    page: Path
    line: int
    """Where its fence is."""
    language: str
    """Empty: it does not say."""
    text: str
    not_run: str | None
    """Why it is not run. None: it is run."""
    machine: str | None
    """The machine of its own where it is run. None: the one where most pages are followed."""
    exit_code: int
    """With what the last command of a block of shell ends."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_file(self) -> bool:
        """It is a program that the reader saves, and not commands to type."""
        return self.text.startswith("#!")

    @property
    def commands(self) -> str:
        """The shell of this block: of a block with prompts what follows them."""
        if self.language != "console":
            return self.text
        return "".join(line[2:] for line in self.text.splitlines(keepends=True) if line.startswith("$ "))


@cache
def blocks(page: Path) -> list[Block]:
    """All blocks of code, in order; indented ones, too."""
    found: list[Block] = []
    above = ("", -1)
    for token in MarkdownIt().parse(page.read_text()):
        if token.type == "html_block":
            assert token.map
            above = (token.content, token.map[1])
        elif token.type in ("fence", "code_block"):
            assert token.map
            said = {one["what"]: one["said"] for one in _COMMENT.finditer(above[0])} if above[1] == token.map[0] else {}
            language = token.info.split()[0] if token.type == "fence" and token.info.strip() else ""
            found.append(
                Block(
                    page,
                    token.map[0] + 1,
                    language,
                    token.content,
                    said.get("not run here"),
                    said.get("run on"),
                    int(said.get("exit code", 0)),
                )
            )
    return found


def shell_blocks() -> list[Block]:
    """The commands in shell of all pages that a reader follows."""
    return [block for page in FOLLOWED for block in blocks(page) if block.language in SHELL and not block.is_file]


def inline_code(page: Path) -> list[str]:
    """What stands in backticks in the text, with line ends as spaces."""
    tokens = [token for token in MarkdownIt("commonmark").enable("table").parse(page.read_text()) if token.children]
    return [child.content for token in tokens for child in token.children or () if child.type == "code_inline"]


def command_lines(shell: str) -> Iterator[str]:
    """Each line of shell, with what ``\\`` joins and what braces mean. ``$(…)`` that is assigned is a line."""
    for line in shell.replace("\\\n", " ").splitlines():
        braces = re.search(r"(\S*)\{([\w,-]+,[\w,-]+)\}(\S*)", line)
        if braces:
            words = " ".join(f"{braces[1]}{one}{braces[3]}" for one in braces[2].split(","))
            line = line.replace(braces[0], words)
        yield re.sub(r"^\w+=\$\((.*)\)(\s*#.*)?$", r"\1", line)


def split(line: str) -> list[str]:
    """The words of a line of shell, without a comment; operators are words."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    return list(lexer)


def commands(shell: str) -> Iterator[list[str]]:
    """Each simple command of a block of shell, with its redirections."""
    for line in command_lines(shell):
        command: list[str] = []
        for word in split(line):
            if word in _SEPARATORS:
                yield command
                command = []
            else:
                command.append(word)
        yield command


def of_ours(command: list[str]) -> list[str] | None:
    """The arguments of ``gpu-platform`` if this command runs it, else None."""
    command = list(itertools.dropwhile(lambda word: re.match(r"\w+=", word), command))
    if command[:3] == ["docker", "compose", "exec"] and "gpu-platform" in command:
        command = command[command.index("gpu-platform") :]
    elif command[:3] == ["docker", "compose", "run"]:  # its entry point is `gpu-platform keys`
        command = ["gpu-platform", *command[command.index("keys") :]]
    if not command or command[0] not in OURS:
        return None
    return list(itertools.takewhile(lambda word: word not in _OPERATORS, command[1:]))

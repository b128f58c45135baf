"""Reads options as Slurm's commands do (getopt_long(3)): ``-N2``, ``-N 2``, ``--nodes=2``, ``--nod 2``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

Value = Literal["none", "required", "optional"]


_ALSO = {"tasks-per-node": "ntasks-per-node"}
"""Names that Slurm takes, and that its manual pages have left out."""


class WrongOption(ValueError):
    """An option that there is not, or that has a wrong value."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option of one of Slurm's commands."""

    name: str
    """Without the dashes."""
    short: str = ""
    value: Value = "required"


@dataclass(frozen=True, slots=True)
class Given:
    """An option as somebody wrote it, and where."""

    name: str
    value: str
    where: str = ""
    """``job.sh:3``; empty: on the command line."""

    @property
    def written(self) -> str:
        """The option for a message."""
        return f"--{self.name}={self.value}" if self.value else f"--{self.name}"


class OptionTable:
    """The options of one command."""

    def __init__(self, options: Iterable[Option]) -> None:
        options = list(options)
        self.by_name = {option.name: option for option in options}
        self._by_short = {option.short: option for option in options if option.short}

    def read(self, words: Sequence[str], where: str = "", *, anywhere: bool = False) -> tuple[list[Given], list[str]]:
        """The options, and what is left. Reading ends at the first word that is no option, unless ``anywhere``, and at
        ``--``. Raises :class:`WrongOption`, with the nearest option there is."""
        found: list[Given] = []
        rest: list[str] = []
        queue = list(words)
        while queue:
            word = queue.pop(0)
            if word == "--":
                return found, rest + queue
            if word.startswith("--"):
                found.append(self._long(word[2:], queue, where))
            elif word.startswith("-") and len(word) > 1:
                found += self._short(word[1:], queue, where)
            elif anywhere:
                rest.append(word)
            else:
                return found, [word, *queue]
        return found, rest

    def _long(self, text: str, queue: list[str], where: str) -> Given:
        name, equals, value = text.partition("=")
        option = self._named(name)
        if option.value == "none":
            if equals:
                raise WrongOption(f"--{option.name} takes no value, but {value[:40]!r} was written")
            return Given(option.name, "", where)
        if not equals and option.value == "required":
            if not queue:
                raise WrongOption(f"--{option.name} needs a value")
            value = queue.pop(0)
        return Given(option.name, value, where)

    def _named(self, name: str) -> Option:
        name = _ALSO.get(name, name)
        if name in self.by_name:
            return self.by_name[name]
        begun = [option for option in self.by_name if option.startswith(name)] if name else []
        if len(begun) == 1:
            return self.by_name[begun[0]]
        if begun:
            raise WrongOption(f"--{name} is not clear: it begins {', '.join(f'--{one}' for one in sorted(begun))}")
        near = get_close_matches(name, self.by_name, 1, 0.5)
        raise WrongOption(f"there is no option --{name[:40]}" + (f"; the nearest is --{near[0]}" if near else ""))

    def _short(self, text: str, queue: list[str], where: str) -> list[Given]:
        found: list[Given] = []
        while text:
            letter, text = text[0], text[1:]
            option = self._by_short.get(letter)
            if option is None:
                short = ", ".join(f"-{one}" for one in sorted(self._by_short))
                raise WrongOption(f"there is no option -{letter}; there are {short}")
            if option.value == "none":
                found.append(Given(option.name, "", where))
                continue
            value, text = text.removeprefix("="), ""
            if not value and option.value == "required":
                if not queue:
                    raise WrongOption(f"-{letter} needs a value")
                value = queue.pop(0)
            found.append(Given(option.name, value, where))
        return found


def table(text: str) -> OptionTable:
    """A table from a short notation: ``nodes|N=`` (a value), ``verbose|v`` (none), ``nice?`` (optional)."""
    options: list[Option] = []
    for word in text.split():
        value: Value = "required" if word.endswith("=") else "optional" if word.endswith("?") else "none"
        name, _, short = word.rstrip("=?").partition("|")
        options.append(Option(name, short, value))
    return OptionTable(options)

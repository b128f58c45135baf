"""Which hosts a job may have: constraints on their labels, and lists of their names.

A constraint is ``label=value``, ``label=value|value`` or ``label!=value``; all constraints of a request must hold. A
host without the label meets ``!=``, as in Kubernetes (NotIn). A list of names holds patterns: ``dgx*``, or numbers as
in Slurm: ``dgx[1-4,7]``, ``rack1-[01-12]``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from typing import Annotated

from pydantic import AfterValidator, Field

from gpu_platform.domain.jobs.index_set import IndexSet

MAX_CONSTRAINTS = 32
MAX_PATTERNS = 256
_CONSTRAINT = re.compile(r"([^=!|\s]+)\s*(!?=)\s*(.*)")
MAX_BRACKETS = 3
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_PATTERN = re.compile(rf"[^\s\[\],]+|[^\s\[\],*?]*(?:\[[^\[\]]*\][^\s\[\],*?]*){{1,{MAX_BRACKETS}}}")


@dataclass(frozen=True)
class Constraint:
    """What one constraint says."""

    label: str
    values: tuple[str, ...]
    excludes: bool = False
    """True for ``!=``: the label must have none of the values."""

    @classmethod
    def parse(cls, text: str) -> Constraint:
        """Read a constraint. Raises ``ValueError`` for anything else."""
        found = _CONSTRAINT.fullmatch(text.strip())
        values = tuple(value.strip() for value in found[3].split("|")) if found is not None else ()
        if found is None or not all(values) or any("=" in value for value in values):
            raise ValueError(
                f"{text!r} is not a constraint on a label of hosts: write label=value, label=value|value (one of "
                "them), or label!=value; say several constraints for labels that must all match"
            )
        return cls(found[1], values, excludes=found[2] == "!=")

    def __str__(self) -> str:
        return f"{self.label}{'!=' if self.excludes else '='}{'|'.join(self.values)}"

    def accepts(self, labels: Mapping[str, str]) -> bool:
        """Tell whether a host with these labels meets it."""
        return (labels.get(self.label) in self.values) != self.excludes


_constraint = lru_cache(maxsize=4096)(Constraint.parse)


@dataclass(frozen=True)
class _NamePattern:
    expression: re.Pattern[str]
    numbers: tuple[tuple[IndexSet, int], ...]
    """For each pair of brackets: the numbers, and how many digits they have at least."""

    def matches(self, host: str) -> bool:
        found = self.expression.fullmatch(host)
        return found is not None and all(
            text == f"{int(text):0{digits}}" and int(text) in numbers
            for text, (numbers, digits) in zip(found.groups(), self.numbers, strict=True)
        )


@lru_cache(maxsize=4096)
def _name_pattern(text: str) -> _NamePattern:
    if not _PATTERN.fullmatch(text):
        raise ValueError(
            f"{text!r} is not a pattern of host names: write dgx1, dgx*, or dgx[1-4,7]; one pattern per item, without "
            f"* and ? beside brackets, and with at most {MAX_BRACKETS} pairs of brackets"
        )
    if "[" not in text:
        return _NamePattern(re.compile(translate(text)), ())
    expression, numbers = "", []
    for place, part in enumerate(_BRACKETS.split(text)):
        if place % 2 == 0:
            expression += re.escape(part)
            continue
        try:
            found = IndexSet.parse(part)
        except ValueError as error:
            raise ValueError(f"{text!r}: {error}") from None
        first = re.match(r"0[0-9]+", part.strip())
        numbers.append((found, len(first[0]) if first else 1))
        expression += "([0-9]{1,12})"
    return _NamePattern(re.compile(expression), tuple(numbers))


def _check_constraint(text: str) -> str:
    return str(Constraint.parse(text))


def _check_pattern(text: str) -> str:
    text = text.strip()
    _name_pattern(text)
    return text


Constraints = Annotated[
    tuple[Annotated[str, Field(max_length=1024), AfterValidator(_check_constraint)], ...],
    Field(max_length=MAX_CONSTRAINTS),
]
HostPatterns = Annotated[
    tuple[Annotated[str, Field(max_length=256), AfterValidator(_check_pattern)], ...], Field(max_length=MAX_PATTERNS)
]


def matches_any(patterns: Iterable[str], host: str) -> bool:
    """Tell whether a host has one of the names."""
    return any(_name_pattern(pattern).matches(host) for pattern in patterns)


@dataclass(frozen=True)
class HostChoice:
    """Everything that a request says of which hosts it may have."""

    constraints: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    """Patterns of host names. Empty: all."""
    exclude: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """False: every host is accepted."""
        return bool(self.constraints or self.include or self.exclude)

    def __str__(self) -> str:
        words = [*self.constraints]
        words += [f"on {', '.join(self.include)}"] if self.include else []
        words += [f"not on {', '.join(self.exclude)}"] if self.exclude else []
        return ", ".join(words)

    def accepts(self, host: str, labels: Mapping[str, str]) -> bool:
        """Tell whether the job may have this host."""
        if self.include and not matches_any(self.include, host):
            return False
        if matches_any(self.exclude, host):
            return False
        return all(_constraint(text).accepts(labels) for text in self.constraints)

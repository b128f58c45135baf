"""What ``squeue``, ``sinfo``, ``sacct`` and ``scancel`` do alike with their options."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence

from gpu_platform.cli import session
from gpu_platform.cli.slurm import entry
from gpu_platform.slurm.getopt import OptionTable, WrongOption

_LONGEST_INTERVAL_S = 86_400


FILTERS = (
    *("user", "uid", "jobs", "name", "jobname", "state", "states", "partition", "account", "accounts", "nodelist"),
    *("nodes", "reservation"),
)
"""Options that choose among jobs or hosts."""


def check_filters(table: OptionTable, asked: Mapping[str, str]) -> None:
    """Raise :class:`WrongOption` for a filter without a value, as an unset variable of a script leaves it: to pass it
    over would choose all."""
    for name in FILTERS:
        if name in asked and table.by_name[name].value == "required" and not asked[name].strip(", "):
            raise WrongOption(f"--{name}: the value is empty")


def interval_s(text: str) -> float:
    """The seconds of ``--iterate``, at least 1. Raises :class:`WrongOption`."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= _LONGEST_INTERVAL_S:
        raise WrongOption(f"--iterate={text[:40]}: write seconds, at most {_LONGEST_INTERVAL_S}")
    return max(1.0, seconds)


def read_options(
    table: OptionTable, words: Sequence[str], usage: str, *, adding: Container[str] = ()
) -> dict[str, str] | None:
    """The options of a command that takes nothing else. None: they asked for the version or for help, which is printed.

    ``adding``: those that may be given several times and then name more; of the others the last one counts. Raises
    :class:`WrongOption`.
    """
    given, rest = table.read(list(words), anywhere=True)
    asked: dict[str, str] = {}
    for one in given:
        more = one.name in adding and one.name in asked
        asked[one.name] = f"{asked[one.name]},{one.value}" if more else one.value
    if rest:
        raise WrongOption(f"Unrecognized option: {rest[0]}")
    if "version" in asked:
        session.write(entry.VERSION)
        return None
    if "help" in asked or "usage" in asked:
        session.write(usage)
        return None
    check_filters(table, asked)
    return asked

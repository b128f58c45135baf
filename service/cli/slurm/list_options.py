"""What ``squeue``, ``sinfo`` and ``sacct`` do alike with their options."""

from __future__ import annotations

from collections.abc import Container, Sequence

from gpu_platform.slurm.getopt import OptionTable, WrongOption
from service.cli import session
from service.cli.slurm import entry


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
    return asked

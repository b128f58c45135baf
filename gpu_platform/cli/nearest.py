"""What somebody meant who mistyped a name."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name that is most like the word, whatever its case. None: none is like it."""
    from difflib import get_close_matches  # only errors need it

    by_fold = {name.casefold(): name for name in known}
    found = get_close_matches(word.casefold(), by_fold, 1)
    return by_fold[found[0]] if found else None


def not_one_of(word: str, known: Iterable[str]) -> str:
    """``'jason' is not one of table, json, csv. Did you mean json?``"""
    names = [*known]
    meant = nearest(word, names)
    return f"{word!r} is not one of {', '.join(names)}." + (f" Did you mean {meant}?" if meant else "")

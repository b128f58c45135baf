"""Checks of names, commands and environments, for everything that a user sends; and how texts and times are shown."""

from __future__ import annotations

import re
import unicodedata
from datetime import UTC, datetime

MAX_COMMAND_BYTES = 128 * 1024
"""Linux passes at most 128 KiB in one argument (MAX_ARG_STRLEN, execve(2))."""
MAX_ENV_BYTES = 256 * 1024

NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_NUMBER = re.compile(r"[0-9]+")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


_CHANGES_A_TERMINAL = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories: control characters, invisible ones that change the order of others, surrogates, separators."""


def printable(text: str, keep: str = "\n\t") -> str:
    """``text`` with every character that a terminal would obey shown as an escape, e.g. ``\\x1b`` or ``\\u202e``.

    Texts of jobs and hosts may contain sequences that move the cursor, write the clipboard or reverse the direction of
    writing. ``keep``: control characters that stay as they are.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(character if character in keep else _shown(character) for character in text)


def one_line(text: str) -> str:
    """As :func:`printable`, but line ends and tabs are shown as escapes, too: the text cannot look like two lines."""
    return printable(text, keep="")


def duration(seconds: float) -> str:
    """The time in at most two units: ``5s``, ``2m05s``, ``1h30m``, ``3d02h``."""
    seconds = max(0, int(seconds))
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02}s"
    if seconds < 86400:
        return f"{seconds // 3600}h{seconds % 3600 // 60:02}m"
    return f"{seconds // 86400}d{seconds % 86400 // 3600:02}h"


def moment(at: datetime) -> str:
    """A time as all people of a cluster read it: ``2026-12-01 08:00:00 UTC``."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _shown(character: str) -> str:
    if unicodedata.category(character) not in _CHANGES_A_TERMINAL:
        return character
    return character.encode("unicode_escape").decode("ascii")


def counted(number: int, what: str) -> str:
    """A number with its noun, e.g. ``1 GPU``, ``2 GPUs``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def name_pattern(name: str) -> str:
    """The name with ``#`` for each number: ``train-7`` and ``train-12`` are runs of the same work."""
    return _NUMBER.sub("#", name)


def check_name(value: str) -> str:
    """Return ``value`` if it is a valid name. Raises ``ValueError`` if not."""
    if not NAME.fullmatch(value):
        raise ValueError(
            f"{value[:80]!r} is not a name: use 1 to 63 letters, digits, '.', '_' or '-', "
            "starting and ending with a letter or digit"
        )
    return value


def check_command(value: list[str]) -> list[str]:
    """Return ``value`` if it can be executed: not empty, no NUL, not too long. Raises ``ValueError`` if not."""
    if not value[0].strip():
        raise ValueError("the program to run is empty")
    for argument in value:
        check_text(argument, "an argument of the command")
    size = sum(len(argument.encode()) + 1 for argument in value)
    if size > MAX_COMMAND_BYTES:
        raise ValueError(f"the command has {size} bytes; at most {MAX_COMMAND_BYTES} are allowed: put it into a script")
    return value


def check_env(value: dict[str, str]) -> dict[str, str]:
    """Return ``value`` if it is a valid environment that is not too large. Raises ``ValueError`` if not."""
    for key, text in value.items():
        if not _ENV_NAME.fullmatch(key):
            raise ValueError(f"{key[:80]!r} is not the name of an environment variable")
        check_text(text, f"the value of {key}")
    size = sum(len(k.encode()) + len(v.encode()) + 2 for k, v in value.items())
    if size > MAX_ENV_BYTES:
        raise ValueError(
            f"the environment has {size} bytes; at most {MAX_ENV_BYTES} are allowed: put large values into a file"
        )
    return value


def check_text(text: str, what: str) -> None:
    """Raise ``ValueError`` if ``text`` has a NUL character or is not UTF-8. ``what`` names it in the message."""
    if "\0" in text:
        raise ValueError(f"{what} contains a NUL character")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} is not valid UTF-8") from error

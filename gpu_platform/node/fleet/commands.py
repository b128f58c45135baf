"""Commands of simulated duration: what a rank on a fleet host does without being a process.

::

    simulated:sleep SECONDS                  ends with 0 after so long
    simulated:exit CODE [after SECONDS]      ends with CODE, at once or after so long

``SECONDS`` is a number, or a range such as ``20-90``: each rank of each attempt then has its own duration, always the
same one. SIGTERM ends such a rank at once, with 143.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import InvalidRequest

PREFIX = "simulated:"
GRAMMAR = "simulated:sleep SECONDS, or simulated:exit CODE [after SECONDS]; SECONDS may be a range such as 20-90"
_SECONDS = r"(?P<low>\d+(\.\d+)?)(-(?P<high>\d+(\.\d+)?))?"
_FORMS = (
    re.compile(rf"simulated:sleep {_SECONDS}"),
    re.compile(rf"simulated:exit (?P<code>\d{{1,3}})( after {_SECONDS})?"),
)


@dataclass(frozen=True)
class SimulatedCommand:
    """A parsed command: the rank ends with ``exit_code`` after ``shortest_s`` to ``longest_s`` seconds."""

    exit_code: int
    shortest_s: float
    longest_s: float

    @classmethod
    def parse(cls, command: Sequence[str]) -> SimulatedCommand:
        """Read a command. Raises :class:`InvalidRequest`."""
        text = " ".join(command)
        found = next((match for form in _FORMS if (match := form.fullmatch(text)) is not None), None)
        if found is None:
            raise InvalidRequest(f"{text!r} is no simulated command; write {GRAMMAR}")
        parts = found.groupdict()
        low = float(parts["low"] or 0.0)
        high = float(parts["high"] or low)
        code = int(parts.get("code") or 0)
        if high < low or code > 255:
            raise InvalidRequest(f"{text!r}: a range goes from low to high, and an exit code is at most 255")
        return cls(code, low, high)

    def lasts_s(self, key: AttemptKey, rank: int) -> float:
        """How long this rank of this attempt runs, in seconds."""
        digest = hashlib.sha256(f"{key}/{rank}".encode()).digest()
        return self.shortest_s + (self.longest_s - self.shortest_s) * int.from_bytes(digest[:4]) / 2**32


def is_simulated(command: Sequence[str]) -> bool:
    """True if the command asks for a simulated duration and not for a program."""
    return bool(command) and command[0].startswith(PREFIX)

"""What a host answered to a step, if nobody can read it.

An error while Temporal's SDK reads the result of a step fails the task of the whole workflow, which is then tried for
ever: a host that answers garbage could stop a gang, or an array, for good. So the answer becomes this object, and
``workflows/attempts/answers.py`` makes of it a failure of the host.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class UnreadablePayload:
    """Stands for the answer."""

    why: str

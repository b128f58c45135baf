"""What a step of an attempt returns when the attempt does not go on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Interrupted:
    """A person, a fault, a lost host or the scheduler stops the attempt: see :meth:`Attempt.interrupted`."""


@dataclass(frozen=True)
class NotHealed:
    """A GPU of the reservation that the gang kept does not work again in time."""


INTERRUPTED = Interrupted()
NOT_HEALED = NotHealed()

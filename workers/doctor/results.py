"""What a check of ``gpu-platform doctor`` found, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from gpu_platform.domain.errors import PlatformError
from gpu_platform.domain.texts import one_line


class Outcome(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    """It works, but not as it should, or it will stop working."""
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"
    """There is nothing to check on this machine, or this command may not ask. ``found`` says why."""


@dataclass(frozen=True)
class Result:
    """The result of one check."""

    part: str
    """What was checked: ``settings``, ``service``, ``database``, ``temporal``, ``host`` or ``certificates``."""
    name: str
    outcome: Outcome
    found: str
    """What there is, for people."""
    advice: str = ""
    """What to do. Empty if all is well."""


class Part:
    """Makes the results of one part."""

    def __init__(self, name: str) -> None:
        self.name = name

    def ok(self, name: str, found: str) -> Result:
        """All is well."""
        return Result(self.name, name, Outcome.OK, one_line(found))

    def warning(self, name: str, found: str, advice: str) -> Result:
        """It works, but something should be done."""
        return Result(self.name, name, Outcome.WARNING, one_line(found), advice)

    def failed(self, name: str, found: str, advice: str) -> Result:
        """It does not work."""
        return Result(self.name, name, Outcome.FAILED, one_line(found), advice)

    def skipped(self, name: str, why: str) -> Result:
        """There is nothing to check."""
        return Result(self.name, name, Outcome.NOT_APPLICABLE, one_line(why))

    def guarded(self, checks: Iterable[Result]) -> Iterator[Result]:
        """The results; an error of the platform that a check raises is one more, and ends the part."""
        try:
            yield from checks
        except PlatformError as error:
            yield self.failed("check", error.message, "do what the message says, then run this command again")

"""What a request comes back with. Both clients use it, whatever library sends their requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request, complete. The names of its ``headers`` are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def is_success(self) -> bool:
        """True if the service did what was asked."""
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        """The content as text."""
        return self.content.decode("utf-8", "replace")


class NoAnswer(Exception):
    """A request got no answer, or only a part of one. ``was_sent``: the service may have received it."""

    def __init__(self, cause: Exception, *, was_sent: bool) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.was_sent = was_sent


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event of a stream (HTML standard, section 9.2)."""

    event: str
    data: str
    id: str

"""Times in queries and bodies: with a date and a time zone, as RFC 3339 writes them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AwareDatetime, BeforeValidator

WANTED = "should be a date and time with a time zone, e.g. 2026-01-02T03:04:05Z"


def has_date(text: str) -> bool:
    """False for a number, which would be read as seconds since 1970, and is more likely a mistake."""
    return "-" in text[1:]


def _not_a_number(value: Any) -> Any:
    if isinstance(value, str) and not has_date(value):
        raise ValueError(WANTED)
    return value


Time = Annotated[AwareDatetime, BeforeValidator(_not_a_number)]
"""The type of a query parameter."""

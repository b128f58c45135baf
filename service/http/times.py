"""Times in queries: with a date and a time zone, as RFC 3339 writes them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AwareDatetime, BeforeValidator


def _not_a_number(value: Any) -> Any:
    """A number would be read as seconds since 1970, and is more likely a mistake."""
    if isinstance(value, str) and "-" not in value[1:]:
        raise ValueError("should be a date and time with a time zone, e.g. 2026-01-02T03:04:05Z")
    return value


Time = Annotated[AwareDatetime, BeforeValidator(_not_a_number)]
"""The type of a query parameter."""

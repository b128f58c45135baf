"""The dates in a certificate of our CA, and when it was signed."""

from __future__ import annotations

from datetime import timedelta

BACKDATED = timedelta(minutes=5)
"""A certificate is valid from this long before it was signed, because clocks differ."""
BACKDATED_PART = 10
"""The time before is at most the life of the certificate divided by this."""


def issued_at_s(not_before_s: float, not_after_s: float) -> float:
    """When our CA signed a certificate with these dates, Unix seconds."""
    return not_before_s + min(BACKDATED.total_seconds(), (not_after_s - not_before_s) / (BACKDATED_PART + 1))

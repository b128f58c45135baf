"""Certificates that are not believed any more: those of a machine that were signed before it was revoked.

A machine that was enrolled again has newer ones. So a stolen certificate of it stays worthless.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpu_platform.identity.certificates import Peer

Revoked = Mapping[str, float]
"""Name -> when it was revoked, Unix seconds."""


def is_revoked(peer: Peer, revoked: Revoked) -> bool:
    """True if the certificate was signed before its machine was revoked."""
    at = revoked.get(peer.path)
    return at is not None and peer.issued_at_s <= at


def first_second_after(revoked_at_s: float) -> float:
    """From when on (Unix seconds) a new certificate is believed: certificates know whole seconds only."""
    return float(int(revoked_at_s) + 1)

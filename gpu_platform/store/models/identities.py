"""Tables of machines with certificates, and of the join tokens by which they get the first one."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Text
from sqlmodel import Field

from gpu_platform.store.models.columns import (
    Record,
    optional_text_column,
    optional_time_column,
    text_column,
    time_column,
)


class MachineIdentityRecord(Record, table=True):
    """A machine or process to which the CA gave a certificate."""

    path: str = Field(primary_key=True, sa_type=Text)
    """Its name: ``node/dgx-a``."""
    address: str | None = optional_text_column()
    """The address or name that the operator enrolled it with. None: the one that it connects from."""
    enrolled_at: datetime = time_column()
    expires_at: datetime | None = optional_time_column()
    """End of the newest certificate. None: it has got none yet."""
    revoked_at: datetime | None = optional_time_column()
    """Certificates that were signed before are not believed. It is out until ``enrolled_at`` is later."""


class JoinTokenRecord(Record, table=True):
    """A token for one first certificate. Only its hash is kept."""

    hash: str = Field(primary_key=True, sa_type=Text)
    """SHA-256 of the token's secret, in hex."""
    path: str = text_column()
    """The name that the certificate will have."""
    address: str | None = optional_text_column()
    created_by: str = text_column()
    expires_at: datetime = time_column()
    used_at: datetime | None = optional_time_column()
    """A used token is worth nothing."""

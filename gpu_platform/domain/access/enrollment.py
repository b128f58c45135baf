"""How an operator lets a machine in: what is asked of the service, and what the machine is given."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class EnrollmentOrder(BaseModel):
    """What an operator asks for a new machine."""

    model_config = ConfigDict(extra="forbid")

    address: Annotated[str, Field(max_length=253, pattern=r"^[A-Za-z0-9._:-]+$")] | None = Field(
        default=None, description="Where its node worker is reached; default: the address that it reports from"
    )
    valid_s: Annotated[float, Field(ge=1, le=7 * 86_400, description="How long the join token works")] = 3600.0


class Enrollment(BaseModel):
    """What a new machine needs. It is shown once: the service keeps only a hash."""

    name: str
    join_token: str | None = None
    """For ``node.join_token``. None: the service does not use TLS."""
    node_token: str | None = None
    """For ``node.token``, where the service does not use TLS."""
    expires_at: datetime | None = None
    """When the join token stops to work."""

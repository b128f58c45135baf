"""Uploaded code, known by its content."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, Field


class Upload(BaseModel):
    """Uploaded code of a namespace, and how much of it has arrived."""

    namespace: str
    sha256: Annotated[str, Field(description="Of the upload, in hexadecimal")]
    received: Annotated[int, Field(description="Bytes that have arrived: go on there. 0: nothing is there")]
    complete: Annotated[bool, Field(description="All of it is there, and was checked: jobs may use it")]
    limit_bytes: Annotated[int, Field(description="The largest upload that this cluster takes")]
    used_at: Annotated[
        datetime | None, Field(description="When it was last sent, or a job with it was last submitted")
    ] = None

"""Secrets of namespaces, as people see them. Nobody reads a value back."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from gpu_platform.domain.errors import InvalidRequest

MAX_SECRET_BYTES = 64 * 1024
"""The longest value. Linux takes at most 128 KiB in one variable (MAX_ARG_STRLEN, execve(2))."""
_MAX_ENCODED = 4 * ((MAX_SECRET_BYTES + 2) // 3)


class SecretValue(BaseModel):
    """The value of a secret, on its way to the service."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    value: Annotated[
        SecretStr,
        Field(
            min_length=1, max_length=_MAX_ENCODED, description=f"At most {MAX_SECRET_BYTES} bytes; nobody reads it back"
        ),
    ]
    encoding: Annotated[
        Literal["text", "base64"], Field(description="base64: for values that are not text, e.g. a key file")
    ] = "text"

    @classmethod
    def of(cls, content: bytes) -> SecretValue:
        """The value with this content."""
        try:
            return cls(value=SecretStr(content.decode()))
        except UnicodeDecodeError:
            return cls(value=SecretStr(base64.b64encode(content).decode()), encoding="base64")

    def content(self) -> bytes:
        """The bytes of the value. Raises :class:`InvalidRequest`, never with the value in it."""
        text = self.value.get_secret_value()
        try:
            found = text.encode() if self.encoding == "text" else base64.b64decode(text, validate=True)
        except (UnicodeEncodeError, binascii.Error):
            raise InvalidRequest(f"the value of the secret is not {self.encoding}, as encoding says") from None
        if not found:
            raise InvalidRequest("the value of the secret is empty")
        if len(found) > MAX_SECRET_BYTES:
            raise InvalidRequest(f"the value of the secret has {len(found)} bytes; at most {MAX_SECRET_BYTES} fit")
        return found


class SecretInfo(BaseModel):
    """A secret, without its value."""

    namespace: str
    name: str
    created_at: datetime
    created_by: str
    """This user may replace and delete it, as an admin of the namespace may."""
    updated_at: datetime
    updated_by: str
    is_text: bool
    """It can be a variable. Other values can be files only."""
    key_id: str
    """The key of the key ring that seals it."""

"""What all sections of the settings share: their base, and types that are more than a text."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


class Section(BaseModel):
    """A section of the settings. It refuses names that it does not know."""

    model_config = ConfigDict(extra="forbid")


def _host_and_port(value: str) -> str:
    try:
        parts = urlsplit(f"//{value}")
        is_address = bool(parts.hostname) and parts.port is not None and parts.netloc == value and "@" not in value
    except ValueError:
        is_address = False
    if not is_address:
        raise ValueError("write HOST:PORT, e.g. 127.0.0.1:7233")
    return value


def _api_url(value: str) -> str:
    try:
        parts = urlsplit(value)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_url = False
    if not is_url:
        raise ValueError("write http://HOST:PORT or https://HOST:PORT")
    return value


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


HostAndPort = Annotated[str, AfterValidator(_host_and_port)]
"""``HOST:PORT``."""
ApiUrl = Annotated[str, AfterValidator(_api_url)]
"""An address with http or https."""
MetricsPort = Annotated[int, Field(ge=0, le=65535)] | None
"""0: any free port. None: not served."""
LogLevel = Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(_upper)]
"""In upper or lower case."""

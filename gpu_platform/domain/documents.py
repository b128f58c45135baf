"""Documents that people write: a YAML text as a mapping, and what is wrong with its fields in words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from pydantic import ValidationError

from gpu_platform.domain.errors import InvalidRequest

MOST_PROBLEMS = 10


def yaml_mapping(text: str, name: str) -> dict[str, Any]:
    """Return the fields in a YAML text; an empty text has none. Raises :class:`InvalidRequest` with ``name``."""
    try:
        content = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise InvalidRequest(f"{name} is not YAML: {error}") from error
    if not isinstance(content, Mapping):
        raise InvalidRequest(f"{name} must be a mapping, not {json.dumps(content, default=str)[:60]}")
    return dict(content)


def wrong_fields(error: ValidationError) -> str:
    """Return what is wrong with each field, on one line."""
    return "; ".join(_wrong_fields(error))


def _wrong_fields(error: ValidationError) -> Iterator[str]:
    problems = error.errors()
    for item in problems[:MOST_PROBLEMS]:
        where = ".".join(map(str, item["loc"]))
        yield f"{where}: {item['msg']}" if where else str(item["msg"]).removeprefix("Value error, ")
    if len(problems) > MOST_PROBLEMS:
        yield f"and {len(problems) - MOST_PROBLEMS} more"

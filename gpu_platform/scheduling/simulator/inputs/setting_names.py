"""Whether the names inside a policy exist. A policy with a misspelt setting would silently be compared with itself."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.scheduling.policy import Policy


def refuse_unknown_settings(content: Mapping[str, Any], what: str) -> None:
    """Raise InvalidRequest, which says what there is, if a section of a policy has a setting that does not exist."""
    hints = get_type_hints(Policy)
    for key, value in content.items():
        if key in hints:
            _check(value, hints[key], f"{what}: {key}")


def _check(value: object, hint: Any, where: str) -> None:
    if isinstance(value, Mapping):
        sections = [kind for kind in (hint, *get_args(hint)) if _is_section(kind)]
        for kind in sections[:1]:
            _check_section(value, kind, where)
    elif isinstance(value, list | tuple):
        of_items = [argument for argument in get_args(hint) if argument is not Ellipsis]
        for item in value if of_items else ():
            _check(item, of_items[0], where)


def _check_section(value: Mapping[str, object], kind: type, where: str) -> None:
    names = list(kind.model_fields) if issubclass(kind, BaseModel) else [field.name for field in fields(kind)]  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    for key, below in value.items():
        if key not in names:
            raise InvalidRequest(f"{where} has no {key!r}; there is: {', '.join(names)}")
        _check(below, hints[key], f"{where}.{key}")


def _is_section(kind: object) -> bool:
    return inspect.isclass(kind) and (is_dataclass(kind) or issubclass(kind, BaseModel))

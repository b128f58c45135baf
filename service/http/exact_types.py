"""JSON bodies have exactly the types of their description: a number is no text, no truth value and no time.

Models are read leniently elsewhere, since they also come from files that people write and from older releases.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Union, get_args, get_origin

from fastapi.exceptions import RequestValidationError
from pydantic import AwareDatetime, BaseModel, BeforeValidator

from service.http import times

Location = tuple[str | int, ...]
_NUMBERS = (int, float)
_TIMES = (datetime, AwareDatetime)


def exactly(model: type[BaseModel] | types.GenericAlias) -> BeforeValidator:
    """For ``Annotated[model, Body(), exactly(model)]``: refuses numbers, truth values and times in another
    type. It may be a list of models, too."""

    def check(body: Any) -> Any:
        if errors := [*_wrong(model, body, ("body",))]:
            raise RequestValidationError(errors)
        return body

    return BeforeValidator(check)


def _wrong(kind: Any, value: Any, where: Location) -> Iterator[dict[str, Any]]:
    kinds = [*_members(kind)]
    if isinstance(value, Mapping):
        models = [one for one in kinds if isinstance(one, type) and issubclass(one, BaseModel)]
        for model in models:
            for name in value.keys() & model.model_fields.keys():
                yield from _wrong(model.model_fields[name].annotation, value[name], (*where, name))
    elif isinstance(value, list):
        for items in [get_args(one)[0] for one in kinds if get_origin(one) in (list, tuple)]:
            if _is_text(items):
                continue  # pydantic takes nothing else for a text, and a table of parameters has a million of them
            for number, item in enumerate(value):
                yield from _wrong(items, item, (*where, number))
    elif (message := _wrong_scalar(kinds, value)) is not None:
        yield {"type": "exact_type", "loc": where, "msg": message, "input": value}


def _wrong_scalar(kinds: list[Any], value: Any) -> str | None:
    # Compared, not hashed: the annotations inside a kind may have no hash.
    numbers, truth = any(one in _NUMBERS for one in kinds), bool in kinds
    texts = any(not isinstance(one, type) or issubclass(one, str) for one in kinds)
    if any(one in _TIMES for one in kinds):
        written = value is None or (isinstance(value, str) and times.has_date(value))
        return None if written else times.WANTED
    number = "should be a valid integer" if float not in kinds else "should be a valid number"
    if isinstance(value, bool):
        return number if numbers and not truth else None
    if isinstance(value, int | float):
        return "should be true or false" if truth and not numbers else None
    if isinstance(value, str) and (numbers or truth) and not texts:
        return number if numbers else "should be true or false"
    return None


def _is_text(kind: Any) -> bool:
    kinds = [*_members(kind)]
    return all(one is str or (get_origin(one) is tuple and _is_text(get_args(one)[0])) for one in kinds)


def _members(kind: Any) -> Iterator[Any]:
    """The types of a union, and one for anything else, without their annotations."""
    if get_origin(kind) is Annotated:
        yield from _members(get_args(kind)[0])
    elif get_origin(kind) in (Union, types.UnionType):
        for member in get_args(kind):
            yield from _members(member)
    else:
        yield kind

"""A service whose every answer is complete and has a hostile text in each field that may hold one.

Answers are made from the response models of the real application: a new field is attacked without any change here.
"""

from __future__ import annotations

import itertools
import json
import re
import types
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin
from urllib.parse import unquote

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import AwareDatetime, BaseModel, TypeAdapter, ValidationError
from starlette.routing import Match

from gpu_platform.client.answer import Answer
from gpu_platform.client.calls import Call

HOSTILE = "x[/oops]\x1b]52;c;ZXZpbA==\x07\r\x9b31m\u202e:skull:\u2028[red]"
"""Markup, a write to the clipboard, a carriage return, CSI as one byte, a bidirectional override, a line separator."""
_AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
_seconds = itertools.count()


def routes_of(app: FastAPI) -> list[APIRoute]:
    """Every route of the application."""
    routers = [getattr(one, "original_router", None) for one in app.routes]
    found = [route for router in routers if router is not None for route in router.routes]
    return [route for route in [*app.routes, *found] if isinstance(route, APIRoute)]


class HostileHttp:
    """Answers every request of a client as the application would, with hostile texts."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    def send(self, url: str, call: Call, token: str | None, tries: int = 0) -> Answer:
        scope = {"type": "http", "path": unquote(call.path), "method": call.method, "headers": []}
        for route in routes_of(self._app):
            if route.matches(scope)[0] is Match.FULL:
                if route.response_model is None:
                    return Answer(route.status_code or 200, {}, HOSTILE.encode())
                return Answer(200, {}, json.dumps(answer_of(route.response_model)).encode())
        return Answer(404, {}, b"")

    def close(self) -> None:
        pass


def answer_of(model: Any) -> Any:
    """A valid value of the type as JSON: hostile where a text may be anything, and something valid elsewhere."""
    adapter = TypeAdapter(model)
    value = _filled(model)
    for _ in range(200):
        try:
            checked = adapter.validate_python(value)
        except ValidationError as error:
            first = error.errors()[0]
            _soften(value, first["loc"], first["msg"])
        else:
            answer = adapter.dump_python(checked, mode="json")
            if isinstance(answer, dict) and "next_cursor" in answer:
                answer["next_cursor"] = None
            return answer
    raise AssertionError(f"no valid {model} was found")


def _filled(kind: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _filled(next(one for one in arguments if one is not type(None)))
    if origin is Literal:
        return arguments[0]
    if origin is tuple and ... not in arguments:
        return [_filled(one) for one in arguments]
    if origin in (list, set, frozenset, tuple):
        return [_filled(arguments[0])] if arguments else []
    if origin is dict:
        return {_filled(arguments[0]): _filled(arguments[1])}
    if origin is not None and not isinstance(kind, type) and hasattr(kind, "__metadata__"):
        return _filled(arguments[0])
    if isinstance(kind, type):
        if issubclass(kind, BaseModel):
            return {name: _filled(field.annotation) for name, field in kind.model_fields.items()}
        if issubclass(kind, Enum):
            return next(iter(kind)).value
        if kind in (datetime, AwareDatetime):
            return _AT + timedelta(seconds=next(_seconds))  # a later field is a later time: a job begins, then ends
        known: dict[type, Any] = {str: HOSTILE, bool: True, int: 1, float: 1.0}
        return known.get(kind, HOSTILE)
    return HOSTILE


_MILDER = {HOSTILE: "x", "x": "8.0", "8.0": 1, 1: 0, 0: None}


def _soften(value: Any, location: tuple[Any, ...], message: str) -> None:
    """Take something less hostile at ``location``. An object that is refused as a whole loses one field at a time,
    those that the message names before others."""
    for step in location[:-1]:
        if not isinstance(value, dict | list) or (isinstance(value, dict) and step not in value):
            break  # the rest of the location names a member of a union or a validator
        value = value[step]
    last = location[-1]
    here = value[last] if isinstance(value, list) or last in value else None
    if isinstance(here, str | int) and here in _MILDER:
        value[last] = _MILDER[here]
    elif isinstance(here, dict) and here:
        named = [name for name in reversed(here) if re.search(rf"\b{re.escape(name)}\b", message)]
        others = [name for name in reversed(here) if not isinstance(here[name], str)]
        here.pop([*named, *others, *here][0])
    elif isinstance(value, dict) and last in value:
        value.pop(last, None)
    elif isinstance(value, dict):
        value[last] = "x"  # it was taken away as one field too many, and is asked for
    else:
        value.clear()

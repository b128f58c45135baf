"""Any JSON value at any place of any body is taken or refused, and never an error of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, get_args

import pytest
from fastapi import APIRouter
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel

from service import routers
from service.http.exact_types import exactly

VALUES: tuple[Any, ...] = (None, True, 0, 1.5, "AAA", "", [], {}, [0], ["a"], [[]], [{}], {"a": 0}, {"a": ["b"]})


def bodies() -> Iterator[Any]:
    """The body of each route."""
    modules = [import_module(f"service.routers.{one.name}") for one in iter_modules(routers.__path__)]
    for router in [one for module in modules for one in vars(module).values() if isinstance(one, APIRouter)]:
        for route in router.routes:
            if isinstance(route, APIRoute) and route.body_field is not None:
                yield route.body_field.field_info.annotation


def models_in(kind: Any) -> Iterator[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for part in get_args(kind):
        yield from models_in(part)


def with_value(model: type[BaseModel], value: Any, seen: frozenset[type]) -> Iterator[dict[str, Any]]:
    """Bodies with ``value`` at one place: each field, and each field of the models in it."""
    for name, field in model.model_fields.items():
        yield {name: value}
        for inner in models_in(field.annotation):
            if inner not in seen:
                for body in with_value(inner, value, seen | {inner}):
                    yield {name: body}
                    yield {name: [body]}


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_any_value_at_any_place_is_taken_or_refused(value: Any) -> None:
    models = {model for kind in bodies() for model in models_in(kind)}
    assert len(models) > 20
    for model in models:
        check = exactly(model).func
        for body in (value, *with_value(model, value, frozenset({model}))):
            with suppress(RequestValidationError):
                check(body)  # type: ignore[call-arg]

"""Reads typed values without pydantic, which typer would import for the first one: 45 ms of each command (ADR 93).

Only what is certain is read here. Everything else goes typer's way, so that errors and rare types are typer's own.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer
from typer.core import TyperGroup

from gpu_platform.cli.nearest import not_one_of


def read_plainly(command: Any) -> Any:
    """Let the parameters of a command, and of all commands below it, read plain values by themselves. Returns it."""
    of_typer = command.get_params  # also of `--help`, which no list of parameters has
    command.get_params = lambda context: [_plain(parameter) for parameter in of_typer(context)]
    if isinstance(command, TyperGroup):
        for below in command.commands.values():
            read_plainly(below)
    return command


def _plain(parameter: Any) -> Any:
    if "get_runtime_param" not in vars(parameter):
        parameter.get_runtime_param = _PlainValue(parameter).itself
    return parameter


class _PlainValue:
    """Stands for the object with which typer reads the values of one parameter."""

    def __init__(self, parameter: Any) -> None:
        self._of_typer = parameter.get_runtime_param
        self._kind: Any = parameter.type_descriptor.annotation
        self._info: Any = parameter.type_descriptor.parameter_info

    @property
    def _one_kind(self) -> Any:
        return get_args(self._kind)[0] if get_origin(self._kind) is list else self._kind

    @property
    def _choices(self) -> tuple[str, ...]:
        """The words that the parameter takes. Empty: it takes others."""
        if self._info.parser is not None or get_origin(self._one_kind) is not Literal:
            return ()
        return tuple(word for word in get_args(self._one_kind) if isinstance(word, str))

    def itself(self) -> _PlainValue:
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """See typer."""
        several = param.multiple or param.nargs == -1
        for one in value if several and value is not None else [value]:
            self._check_choice(one, param, ctx)
        if value is None:
            return () if several else None
        try:
            return [self._read(one) for one in value] if several else self._read(value)
        except (TypeError, ValueError):
            return self._of_typer().coerce(value, param=param, ctx=ctx)

    def _check_choice(self, value: Any, param: Any, ctx: Any) -> None:
        """Name the nearest of several words, which typer does not."""
        choices = self._choices
        if choices and isinstance(value, str) and value not in choices:
            raise typer.BadParameter(not_one_of(value, choices), ctx=ctx, param=param)

    def _read(self, value: Any) -> Any:
        """The value. Raises ``ValueError`` if that is not certain."""
        info = self._info
        kind = self._one_kind
        if info.parser is not None:
            return info.parser(value)
        if kind is str and isinstance(value, str):
            return value
        if kind in (int, float):
            return _in_range(kind(value), info)
        if get_origin(kind) is Literal and value in get_args(kind):
            return value
        if kind is Path and not (info.exists or info.resolve_path or info.allow_dash):
            return Path(value)
        raise ValueError


def _in_range(number: float, info: Any) -> float:
    low, high = info.min, info.max
    if (low is not None and number < low) or (high is not None and number > high) or not math.isfinite(number):
        raise ValueError
    return number

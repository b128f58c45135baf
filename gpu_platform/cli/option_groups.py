"""A command with many options takes them as a few dataclasses instead of one parameter each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints

Fields = dict[str, Any]
"""Fields of a job as in the REST API; only those that the user typed."""


def given(**fields: Any) -> Fields:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def grouped_options(body: Callable[..., None]) -> Callable[..., None]:
    """Turn ``body`` into a function for Typer: each field of its dataclass parameters becomes an option.

    Options are listed in the order of the parameters and of their fields. Field names must differ between groups. A
    dataclass may have ``HEADINGS``: the name of a field -> the heading of it and of those that follow, in ``--help``,
    man pages and the reference. Options without one are "Options".
    """
    hints = get_type_hints(body, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    options: list[Parameter] = []
    for name, parameter in signature(body).parameters.items():
        if name in groups:
            options += _options_of(groups[name])
        else:
            options.append(parameter.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY))

    @wraps(body)
    def command(**typed: Any) -> None:
        for name, group in groups.items():
            typed[name] = group(**{field.name: typed.pop(field.name) for field in fields(group)})
        body(**typed)

    command.__signature__ = Signature(options)  # type: ignore[attr-defined]
    command.__annotations__ = {option.name: option.annotation for option in options}
    del command.__wrapped__  # type: ignore[attr-defined]
    return command


def headed_options(command: Any, context: Any) -> dict[str, list[tuple[str, str]]]:
    """Names and meaning of the arguments and options of a command but ``--help``, by heading, as ``--help`` has them.

    Where the command has no headings there is one, which is empty.
    """
    found: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None or "--help" in record[0]:
            continue
        usual = "Options" if parameter.param_type_name == "option" else "Arguments"
        found.setdefault(parameter.rich_help_panel or usual, []).append(record)
    there = {heading: records for heading, records in found.items() if records}
    if there.keys() <= {"Arguments", "Options"}:
        together = [record for records in there.values() for record in records]
        return {"": together} if together else {}
    return there


def _options_of(group: Any) -> list[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    headings: dict[str, str] = getattr(group, "HEADINGS", {})
    heading = None
    options = []
    for field in fields(group):
        heading = headings.get(field.name, heading)
        if heading is not None:
            [option] = hints[field.name].__metadata__
            option.rich_help_panel = heading
        default = Parameter.empty if field.default is MISSING else field.default
        options.append(Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name]))
    return options

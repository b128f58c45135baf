"""Reads the settings, and says on one line what is wrong with them: which setting, where its value comes from, what is
allowed."""

from __future__ import annotations

import difflib
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_settings import EnvSettingsSource, SettingsError
from yaml.parser import ParserError
from yaml.scanner import ScannerError

from gpu_platform.domain.documents import MOST_PROBLEMS, yaml_mapping
from gpu_platform.domain.errors import CannotStart, InvalidRequest
from gpu_platform.private_files import is_ours
from gpu_platform.settings import Settings, settings_file

PREFIX = "GPU_PLATFORM_"
_CONFIG = f"{PREFIX}CONFIG"
_LONGEST_VALUE = 80
_SECRETS = ("database_url", "token", "join_token", "power_command", "notifications")
"""Settings and sections whose values are secrets, or may hold one. They are never shown."""
_PASSWORD = re.compile(r"://[^/@\s]*@")
"""In an address of any other setting."""
_JSON = 'write a list as ["a"], a mapping as {"a": "b"}'
_NEAR = 0.8
"""How similar the name of a variable must be to that of a setting to count as a misspelt one (difflib's ratio)."""

Location = Sequence[str | int]


def read_settings() -> Settings:
    """The settings, from the file and the environment. Raises :class:`CannotStart`, whose message names every wrong
    one."""
    file = settings_file()
    lines = _lines_of(file)
    try:
        return Settings()
    except ValidationError as error:
        problems = [_problem(one, file, lines) for one in error.errors()]
    except SettingsError as error:
        problems = list(_not_json()) or [str(error)]
    more = [f"and {len(problems) - MOST_PROBLEMS} more"] if len(problems) > MOST_PROBLEMS else []
    # The pydantic error has values in it, and some settings are secrets.
    raise CannotStart(f"the settings are wrong: {'; '.join([*problems[:MOST_PROBLEMS], *more])}") from None


def misspelt_variables() -> Iterator[tuple[str, str]]:
    """Variables of the environment that no setting has, and the one that each of them resembles. Variables that
    resemble none are other programs': jobs have many that begin with the same prefix."""
    known = [name.upper() for name in Settings.model_fields]
    for variable in os.environ:
        first = variable.upper().removeprefix(PREFIX).split("__")[0]
        if variable.upper().startswith(PREFIX) and first not in known:
            for near in difflib.get_close_matches(first, known, 1, _NEAR):
                yield variable, f"{PREFIX}{near}"


def open_secrets() -> list[str]:
    """Settings in the file that are passwords or tokens, while other accounts of this machine may read the file."""
    file = settings_file()
    try:
        if not file.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            return []
        return [
            name for name, value in _values(yaml_mapping(file.read_text(), str(file)), "") if _is_secret(name, value)
        ]
    except (OSError, UnicodeDecodeError, InvalidRequest):  # there is no file, or :func:`read_settings` has said it
        return []


def _values(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _values(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for one in value:
            yield from _values(one, name)
    else:
        yield name, value


def _is_secret(name: str, value: Any) -> bool:
    if name in ("node.token", "node.join_token", "notifications.targets.url"):
        return value is not None
    return name == "database_url" and re.search(r"://[^/@]*:[^/@]+@|[?&](?:ssl)?password=", str(value)) is not None


def _lines_of(file: Path) -> dict[tuple[str, ...], int]:
    """Where each setting stands in the file: its location -> its line. Raises :class:`CannotStart` if the file cannot
    be read."""
    if not file.exists():
        if _CONFIG in os.environ:
            raise CannotStart(f"{_CONFIG} is {file}, which does not exist: name the YAML file, or unset {_CONFIG}")
        return {}
    try:
        _check_owner(file)
        text = file.read_text()
        content = yaml_mapping(text, str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise CannotStart(f"the settings file {file} cannot be read: {error}") from error
    except InvalidRequest as error:
        raise CannotStart(f"the settings file {_without_values(error, file)}") from None
    if wrong := [name for name in content if not isinstance(name, str)]:
        raise CannotStart(f"the settings file {file} has {wrong[0]!r} where the name of a setting must be")
    return dict(_lines(yaml.compose(text, yaml.SafeLoader), ()))


def _check_owner(file: Path) -> None:
    """Raise :class:`CannotStart` for a file by which somebody else could decide for this process."""
    found = file.stat()
    if found.st_mode & stat.S_IWOTH:
        raise CannotStart(f"every account of this machine may write the settings file {file}: chmod o-w {file}")
    if _CONFIG not in os.environ and not is_ours(found):
        raise CannotStart(
            f"{file.resolve()}, in the working directory, belongs to another account (uid {found.st_uid}): if it is "
            f"meant, name it with {_CONFIG}, else start in another directory"
        )


def _without_values(error: InvalidRequest, file: Path) -> str:
    """What is wrong with the YAML, without anything of its text, in which there may be a password."""
    cause = error.__cause__
    if cause is None:
        return f"{file} must be a mapping of names of settings to their values"
    if not isinstance(cause, yaml.MarkedYAMLError) or cause.problem_mark is None:
        return " ".join(error.message.split())
    # Those of the parser name one character or kind of token, others an alias or a tag.
    problem = cause.problem or ""
    shown = problem if isinstance(cause, ScannerError | ParserError) else problem.split("'")[0]
    mark = cause.problem_mark
    return f"{file} is not YAML: {shown.strip()} (line {mark.line + 1}, column {mark.column + 1})"


def _lines(node: yaml.Node | None, at: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield (*at, str(key.value)), key.start_mark.line + 1
            yield from _lines(value, (*at, str(key.value)))


def _problem(error: Mapping[str, Any], file: Path, lines: Mapping[tuple[str, ...], int]) -> str:
    location: Location = error["loc"]
    name = ".".join(map(str, location))
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        return f"{name}{_source(location, file, lines)}: there is no such setting; {_known_names(location)}"
    given = error.get("input")
    if any(part in _SECRETS for part in location):
        value = " has a wrong value (not shown here, it may be secret)"
    elif isinstance(given, dict | list):
        value = ""
    else:
        shown = repr(given)
        value = f" is {shown if len(shown) <= _LONGEST_VALUE else shown[:_LONGEST_VALUE] + '…'}"
    where = f"{name}{value}{_source(location, file, lines)}"
    text = f"{where}: {message.removeprefix('Input ')}" if where else message
    return _PASSWORD.sub("://…@", text)


def _source(location: Location, file: Path, lines: Mapping[tuple[str, ...], int]) -> str:
    """Where the value comes from: variables win over the file."""
    variables = {name.upper(): name for name in os.environ}
    for length in range(len(location), 0, -1):
        if (found := variables.get(_variable(location[:length]))) is not None:
            return f" (variable {found})"
        if (line := lines.get(tuple(map(str, location[:length])))) is not None:
            return f" ({file}, line {line})"
    return ""


def _variable(location: Location) -> str:
    return PREFIX + "__".join(str(part).upper() for part in location)


def _known_names(location: Location) -> str:
    """The setting that was meant, or those that there are in this section."""
    section: type[BaseModel] | None = Settings
    for part in location[:-1]:
        field = None if section is None else section.model_fields.get(str(part))
        section = None if field is None else _model_in(field.annotation)
    names = [] if section is None else list(section.model_fields)
    near = difflib.get_close_matches(str(location[-1]), names, 1)
    if near:
        return f"did you mean {'.'.join([*map(str, location[:-1]), near[0]])}?"
    return f"there are: {', '.join(names)}" if names else "see docs/reference/configuration.md"


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, UnionType, Annotated):
        return next((found for one in get_args(annotation) if (found := _model_in(one))), None)
    return None


def _not_json() -> Iterator[str]:
    """Variables that must be JSON, because their settings are lists or mappings, and are not."""
    for variable in os.environ:
        if variable.upper().startswith(PREFIX):
            source = EnvSettingsSource(Settings)
            source.env_vars = {variable.lower(): os.environ[variable]}
            try:
                source()
            except SettingsError:
                name = variable.upper().removeprefix(PREFIX).replace("__", ".").lower()
                hidden = any(part in _SECRETS for part in name.split("."))
                value = "" if hidden else f" ({os.environ[variable][:_LONGEST_VALUE]!r})"
                yield f"{name}: the variable {variable}{value} is no JSON; {_JSON}"

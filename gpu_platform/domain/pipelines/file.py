"""Reads a pipeline file. Everything that is wrong is said with its line, all at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

from pydantic import ValidationError

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.pipelines import expressions, yaml_lines
from gpu_platform.domain.pipelines.expressions import Expression, ExpressionError, TooMuch, Work
from gpu_platform.domain.pipelines.pipeline import MAX_JOBS_OF_STEP, MAX_STEPS, Step
from gpu_platform.domain.pipelines.yaml_lines import Document, Path, WrongFile
from gpu_platform.domain.texts import check_name

_TOP = ("name", "namespace", "parameters", "steps")
_OF_STEP = ("after", "for_each", "at_once", "when", "cache")
_NOT_OF_STEPS = {"namespace": "it is that of the pipeline", "user": "it is that of the pipeline", "artifacts": "",
                 "begin_at": "a pipeline has no begin time", "if_unmet": "see when"}  # fmt: skip
_RESERVED = ("parameters", "item", "index", "and", "or", "not", "in", "true", "false", "null")
_STEP_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
_AT_RUN_TIME = ("command", "env")
"""Fields of a job that may refer to outputs and items. All others may refer to parameters only."""
_SHOWN_ERRORS = 20
_MOST_ERRORS = 200
"""After so many it is read no further."""
_LONGEST_ERROR = 500


@dataclass(frozen=True)
class ReadPipeline:
    """What a file says, with its parameters filled in. ``fail``: the refusal of one step, with its line."""

    name: str
    namespace: str | None
    parameters: dict[str, Any]
    steps: tuple[Step, ...]
    """Each after those that it waits for."""
    fail: Callable[[str, str], InvalidRequest]


def read_pipeline(text: str, given: Mapping[str, Any], *, workdir: str | None = None) -> ReadPipeline:
    """Read a pipeline with these parameters. ``workdir``: of steps that name none. Raises :class:`InvalidRequest`."""
    try:
        return _Reader(yaml_lines.read(text), given, workdir).pipeline()
    except WrongFile as error:
        raise _refusal([(error.line, error.message)]) from error


class _Reader:
    """Reads the document part by part, and collects what is wrong."""

    def __init__(self, document: Document, given: Mapping[str, Any], workdir: str | None) -> None:
        self._document, self._given, self._workdir = document, given, workdir
        self._errors: list[tuple[int, str]] = []
        self._work = Work()
        self._used: set[str] = set()
        self._outputs: set[str] = set()
        """Steps to whose output another step refers."""

    def pipeline(self) -> ReadPipeline:
        top = self._document.value
        if not isinstance(top, dict):
            raise WrongFile(1, "a pipeline has name, parameters and steps")
        for name in top.keys() - set(_TOP):
            self._wrong((name,), f"there is no field {name}; there are {', '.join(_TOP)}")
        name, namespace = top.get("name", "pipeline"), top.get("namespace")
        for field, value in (("name", name), ("namespace", namespace)):
            if value is not None:
                self._try((field,), lambda value=value: check_name(str(value)))
        parameters = self._parameters(top.get("parameters") or {})
        fields = self._step_fields(top.get("steps"))
        order = self._order(fields)
        steps = [self._step(name, fields[name], parameters) for name in order]
        for unused in sorted(parameters.keys() - self._used):
            self._wrong(("parameters", unused), f"parameter {unused} is not used")
        if self._errors:
            raise _refusal(self._errors)
        complete = [
            step.model_copy(update={"output_used": step.name in self._outputs}) for step in steps if step is not None
        ]
        return ReadPipeline(str(name), namespace, parameters, tuple(complete), self._fail)

    def _fail(self, step: str, message: str) -> InvalidRequest:
        return _refusal([(self._document.line(("steps", step)), f"step {step}: {message}")])

    def _wrong(self, path: Path, message: str) -> None:
        shown = message if len(message) <= _LONGEST_ERROR else f"{message[:_LONGEST_ERROR]}…"
        self._errors.append((self._document.line(path), shown))
        if len(self._errors) >= _MOST_ERRORS:
            raise _refusal(self._errors)

    def _try(self, path: Path, check: Callable[[], Any]) -> Any:
        try:
            return check()
        except ValueError as error:
            self._wrong(path, str(error))
            return None

    def _parameters(self, declared: Any) -> dict[str, Any]:
        if not isinstance(declared, dict):
            self._wrong(("parameters",), "parameters are names with their defaults, or with nothing")
            return {}
        known = ", ".join([*declared][:_SHOWN_ERRORS]) + (", …" if len(declared) > _SHOWN_ERRORS else "") or "none"
        for name in sorted(self._given.keys() - declared.keys()):
            self._wrong(("parameters",), f"parameter {name} was given, and there is no such one; there are {known}")
        values = {**declared, **{name: value for name, value in self._given.items() if name in declared}}
        for name, value in values.items():
            if value is None:
                self._wrong(("parameters", name), f"parameter {name} has no default: give it with -p {name}=VALUE")
        return values

    def _step_fields(self, steps: Any) -> dict[str, dict[str, Any]]:
        if not isinstance(steps, dict) or not steps:
            raise WrongFile(self._document.line(("steps",)), "steps are missing: names, each with the fields of a job")
        if len(steps) > MAX_STEPS:
            line = self._document.line(("steps",))
            raise WrongFile(line, f"there are {len(steps)} steps; at most {MAX_STEPS} are allowed")
        found: dict[str, dict[str, Any]] = {}
        for name, fields in steps.items():
            path = ("steps", name)
            if not _STEP_NAME.fullmatch(name) or name in _RESERVED:
                self._wrong(
                    path, f"{name[:80]!r} is no name of a step: use letters, digits, '_' and '-', a letter first"
                )
            elif not isinstance(fields, dict):
                self._wrong(path, f"step {name} needs the fields of a job, such as command")
            else:
                found[name] = fields
        return found

    def _order(self, steps: dict[str, dict[str, Any]]) -> list[str]:
        graph: dict[str, list[str]] = {}
        for name, fields in steps.items():
            after = fields.get("after", [])
            after = [after] if isinstance(after, str) else after
            if not isinstance(after, list):
                after = []
                self._wrong(("steps", name, "after"), "after is a list of steps")
            graph[name] = []
            for index, one in enumerate(after):
                if one in steps and one not in graph[name]:
                    graph[name].append(one)
                else:
                    problem = "is there twice" if one in steps else "does not exist"
                    self._wrong(
                        ("steps", name, "after", index), f"step {name} is to run after {one!r}, which {problem}"
                    )
            fields["after"] = graph[name]
        try:
            return list(TopologicalSorter(graph).static_order())
        except CycleError as error:
            cycle = error.args[1]
            self._wrong(("steps", cycle[0], "after"), f"steps wait for each other: {' after '.join(cycle)}")
            return list(steps)

    def _step(self, name: str, fields: dict[str, Any], parameters: dict[str, Any]) -> Step | None:
        path = ("steps", name)
        errors = len(self._errors)
        filled = {
            field: self._filled((*path, field), field, value, fields, parameters) for field, value in fields.items()
        }
        own = {field: filled.pop(field) for field in _OF_STEP if field in filled}
        when = own.get("when")
        if when is not None:
            self._references((*path, "when"), str(when), fields, is_expression=True)
        for field, why in _NOT_OF_STEPS.items():
            if field in filled:
                self._wrong((*path, field), f"step {name} cannot have {field}" + (f": {why}" if why else ""))
        if len(self._errors) > errors:
            return None
        if "for_each" in own and not _is_list_or_place(own["for_each"]):
            self._wrong((*path, "for_each"), "for_each is a list, or one ${{ … }} that becomes one")
        if isinstance(own.get("for_each"), list) and len(own["for_each"]) > MAX_JOBS_OF_STEP:
            count = len(own["for_each"])
            self._wrong((*path, "for_each"), f"for_each has {count} items; at most {MAX_JOBS_OF_STEP} are allowed")
        job = self._job(path, {"name": name, **({} if self._workdir is None else {"workdir": self._workdir}), **filled})
        for field, kind, what in (("at_once", int, "a number"), ("cache", bool, "true or false")):
            value = own.get(field)
            if field in own and (type(value) is not kind or (kind is int and not 1 <= value <= MAX_JOBS_OF_STEP)):
                self._wrong(
                    (*path, field), f"{field} is {what}" + (f" from 1 to {MAX_JOBS_OF_STEP}" if kind is int else "")
                )
        if job is None or len(self._errors) > errors:
            return None
        given = {field: own[field] for field in ("for_each", "at_once", "cache") if field in own}
        return Step(name=name, after=tuple(own["after"]), when=None if when is None else str(when), job=job, **given)

    def _job(self, path: Path, fields: dict[str, Any]) -> JobSpec | None:
        command = fields.get("command")
        if isinstance(command, list):
            fields["command"] = [expressions.as_text(one) for one in command]
        if isinstance(fields.get("env"), dict):
            fields["env"] = {name: expressions.as_text(value) for name, value in fields["env"].items()}
        try:
            return JobSpec.model_validate(fields)
        except ValidationError as error:
            for one in error.errors():
                where = ".".join(str(part) for part in one["loc"])
                message = one["msg"].removeprefix("Value error, ")
                known = "there is no such field" if one["type"] == "extra_forbidden" else message
                self._wrong((*path, *one["loc"]), f"step {path[1]}: {where + ': ' if where else ''}{known}")
            return None

    def _filled(self, path: Path, field: str, value: Any, step: dict[str, Any], parameters: dict[str, Any]) -> Any:
        """The value with its parameters filled in. What is known only later stays, if the field may have it."""
        self._references(path, value, step, at_run_time=field in (*_AT_RUN_TIME, "for_each"), field=field)
        try:
            scope = {"parameters": parameters}
            return expressions.fill(value, scope, lambda one: one.roots <= {"parameters"}, self._work)
        except TooMuch as error:
            raise WrongFile(self._document.line(path), f"step {path[1]}, {field}: {error}") from error
        except ExpressionError:
            return value  # said above

    def _references(
        self, path: Path, value: Any, step: dict[str, Any], *, is_expression: bool = False, at_run_time: bool = True,
        field: str = "",
    ) -> None:  # fmt: skip
        """Check what the value refers to, and note what is used."""
        if isinstance(value, dict | list):
            below = value.items() if isinstance(value, dict) else enumerate(value)
            for name, one in below:
                self._references((*path, name), one, step, at_run_time=at_run_time, field=field)
            return
        if not isinstance(value, str):
            return
        found: list[Expression] | None = self._try(
            path, lambda: [expressions.read(value)] if is_expression else expressions.places(value)
        )
        for reference in sorted(ref for one in found or [] for ref in one.references):
            if (problem := self._problem(reference, step, at_run_time, field)) is not None:
                self._wrong(path, problem)

    def _problem(self, reference: tuple[str, ...], step: dict[str, Any], at_run_time: bool, field: str) -> str | None:
        root, shown = reference[0], ".".join(reference)
        if root == "parameters":
            if len(reference) < 2 or reference[1] not in (self._document.value.get("parameters") or {}):
                return f"{shown}: there is no such parameter"
            self._used.add(reference[1])
            return None
        if not at_run_time:
            return f"{shown}: only command, env, for_each and when may refer to it; {field} is fixed at the submission"
        if root in ("item", "index"):
            fits = "for_each" in step and field != "for_each"
            return None if fits else f"{shown}: only command and env of a step with for_each may refer to it"
        if root not in step["after"]:
            return f"{shown}: there is no step {root} in its after"
        if len(reference) < 2 or reference[1] not in ("state", "output"):
            return f"{shown}: a step has {root}.state and {root}.output"
        if reference[1] == "output":
            self._outputs.add(root)
        return None


def _is_list_or_place(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, str) and value.strip().startswith("${{"))


def _refusal(errors: Sequence[tuple[int, str]]) -> InvalidRequest:
    lines = [f"line {line}: {message}" for line, message in sorted(set(errors))]
    shown = "\n".join(lines[:_SHOWN_ERRORS])
    more = f"\nand {len(lines) - _SHOWN_ERRORS} more" if len(lines) > _SHOWN_ERRORS else ""
    return InvalidRequest(f"the pipeline file is wrong:\n{shown}{more}", lines=sorted({line for line, _ in errors}))

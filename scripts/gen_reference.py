"""Writes docs/reference from the code: settings, command line, REST, gRPC, logs. ``--check`` only compares."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, TypeGuard, Union, get_args, get_origin

import log_events
import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer.core import TyperCommand, TyperGroup

from gpu_platform import settings
from gpu_platform.cli.app import app as cli_app
from gpu_platform.cli.option_groups import headed_options
from gpu_platform.domain.errors import PlatformError
from gpu_platform.domain.placing.quota import Namespace, Quotas
from gpu_platform.rpc.methods import rpcs, services
from gpu_platform.rpc.only_rest import ONLY_REST
from gpu_platform.scheduling.policy import NOT_WRITTEN, WEIGHTS, Policy
from gpu_platform.settings import Settings
from gpu_platform.store import Store
from gpu_platform.topology.fabric import FabricConfig, FabricRule
from service.app import create_app

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"
GENERATED = "<!-- Written by scripts/gen_reference.py (make docs) from the code: do not edit. -->\n"

LINES = """\
Each process writes one JSON object a line to stderr (`log_json: false`: text for people). Every line has `timestamp`
(UTC), `level`, `event`, `process` (`service`, `control`, `scheduler`, `node/NAME`, `gateway`, `fleet/NAME`), `cluster`
and `logger`, which is empty for many. `trace_id` is there if the line belongs to a trace, and `exception` if there is a
traceback. An event has one meaning, one level and one name, `thing.what_happened`: alerts on logs may rely on it. This
table is read from the code, and tests compare names and keys.

What a line is about has the same key everywhere:

| key | what it is |
|---|---|
| `job`, `attempt` | id of the job, and number of its attempt |
| `array`, `pipeline`, `schedule` | id of the array, pipeline or schedule |
| `host` | name of the GPU host; every line of a node worker has it |
| `gpu` | uuid of the GPU or of its MIG instance |
| `workflow` | id of the workflow in Temporal: that of a job, an array or a pipeline is its id |
| `error`, `reason` | why, as a sentence |
| `hint` | what to do |

Libraries (Temporal's SDK, uvicorn, SQLAlchemy) log in the same form: `event` is a sentence, and `logger` names the
library. Lines of Temporal's SDK have `temporal_workflow` or `temporal_activity`, with the ids of the workflow.
"""
COMPUTED = {
    "state_dir": "`.gpu-platform` in the working directory",
    "node.name": "the host's short name",
}
"""Defaults that depend on where the process runs."""


def main() -> int:
    stale = [name for name, text in pages().items() if _read(REFERENCE / name) != text]
    if "--check" in sys.argv[1:]:
        for name in stale:
            print(f"docs/reference/{name} is not what the code says: make docs")
        return 1 if stale else 0
    for name in stale:
        (REFERENCE / name).write_text(pages()[name])
        print(f"wrote docs/reference/{name}")
    return 0


def pages() -> dict[str, str]:
    """File name -> text."""
    return {
        "configuration.md": configuration(),
        "cli.md": command_line(),
        "rest.md": rest(),
        "grpc.md": rpc(),
        "logs.md": logs(),
    }


# -- configuration -----------------------------------------------------------------------------


def configuration() -> str:
    head = f"""\
# Configuration

{GENERATED}
{inspect.cleandoc(settings.__doc__ or "").split(chr(10), 1)[1].strip()}

Later wins: defaults, the YAML file, variables. An example: `deploy/gpu-platform.example.yaml`.
"""
    tables = "".join(_settings_table(prefix, model) for prefix, model in _sections("", Settings))
    return head + tables + _policy_tables()


def _sections(prefix: str, model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """The sections of the settings, each before those inside it: what its settings begin with, and its model."""
    if not all(_is_model(field.annotation) for field in model.model_fields.values()):
        yield prefix, model
    for name, field in model.model_fields.items():
        if _is_model(field.annotation):
            yield from _sections(f"{prefix}{name}.", field.annotation)


def _policy_tables() -> str:
    """What ``scheduler.policy`` and the file of ``simulate --policy`` may say."""
    text = "\n## `scheduler.policy`\n\nThe same fields make a policy file for `gpu-platform simulate --policy`.\n"
    text += f"Sets of `weights`: {', '.join(f'`{name}`' for name in WEIGHTS)}.\n"
    for title, model in (
        ("", Policy),
        ("`quotas`", Quotas),
        ("`quotas.namespaces[]`", Namespace),
        ("`fabric`", FabricConfig),
        ("`fabric.rules[]`", FabricRule),
    ):
        docs = _attribute_docs(model)
        names = [name for name in _field_names(model) if name not in NOT_WRITTEN]
        rows = [f"| `{name}` | {docs.get(name, '').replace('``', '`').replace('|', chr(92) + '|')} |" for name in names]
        text += "\n" + (f"### {title}\n\n" if title else "") + "| field | meaning |\n|---|---|\n"
        text += "\n".join([*rows, ""])
    return text


def _field_names(model: type) -> list[str]:
    if issubclass(model, BaseModel):
        return list(model.model_fields)
    return [field.name for field in dataclasses.fields(model)]


def _settings_table(prefix: str, model: type[BaseModel]) -> str:
    title = f"`{prefix[:-1]}`" if prefix else "For every process"
    models = [base for base in reversed(model.__mro__) if base is not BaseModel and issubclass(base, BaseModel)]
    docs = {name: text for base in models for name, text in _attribute_docs(base).items()}
    rows = []
    for name, field in model.model_fields.items():
        if _is_model(field.annotation):
            continue
        variable = "GPU_PLATFORM_" + f"{prefix}{name}".replace(".", "__").upper()
        meaning = docs.get(name, "").replace("``", "`").replace("|", "\\|")
        kind = _type_name(field.annotation)
        rows.append(f"| `{prefix}{name}` | {kind} | {_default(prefix + name, field)} | {meaning} | `{variable}` |")
    return f"\n## {title}\n\n| setting | type | default | meaning | variable |\n|---|---|---|---|---|\n" + "\n".join(
        [*rows, ""]
    )


def _is_model(annotation: Any) -> TypeGuard[type[BaseModel]]:
    return inspect.isclass(annotation) and issubclass(annotation, BaseModel)


def _default(path: str, field: FieldInfo) -> str:
    if path in COMPUTED:
        return COMPUTED[path]
    default = field.get_default(call_default_factory=False)
    assert field.default_factory is None, f"say in COMPUTED what {path} defaults to"
    assert default is not PydanticUndefined, f"{path} has no default"
    return "–" if default is None else f"`{default}`"


def _type_name(annotation: Any) -> str:
    """For people: without bounds, and without None, which is a default."""
    if get_origin(annotation) is Annotated:
        return _type_name(get_args(annotation)[0])
    if get_origin(annotation) is list:
        return f"list[{_type_name(get_args(annotation)[0])}]"
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(_type_name(kind) for kind in get_args(annotation) if kind is not NoneType)
    name = annotation.__name__ if inspect.isclass(annotation) else str(annotation)
    return re.sub(r"(\w+\.)+", "", name).replace("|", "\\|")


def _attribute_docs(model: type) -> dict[str, str]:
    """The string literal under each attribute."""
    body = ast.parse(textwrap.dedent(inspect.getsource(model))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs: dict[str, str] = {}
    for statement, following in zip(body.body, body.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            match following:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    docs[statement.target.id] = " ".join(text.split())
    return docs


# -- command line ------------------------------------------------------------------------------


def command_line() -> str:
    root = typer.main.get_command(cli_app)
    assert isinstance(root, TyperGroup)
    context = typer.Context(root, info_name="gpu-platform")
    head = f"# Command line\n\n{GENERATED}\n{_plain(root.help)}\n\n{_plain(root.epilog)}\n"
    return head + "".join(_commands(root, context))


def _commands(command: TyperGroup | TyperCommand, context: typer.Context) -> Iterator[str]:
    if isinstance(command, TyperGroup):
        if options := _options(command, context):
            yield f"\n## `{context.command_path}`\n\n{options}"
        for name, child in command.commands.items():
            if not child.hidden:
                assert isinstance(child, TyperGroup | TyperCommand)
                yield from _commands(child, typer.Context(child, info_name=name, parent=context))
    else:
        usage = " ".join(command.collect_usage_pieces(context))
        yield f"\n## `{context.command_path}`\n\n    {context.command_path} {usage}\n\n{_plain(command.help)}\n"
        if options := _options(command, context):
            yield f"\n{options}"


def _options(command: TyperGroup | TyperCommand, context: typer.Context) -> str:
    tables = []
    for heading, records in headed_options(command, context).items():
        rows = [f"| `{_cell(names)}` | {_cell(text)} |" for names, text in records]
        title = f"**{heading}**\n\n" if heading else ""
        tables.append(title + "| option | meaning |\n|---|---|\n" + "\n".join([*rows, ""]))
    return "\n".join(tables)


def _plain(text: str | None) -> str:
    return inspect.cleandoc(text or "").replace("\b", "").strip()


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# -- REST --------------------------------------------------------------------------------------


def rest() -> str:
    api = create_app(Settings(), Store("sqlite:///unused.db")).openapi()  # a store opens nothing by itself
    parts = [f"# REST\n\n{GENERATED}\n{api['info'].get('description', '').strip()}\n"]
    for group in api["tags"]:
        parts.append(f"\n# {group['name'][0].upper()}{group['name'][1:]}\n\n{group['description']}\n")
        parts += _routes_of(api, group["name"])
    parts.append("\n# Types\n")
    parts += [_schema(name, schema) for name, schema in sorted(api["components"]["schemas"].items())]
    return "".join(parts)


def _routes_of(api: dict[str, Any], tag: str) -> Iterator[str]:
    for path, operations in api["paths"].items():
        for method, operation in operations.items():
            assert len(operation.get("tags", [])) == 1, f"{method.upper()} {path} is in one group"
            if operation["tags"] == [tag]:
                yield _operation(f"{method.upper()} {path}", operation)


def _operation(title: str, operation: dict[str, Any]) -> str:
    lines = [f"\n## `{title}`\n", operation.get("description") or operation.get("summary", ""), ""]
    if parameters := operation.get("parameters"):
        lines += ["| parameter | in | type | meaning |", "|---|---|---|---|"]
        for parameter in parameters:
            meaning = _cell(parameter.get("description") or parameter["schema"].get("description", ""))
            required = " (required)" if parameter.get("required") and parameter["in"] != "path" else ""
            kind = _schema_type(parameter["schema"])
            lines.append(f"| `{parameter['name']}`{required} | {parameter['in']} | {kind} | {meaning} |")
        lines.append("")
    if body := operation.get("requestBody"):
        lines += [f"Body: {_content(body)}", ""]
    for status, response in operation["responses"].items():
        if status != "default":  # the same problem+json everywhere, described once
            meaning = response["description"].replace("Successful Response", "").strip()
            lines.append(f"- **{status}** {': '.join(filter(None, [_cell(meaning), _content(response)]))}")
    return "\n".join([*lines, ""])


def _schema(name: str, schema: dict[str, Any]) -> str:
    text = f"\n## {name}\n\n{_cell(schema.get('description', ''))}\n"
    if "enum" in schema:
        return text + "\n" + ", ".join(f"`{value}`" for value in schema["enum"]) + "\n"
    rows = []
    for field, facts in schema.get("properties", {}).items():
        default = f"`{facts['default']}`" if facts.get("default") is not None else ""
        required = "required" if field in schema.get("required", []) else default
        rows.append(f"| `{field}` | {_schema_type(facts)} | {required} | {_cell(facts.get('description', ''))} |")
    return text + (
        "\n| field | type | default | meaning |\n|---|---|---|---|\n" + "\n".join([*rows, ""]) if rows else ""
    )


def _content(part: dict[str, Any]) -> str:
    kinds = [(media, _schema_type(facts.get("schema", {}))) for media, facts in part.get("content", {}).items()]
    return ", ".join(kind if media == "application/json" else f"{kind} `{media}`".strip() for media, kind in kinds)


def _schema_type(schema: dict[str, Any]) -> str:
    match schema:
        case {"$ref": reference}:
            name = reference.rsplit("/", 1)[1]
            return f"[{name}](#{name.lower()})"
        case {"anyOf": choices}:
            return " or ".join(_schema_type(choice) for choice in choices if choice != {"type": "null"})
        case {"allOf": [only]}:
            return _schema_type(only)
        case {"type": "array", "items": items}:
            return f"list of {_schema_type(items)}"
        case {"type": "object", "additionalProperties": {} as values} if values:
            return f"object of {_schema_type(values)}"
        case {"const": value}:
            return f"`{value}`"
        case {"enum": values}:
            return ", ".join(f"`{value}`" for value in values)
        case {"format": form}:
            return form
        case {"type": kind}:
            return kind
    return "any"


# -- logs --------------------------------------------------------------------------------------


def logs() -> str:
    rows: list[str] = []
    for call in log_events.log_calls():
        keys = ", ".join(f"`{key}`" for key in call.keys) or "–"
        at = f"`{call.module}`, `{call.where}`"
        row = f"| `{call.event}` | {call.level} | {keys} | {at} | {_cell(_without_roles(call.meaning))} |"
        if row not in rows:
            rows.append(row)
    head = "| event | level | keys | written in | what this code does |\n|---|---|---|---|---|\n"
    return f"# Log lines\n\n{GENERATED}\n{LINES}\n{head}" + "\n".join([*rows, ""])


def _without_roles(text: str) -> str:
    """``:class:`X` `` and double backquotes, as Markdown."""
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`")


# -- gRPC --------------------------------------------------------------------------------------


def rpc() -> str:
    """Each RPC and the request of REST that it stands for, and the statuses of errors."""
    parts = [f"# gRPC\n\n{GENERATED}\nHow to use it, and what is different from REST: [gRPC](../how-to/grpc.md).\n"]
    for service in sorted(services().values(), key=lambda one: one.name):
        parts.append(f"\n## {service.name}\n\n| RPC | REST | answer |\n|---|---|---|\n")
        for one in (rpcs()[f"/{service.full_name}/{method.name}"] for method in service.methods):
            answer = f"{'stream of ' if one.descriptor.server_streaming else ''}`{one.descriptor.output_type.name}`"
            query = f"?{one.fixed_query}" if one.fixed_query else ""
            parts.append(f"| `{one.descriptor.name}` | `{one.route}{query}` | {answer} |\n")
    parts.append("\n## Only over REST\n\n| operation | why |\n|---|---|\n")
    parts += [f"| `{route}` | {why} |\n" for route, why in ONLY_REST.items()]
    parts.append("\n## Errors\n\n| code | gRPC | HTTP |\n|---|---|---|\n")
    kinds = {kind.code: kind for kind in _errors(PlatformError)}
    parts += [f"| `{code}` | {kind.grpc_status} | {kind.http_status} |\n" for code, kind in sorted(kinds.items())]
    return "".join(parts)


def _errors(kind: type[PlatformError]) -> Iterator[type[PlatformError]]:
    """The class and those below it, of the platform's own tree."""
    for below in kind.__subclasses__():
        if below.__module__ == PlatformError.__module__:
            yield from _errors(below)
    yield kind


def _read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())

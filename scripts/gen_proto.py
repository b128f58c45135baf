"""Writes ``proto/gpu_platform/v1`` from the REST description, and Python stubs from that: run ``make proto`` after a
change of a route or of a model. ``--check`` only compares.

Numbers of fields and of enum values are kept: they are read from the files that are there. A new field gets the next
number. A field that is gone, or has another type now, leaves its number reserved.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_platform.rpc.only_rest import ONLY_REST
from gpu_platform.settings import Settings
from gpu_platform.store import Store
from scripts.protobuf import compiling, numbers
from scripts.protobuf.files import PACKAGE, Enum, Field, File, Message, Method, text_of
from service.app import create_app

ROOT = Path(__file__).resolve().parents[1]

SERVICES = {
    "queue": "QueueService",
    "checkpoints": "CheckpointService",
    "jobs": "JobService",
    "arrays": "ArrayService",
    "schedules": "ScheduleService",
    "reservations": "ReservationService",
    "pipelines": "PipelineService",
    "events and logs": "EventService",
    "commands beside a rank": "ExecService",
    "hosts": "HostService",
    "GPUs": "GpuService",
    "identity": "IdentityService",
    "usage": "UsageService",
    "metrics": "MetricsService",
    "alerts": "AlertService",
    "notifications": "NotificationService",
    "access": "AccessService",
    "audit": "AuditService",
    "secrets": "SecretService",
    "uploads": "UploadService",
    "health of the service": "HealthService",
}
"""Tag of the description -> service."""

NAMES = {
    "dry_run": "DryRunJob",
    "who_am_i": "GetWhoAmI",
    "readyz": "GetReadiness",
    "report": "GetReport",
    "usage_report": "GetUsage",
    "job_usage": "GetJobUsage",
    "how_to_sign_in": "GetLogin",
    "clocks": "ListClocks",
    "check_roots": "CheckCheckpointRoots",
}
"""Function of a route -> RPC, where the function's own name would mean something else beside the others."""

STREAMED = {"read_logs": "LogChunk", "read_output": "ExecChunk"}
"""What the server-sent events of an operation carry that has no page of them."""

METADATA = ("X-GPU-Platform-User", "X-GPU-Platform-Break-Glass")
"""Headers that travel as metadata of the call, as ``authorization`` does. Others are fields of the request."""

SCALARS = {"string": "string", "integer": "int64", "number": "double", "boolean": "bool"}


def main() -> int:
    if "--check" in sys.argv[1:]:
        stale = sorted(str(path) for path, content in written().items() if _read(ROOT / path) != content)
        for path in stale:
            print(f"{path} is not what the REST description says: make proto")
        return 1 if stale else 0
    for path, content in written().items():
        if _read(ROOT / path) != content:
            (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / path).write_bytes(content)
            print(f"wrote {path}")
    return 0


def written() -> dict[Path, bytes]:
    """All files that this script writes, from the root of the repository."""
    made = files()
    numbers.assign(made, compiling.descriptors(compiling.on_disk()))
    sources = {compiling.FOLDER / f"{one.name}.proto": text_of(one).encode() for one in made}
    sources[compiling.FOLDER / "options.proto"] = (compiling.PROTO / compiling.FOLDER / "options.proto").read_bytes()
    protos = {Path("proto") / path: content for path, content in sources.items()}
    return protos | compiling.stubs(sources)


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


class Types:
    """The schemas of the description as messages and enums."""

    def __init__(self, schemas: dict[str, Any], bodies: set[str]) -> None:
        """``bodies``: the schemas that requests contain."""
        self.file = File("types")
        self._schemas = schemas
        self._bodies = bodies

    def reach(self, schema: str) -> str:
        """The type of a named schema. It is made when it is first needed."""
        facts = self._schemas[schema]
        name = _type_name(schema)
        if "enum" in facts:
            self.file.enums[name] = Enum(name, dict.fromkeys(facts["enum"], 0), facts.get("description", ""))
        elif "properties" not in facts:
            return "google.protobuf.Value"
        elif name not in self.file.messages:
            made = self.file.messages[name] = Message(name, [], facts.get("description", ""))
            required = facts.get("required", []) if schema in self._bodies else facts["properties"]
            for key, value in facts["properties"].items():
                made.fields.append(self.field(name, key, value, key in required))
            if schema in self._bodies and any(_nullable(value) for value in facts["properties"].values()):
                what = "Names of fields that are null, not left out: a `time_limit_s` that is null asks for no limit."
                made.fields.append(Field("null_fields", "string", "repeated", what))
        return name

    def field(self, parent: str, name: str, facts: dict[str, Any], required: bool) -> Field:
        """A field of a message. ``required``: it is always there, so it needs no presence of its own."""
        kind = _without_null(facts)
        type_, label = self._labelled(kind, f"{parent}{_camel(name)}")
        if _nullable(facts) and label == "repeated":
            type_, label = self._items(type_, label), ""
        elif _nullable(facts) and type_.startswith("map<"):
            type_ = self._items(type_, "")
        is_plain = type_ in (*SCALARS.values(), "bytes") or type_ in self.file.enums
        if is_plain and not label and (_nullable(facts) or not required):
            label = "optional"
        return Field(name, type_, label, facts.get("description", kind.get("description", "")))

    def _labelled(self, facts: dict[str, Any], name: str) -> tuple[str, str]:
        """Type and label. ``name``: of a message or enum that must be made for it."""
        if facts.get("type") == "array":
            if "prefixItems" in facts:
                return self._tuple(facts["prefixItems"], name), ""
            if _nullable(facts["items"]):
                inner = self._single(_without_null(facts["items"]), name)
                self._wrap(f"Optional{_camel(inner)}", [Field("value", inner)], "OPTIONAL")
                return f"Optional{_camel(inner)}", "repeated"
            return self._single(facts["items"], name), "repeated"
        if facts.get("type") == "object" and "properties" not in facts:
            [values] = facts.get("patternProperties", {"": facts.get("additionalProperties", True)}).values()
            if values is True:
                return "google.protobuf.Struct", ""
            return f"map<string, {self._single(values, name)}>", ""
        return self._plain(facts, name), ""

    def _single(self, facts: dict[str, Any], name: str) -> str:
        """The type where protobuf allows neither a list nor a map: a message is made around those."""
        type_, label = self._labelled(facts, name)
        return self._items(type_, label) if label or type_.startswith("map<") else type_

    def _items(self, type_: str, label: str) -> str:
        inner = re.sub(r"^map<string, (.*)>$", r"\1", type_)
        name = f"{_camel(inner)}{'List' if label else 'Map'}"
        return self._wrap(name, [Field("items", type_, label)], "ITEMS")

    def _tuple(self, facts: list[dict[str, Any]], name: str) -> str:
        names = ("first", "second", "third", "fourth")
        return self._wrap(name, [self.field(name, names[n], one, True) for n, one in enumerate(facts)], "TUPLE")

    def _wrap(self, name: str, fields: list[Field], shape: str) -> str:
        self.file.messages.setdefault(name, Message(name, fields, shape=shape))
        return name

    def _plain(self, facts: dict[str, Any], name: str) -> str:
        match facts:
            case {"$ref": reference}:
                return self.reach(_name(reference))
            case {"enum": values}:
                self.file.enums[name] = Enum(name, dict.fromkeys(values, 0))
                return name
            case {"type": "string", "format": "date-time"}:
                return "google.protobuf.Timestamp"
            case {"type": "string", "format": "base64" | "binary"}:
                return "bytes"
            case {"type": kind}:
                return SCALARS[kind]
        return "google.protobuf.Value"


def files() -> list[File]:
    """All files but ``options.proto``, without numbers."""
    api = create_app(Settings(), Store("sqlite:///unused.db")).openapi()  # a store opens nothing by itself
    schemas = api["components"]["schemas"]
    operations = [
        (method, path, operation)
        for path, item in api["paths"].items()
        for method, operation in item.items()
        if f"{method.upper()} {path}" not in ONLY_REST
    ]
    seeds = [name for *_, operation in operations for name in _references(operation.get("requestBody", {}))]
    types = Types(schemas, _closure(schemas, seeds))
    made = {tag: File(_snake(service), service=service) for tag, service in SERVICES.items()}
    for method, path, operation in operations:
        for one in _methods(types, made[operation["tags"][0]], method, path, operation):
            made[operation["tags"][0]].methods.append(one)
    types.reach("Problem")
    for kept in (types.file.messages, types.file.enums):
        for name in sorted(kept):
            kept[name] = kept.pop(name)  # type: ignore[assignment]
    return [types.file, *made.values()]


def _methods(types: Types, into: File, method: str, path: str, operation: dict[str, Any]) -> Iterator[Method]:
    """One RPC; two if the operation can be followed or not."""
    operation_id = operation["operationId"]
    function = operation_id.removesuffix(re.sub(r"\W", "_", path) + f"_{method}")
    answers = {k: v for status, one in operation["responses"].items() if status != "default"
               for k, v in one.get("content", {}).items()}  # fmt: skip
    followed = "text/event-stream" in answers
    page = _name(answers["application/json"]["schema"].get("$ref", "")) if "application/json" in answers else ""
    event = STREAMED.get(function) or page.removeprefix("Page_").removesuffix("_")
    name = NAMES.get(function, _camel(function))
    for streams in (False, True):
        if not streams and followed and not page and "text/plain" not in answers:
            continue
        if streams and not followed:
            continue
        fixed = f"follow={str(streams).lower()}" if followed and _has_follow(operation) else ""
        named = name.replace("Read", "Follow", 1) if streams and fixed else name
        request = Message(f"{named}Request", _request_fields(types, f"{named}Request", operation))
        into.messages[request.name] = request
        as_text = not streams and "text/plain" in answers
        if streams or as_text:
            of_stream = [
                Field("id", "string", comment="Where the next one begins: `last_event_id` of a request that goes on."),
                Field("data", types.reach(event)),
            ]
            text = [Field("text", "bytes", comment="A piece of the text. A character may be cut in two.")]
            response = f"{named}Response"
            into.messages[response] = Message(response, text if as_text else of_stream)
        else:
            response = types.reach(page) if page else "google.protobuf.Empty"
        body = ' body: "body"' if "requestBody" in operation else ""
        http = f'{method}: "{path}"{body}'
        comment = operation.get("description", operation.get("summary", ""))
        yield Method(named, comment, http, request.name, response, streams or as_text, fixed)


def _request_fields(types: Types, parent: str, operation: dict[str, Any]) -> list[Field]:
    found = []
    for parameter in operation.get("parameters", []):
        name, kind = parameter["name"], parameter["in"]
        if name in METADATA or name == "follow":
            continue
        facts = {"description": parameter.get("description", ""), **parameter["schema"]}
        if _without_null(facts).get("type") == "array":
            facts = {"description": facts["description"], **_without_null(facts)}  # a query cannot say null
        made = types.field(parent, name.lower().replace("-", "_"), facts, parameter.get("required", False))
        if kind == "header":
            made.options = f'({PACKAGE}.header) = "{name}"'
        found.append(made)
    if (body := operation.get("requestBody")) is not None:
        [content] = body["content"].values()
        found.append(types.field(parent, "body", content["schema"], True))
    return found


def _has_follow(operation: dict[str, Any]) -> bool:
    return any(parameter["name"] == "follow" for parameter in operation.get("parameters", []))


def _nullable(facts: dict[str, Any]) -> bool:
    return any(choice == {"type": "null"} for choice in facts.get("anyOf", []))


def _without_null(facts: dict[str, Any]) -> dict[str, Any]:
    if "anyOf" not in facts:
        return facts
    [only] = [choice for choice in facts["anyOf"] if choice != {"type": "null"}]
    return only


def _type_name(schema: str) -> str:
    """``Page_Job_`` is a JobPage. Two classes of one name are told apart by their modules: PlacementHostCount."""
    if (page := re.fullmatch(r"Page_(\w+)_", schema)) is not None:
        return f"{page[1]}Page"
    return _camel("_".join(schema.split("__")[-2:])) if "__" in schema else schema


def _name(reference: str) -> str:
    return reference.rsplit("/", 1)[-1]


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(reference := schema.get("$ref"), str):
            yield _name(reference)
        schema = list(schema.values())
    if isinstance(schema, list):
        for one in schema:
            yield from _references(one)


def _closure(schemas: dict[str, Any], seeds: list[str]) -> set[str]:
    found: set[str] = set()
    while seeds:
        name = seeds.pop()
        if name not in found:
            found.add(name)
            seeds.extend(_references(schemas[name]))
    return found


def _camel(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"[^A-Za-z0-9]", name.rsplit(".", 1)[-1]))


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


if __name__ == "__main__":
    sys.exit(main())

"""A .proto file as data, and its text."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

PACKAGE = "gpu_platform.v1"
GENERATED = "// Written by scripts/gen_proto.py (make proto) from the REST description: do not edit.\n"
IMPORTS = {
    "google.protobuf.Timestamp": "google/protobuf/timestamp.proto",
    "google.protobuf.Struct": "google/protobuf/struct.proto",
    "google.protobuf.Value": "google/protobuf/struct.proto",
    "google.protobuf.Empty": "google/protobuf/empty.proto",
}


@dataclass
class Field:
    """A field of a message."""

    name: str
    type: str
    label: str = ""
    """``optional``, ``repeated`` or nothing."""
    comment: str = ""
    options: str = ""
    number: int = 0


@dataclass
class Message:
    """A message."""

    name: str
    fields: list[Field]
    comment: str = ""
    shape: str = ""
    reserved: list[int] = field(default_factory=list)


@dataclass
class Enum:
    """An enum."""

    name: str
    values: dict[str, int]
    """As in JSON -> number; 0: none yet. ``UNSPECIFIED`` is not among them."""
    comment: str = ""
    reserved: list[int] = field(default_factory=list)

    def value_name(self, value: str) -> str:
        """The name in the .proto file: ``JOB_STATE_RUNNING``."""
        prefix = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", self.name)
        return f"{prefix}_{re.sub('[^A-Za-z0-9]', '_', value)}".upper()


@dataclass
class Method:
    """An RPC, and the request of REST that it stands for."""

    name: str
    comment: str
    http: str
    request: str
    response: str
    streams: bool = False
    query: str = ""


@dataclass
class File:
    """One .proto file: its messages, enums and at most one service."""

    name: str
    messages: dict[str, Message] = field(default_factory=dict)
    enums: dict[str, Enum] = field(default_factory=dict)
    service: str = ""
    methods: list[Method] = field(default_factory=list)


def text_of(file: File) -> str:
    """The text of the file."""
    parts = [_service(file)] if file.service else []
    parts += [_enum(one) for one in file.enums.values()]
    parts += [_message(one) for one in file.messages.values()]
    body = "\n".join(parts)
    needed = {path for type_, path in IMPORTS.items() if re.search(rf"\b{re.escape(type_)}\b", body)}
    if file.service:
        needed |= {"google/api/annotations.proto", f"{PACKAGE.replace('.', '/')}/types.proto"}
    if f"({PACKAGE}." in body:
        needed.add(f"{PACKAGE.replace('.', '/')}/options.proto")
    imports = "".join(f'import "{path}";\n' for path in sorted(needed))
    return f'{GENERATED}syntax = "proto3";\n\npackage {PACKAGE};\n\n{imports}\n{body}'


def _service(file: File) -> str:
    methods = "\n".join("".join(_method(one)) for one in file.methods)
    return f"service {file.service} {{\n{methods}}}\n"


def _method(method: Method) -> Iterator[str]:
    yield _comment(method.comment, "  ")
    returned = f"{'stream ' if method.streams else ''}{method.response}"
    yield f"  rpc {method.name}({method.request}) returns ({returned}) {{\n"
    yield f"    option (google.api.http) = {{{method.http}}};\n"
    if method.query:
        yield f'    option ({PACKAGE}.query) = "{method.query}";\n'
    yield "  }\n"


def _enum(enum: Enum) -> str:
    lines = "".join(
        f'  {enum.value_name(value)} = {number} [({PACKAGE}.json) = "{value}"];\n'
        for value, number in enum.values.items()
    )
    unspecified = f"  {enum.value_name('unspecified')} = 0;\n"
    return f"{_comment(enum.comment)}enum {enum.name} {{\n{_reserved(enum.reserved)}{unspecified}{lines}}}\n"


def _message(message: Message) -> str:
    shape = f"  option ({PACKAGE}.shape) = SHAPE_{message.shape};\n" if message.shape else ""
    fields = "".join("".join(_field(one)) for one in message.fields)
    inside = f"{shape}{_reserved(message.reserved)}{fields}"
    return f"{_comment(message.comment)}message {message.name} {{" + (f"\n{inside}}}\n" if inside else "}\n")


def _field(one: Field) -> Iterator[str]:
    yield _comment(one.comment, "  ")
    options = f" [{one.options}]" if one.options else ""
    yield f"  {one.label} {one.type} {one.name} = {one.number}{options};\n".replace("   ", "  ", 1)


def _reserved(numbers: Iterable[int]) -> str:
    listed = ", ".join(str(number) for number in sorted(numbers))
    return f"  reserved {listed};\n" if listed else ""


def _comment(text: str, indent: str = "") -> str:
    """Paragraphs stay, lines are filled anew. A role of Sphinx is only its name."""
    text = re.sub(r":\w+:`(?:[\w.]+\.)?(\w+)`", r"`\1`", text).replace("``", "`")
    paragraphs = [" ".join(part.split()) for part in text.strip().split("\n\n")] if text.strip() else []
    blocks = ["".join(f"{indent}// {line}\n" for line in textwrap.wrap(part, 116 - len(indent))) for part in paragraphs]
    return f"{indent}//\n".join(blocks)

"""Numbers of fields and enum values: those of the files that are there stay, new ones come after them."""

from __future__ import annotations

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorSet,
)

from scripts.protobuf.files import PACKAGE, Enum, Field, File, Message

_FIRST_RESERVED_BY_PROTOBUF = 19_000


def assign(files: list[File], known: FileDescriptorSet) -> None:
    """Give each field and each value its number. ``known``: the files as they are."""
    messages = {one.name: one for file in known.file if file.package == PACKAGE for one in file.message_type}
    enums = {one.name: one for file in known.file if file.package == PACKAGE for one in file.enum_type}
    made = {name: enum for file in files for name, enum in file.enums.items()}
    for enum in made.values():
        _number_values(enum, enums.get(enum.name, EnumDescriptorProto()))
    for file in files:
        for message in file.messages.values():
            _number_fields(message, messages.get(message.name, DescriptorProto()))


def _number_fields(message: Message, known: DescriptorProto) -> None:
    before = {one.name: (one.number, _kind(one, known)) for one in known.field}
    taken = {number for number, _ in before.values()}
    gone = {number for span in known.reserved_range for number in range(span.start, span.end)}
    following = max(taken | gone, default=0) + 1
    for field in message.fields:
        number, kind = before.get(field.name, (0, ""))
        if kind == _wanted(field):
            field.number = number
        else:
            field.number, following = following, following + 1
    assert following < _FIRST_RESERVED_BY_PROTOBUF, message.name
    message.reserved = sorted((taken | gone) - {field.number for field in message.fields})


def _number_values(enum: Enum, known: EnumDescriptorProto) -> None:
    before = {one.name: one.number for one in known.value}
    gone = {number for span in known.reserved_range for number in range(span.start, span.end + 1)}
    following = max({*before.values(), *gone}, default=0) + 1
    for value in enum.values:
        number = before.get(enum.value_name(value))
        if number is None:
            number, following = following, following + 1
        enum.values[value] = number
    enum.reserved = sorted(({*before.values()} | gone) - {0, *enum.values.values()})


def _wanted(field: Field) -> str:
    return f"repeated {field.type}" if field.label == "repeated" else field.type


def _kind(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    """As :func:`_wanted`. ``optional`` is no other kind: it has the same bytes."""
    name = field.type_name.removeprefix(f".{PACKAGE}.").removeprefix(".")
    for entry in message.nested_type:
        if entry.options.map_entry and name == f"{message.name}.{entry.name}":
            return f"map<string, {_kind(entry.field[1], message)}>"
    kind = name or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    return f"repeated {kind}" if field.label == FieldDescriptorProto.LABEL_REPEATED else kind

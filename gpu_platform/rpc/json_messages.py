"""Messages as JSON, and JSON as messages.

protobuf's own JSON is another one: it writes 64-bit integers as texts, and knows nothing of the texts of our enums,
of null, and of lists in lists. The rules are in ``proto/gpu_platform/v1/options.proto``. What is null in an answer is
left out.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any, NamedTuple

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.rpc.options import shape_of, text_of
from gpu_platform.v1 import options_pb2

NULL_FIELDS = "null_fields"
_MOST_EXACT = 2**53
"""Beyond it a double, the only number of ``google.protobuf.Value``, has not every integer (RFC 8259, section 6)."""
_TIMESTAMP, _STRUCT, _VALUE = "google.protobuf.Timestamp", "google.protobuf.Struct", "google.protobuf.Value"

Convert = Callable[[Any], Any]


def to_json(message: Message, *, complete: bool = False) -> Any:
    """``complete``: with lists that are empty, as answers have them. In requests, those are left out.

    Raises :class:`InvalidRequest` for what JSON has no text for, e.g. the year 10000.
    """
    try:
        return _written(message.DESCRIPTOR, complete)(message)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(f"{message.DESCRIPTOR.name} has a value that JSON has not: {error}") from None


def to_message(value: Any, kind: type[Message], *, exact: bool = True) -> Message:
    """Raises :class:`InvalidRequest` that names the field, if the value does not fit.

    ``exact``: refuse large integers in free JSON, which gRPC would round.
    """
    try:
        return kind(**_read(kind.DESCRIPTOR, exact)(value))
    except InvalidRequest:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidRequest(f"{kind.DESCRIPTOR.name} cannot be sent as a message: {error}") from error


def query_texts(message: Mapping[str, Any], field: FieldDescriptor) -> list[str]:
    """The values of a parameter of a query, as texts. ``message``: as JSON. Empty: it is not given."""
    found = message.get(field.name)
    given = found if isinstance(found, list) else [] if found is None else [found]
    return [str(one).lower() if isinstance(one, bool) else str(one) for one in given]


def parse_query(texts: list[str], field: FieldDescriptor) -> Any:
    """The JSON of a parameter of a query. Raises :class:`InvalidRequest`."""
    parse = _PARSED.get(field.cpp_type, str)
    try:
        values = [parse(text) for text in texts]
    except (ValueError, KeyError):
        raise InvalidRequest(f"{field.name}: {texts!r} is no {parse.__name__.strip('_')}") from None
    return values if field.is_repeated else values[-1]


def _truth(text: str) -> bool:
    return {"true": True, "false": False, "1": True, "0": False}[text.lower()]


_PARSED: dict[int, Callable[[str], Any]] = {
    FieldDescriptor.CPPTYPE_INT64: int,
    FieldDescriptor.CPPTYPE_DOUBLE: float,
    FieldDescriptor.CPPTYPE_BOOL: _truth,
}


# -- messages to JSON --------------------------------------------------------------------------------


class _Written(NamedTuple):
    name: str
    convert: Convert | None
    is_map: bool
    is_list: bool
    has_presence: bool


@cache
def _written(kind: Descriptor, complete: bool) -> Convert:
    """Turns messages of this type into JSON."""
    if (known := _KNOWN_WRITTEN.get(kind.full_name)) is not None:
        return known
    shape = shape_of(kind)
    # Fields are looked up at the first message: a type may contain itself.
    fields = _Later(lambda: [_written_field(field, complete) for field in kind.fields if field.name != NULL_FIELDS])
    has_nulls = NULL_FIELDS in kind.fields_by_name

    def convert(message: Message) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, each, is_map, is_list, has_presence in fields.get():
            value = getattr(message, name)
            if is_list or is_map:
                if not value and not complete:
                    continue
                if is_map:
                    found[name] = {key: value[key] if each is None else each(value[key]) for key in value}
                else:
                    found[name] = list(value) if each is None else [each(one) for one in value]
            elif not has_presence or message.HasField(name):  # type: ignore[arg-type]
                found[name] = value if each is None else each(value)
        if has_nulls:
            found.update(dict.fromkeys(message.null_fields))  # type: ignore[attr-defined]
        return found

    if shape == options_pb2.SHAPE_ITEMS:
        # It is there, so it is not null, even if it is empty.
        return lambda message: _written_items(message, fields.get()[0])
    if shape == options_pb2.SHAPE_OPTIONAL:
        return lambda message: convert(message).get("value")
    if shape == options_pb2.SHAPE_TUPLE:
        return lambda message: [*convert(message).values()]
    return convert


def _written_items(message: Message, field: _Written) -> Any:
    items: Any = message.items  # type: ignore[attr-defined]
    each = field.convert or (lambda value: value)
    return {key: each(items[key]) for key in items} if field.is_map else [each(one) for one in items]


def _written_field(field: FieldDescriptor, complete: bool) -> _Written:
    value = _map_value(field)
    is_map = value is not None
    convert = _written_value(value or field, complete)
    return _Written(field.name, convert, is_map, field.is_repeated and not is_map, field.has_presence)


def _written_value(field: FieldDescriptor, complete: bool) -> Convert | None:
    if field.message_type is not None:
        return _written(field.message_type, complete)
    if field.enum_type is not None:
        texts = _texts(field.enum_type)
        return lambda number: texts.get(number, f"unknown {number}" if number else None)
    return _to_base64 if field.type == FieldDescriptor.TYPE_BYTES else None


def _to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _time_text(stamp: Any) -> str:
    """As pydantic writes it."""
    when = stamp.ToDatetime(UTC)
    return when.isoformat().replace("+00:00", "Z")


def _plain(value: Any) -> Any:
    """The JSON of a ``google.protobuf.Value``. A whole number is an integer, as it was most probably."""
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return _plain_object(value.struct_value)
    if kind == "list_value":
        return [_plain(one) for one in value.list_value.values]
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() and abs(number) <= _MOST_EXACT else number
    return None if kind in (None, "null_value") else getattr(value, kind)


def _plain_object(struct: Any) -> dict[str, Any]:
    return {name: _plain(one) for name, one in struct.fields.items()}


_KNOWN_WRITTEN: dict[str, Convert] = {_TIMESTAMP: _time_text, _STRUCT: _plain_object, _VALUE: _plain}


# -- JSON to messages --------------------------------------------------------------------------------


@cache
def _read(kind: Descriptor, exact: bool) -> Convert:
    """Turns JSON into the arguments of a message of this type."""
    shape = shape_of(kind)
    fields = _Later(lambda: {field.name: _read_field(field, exact) for field in kind.fields})
    known = kind.fields_by_name
    has_nulls = NULL_FIELDS in known

    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise InvalidRequest(f"{kind.name}: should be an object, and is {_short(value)}")
        found: dict[str, Any] = {}
        nulls = []
        readers = fields.get()
        for name, one in value.items():
            if one is None:
                nulls.append(name)
                continue
            if name not in readers:
                raise InvalidRequest(f"{kind.name}.{name}: there is no such field")
            each = readers[name]
            found[name] = one if each is None else each(one)
        if has_nulls and nulls:
            found[NULL_FIELDS] = nulls
        return found

    if shape == options_pb2.SHAPE_ITEMS:
        return lambda value: {"items": value} if (each := fields.get()["items"]) is None else {"items": each(value)}
    if shape == options_pb2.SHAPE_OPTIONAL:
        return lambda value: convert({"value": value})
    if shape == options_pb2.SHAPE_TUPLE:
        names = [field.name for field in kind.fields]
        return lambda value: convert(dict(zip(names, value, strict=True)))
    return convert


def _read_field(field: FieldDescriptor, exact: bool) -> Convert | None:
    if (of_map := _map_value(field)) is not None:
        each = _read_value(of_map, exact)
        return None if each is None else lambda value: {key: each(one) for key, one in value.items()}
    each = _read_value(field, exact)
    if field.is_repeated and each is not None:
        return lambda value: [each(one) for one in value]
    return each


def _read_value(field: FieldDescriptor, exact: bool) -> Convert | None:
    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            return lambda value: _stamp(field, value)
        if field.message_type.full_name in (_STRUCT, _VALUE):
            return lambda value: _free(field, value, exact)
        if _is_entry_value(field):
            read, made = _read(field.message_type, exact), _made(field)
            return lambda value: made(**read(value))
        return _read(field.message_type, exact)
    if field.enum_type is not None:
        return lambda value: _number(field, value)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return lambda value: _from_base64(field, value)
    return None


def _is_entry_value(field: FieldDescriptor) -> bool:
    """True for the value of a map, which protobuf does not make from a dictionary."""
    return field.containing_type is not None and field.containing_type.GetOptions().map_entry


def _number(field: FieldDescriptor, value: Any) -> int:
    numbers = _numbers(field.enum_type)
    if not isinstance(value, str) or value not in numbers:
        raise InvalidRequest(f"{field.name}: should be one of {', '.join(numbers)}, and is {_short(value)}")
    return numbers[value]


def _from_base64(field: FieldDescriptor, value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise InvalidRequest(f"{field.name}: should be base64, and is {_short(value)}") from None


def _stamp(field: FieldDescriptor, value: Any) -> Message:
    try:
        when = datetime.fromisoformat(value)
        if when.tzinfo is None:
            raise ValueError
    except (TypeError, ValueError):
        wanted = "a date and time with a time zone, e.g. 2026-01-02T03:04:05Z"
        raise InvalidRequest(f"{field.name}: should be {wanted}, and is {_short(value)}") from None
    made: Any = _made(field)()
    made.FromDatetime(when.astimezone(UTC))
    return made


def _free(field: FieldDescriptor, value: Any, exact: bool) -> Message:
    made: Any = _made(field)()
    if made.DESCRIPTOR.full_name == _STRUCT:
        _fill_object(made, value, exact)
    else:
        _fill(made, value, exact)
    return made


def _fill(target: Any, value: Any, exact: bool) -> None:
    """Write JSON into a ``google.protobuf.Value``."""
    if value is None:
        target.null_value = 0
    elif isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, str):
        target.string_value = value
    elif isinstance(value, dict):
        target.struct_value.SetInParent()
        _fill_object(target.struct_value, value, exact)
    elif isinstance(value, list):
        target.list_value.SetInParent()
        for one in value:
            _fill(target.list_value.values.add(), one, exact)
    else:
        if exact and isinstance(value, int) and abs(value) > _MOST_EXACT:
            raise InvalidRequest(f"{value}: gRPC would round this integer; give it as a text, or use REST")
        target.number_value = value


def _fill_object(target: Any, value: dict[str, Any], exact: bool) -> None:
    for name, one in value.items():
        _fill(target.fields[name], one, exact)


# -- both --------------------------------------------------------------------------------------------


class _Later:
    """A value that is made when it is first needed."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._made: Any = None

    def get(self) -> Any:
        if self._made is None:
            self._made = self._make()
        return self._made


def _map_value(field: FieldDescriptor) -> FieldDescriptor | None:
    """The values of a map, which is a list of entries in the descriptors. None: it is no map."""
    entry = field.message_type
    return entry.fields_by_name["value"] if entry is not None and entry.GetOptions().map_entry else None


def _made(field: FieldDescriptor) -> type[Message]:
    assert field.message_type is not None, field.full_name
    return GetMessageClass(field.message_type)


@cache
def _texts(enum: EnumDescriptor) -> dict[int, str]:
    return {one.number: text_of(one) for one in enum.values if one.number}


@cache
def _numbers(enum: EnumDescriptor) -> dict[str, int]:
    return {text: number for number, text in _texts(enum).items()}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"

"""What the .proto files say about their messages and methods in options."""

from __future__ import annotations

from typing import Any

from google.api import annotations_pb2
from google.protobuf.descriptor import Descriptor, EnumValueDescriptor, FieldDescriptor, MethodDescriptor

from gpu_platform.v1 import options_pb2


def shape_of(kind: Descriptor) -> int:
    """What the message stands for in JSON, a number of ``Shape``."""
    return _read(kind, options_pb2.shape)


def text_of(value: EnumValueDescriptor) -> str:
    """The text of the value in JSON."""
    return _read(value, options_pb2.json)


def header_of(field: FieldDescriptor) -> str:
    """The header that carries the field. Empty: none."""
    return _read(field, options_pb2.header)


def query_of(method: MethodDescriptor) -> str:
    """The part of the query that all requests of the method have."""
    return _read(method, options_pb2.query)


def http_of(method: MethodDescriptor) -> Any:
    """The request of REST that the method stands for, a ``google.api.HttpRule``."""
    return _read(method, annotations_pb2.http)


def _read(descriptor: Any, option: Any) -> Any:
    return descriptor.GetOptions().Extensions[option]

from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor

class Shape(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SHAPE_UNSPECIFIED: _ClassVar[Shape]
    SHAPE_ITEMS: _ClassVar[Shape]
    SHAPE_TUPLE: _ClassVar[Shape]
    SHAPE_OPTIONAL: _ClassVar[Shape]
SHAPE_UNSPECIFIED: Shape
SHAPE_ITEMS: Shape
SHAPE_TUPLE: Shape
SHAPE_OPTIONAL: Shape
SHAPE_FIELD_NUMBER: _ClassVar[int]
shape: _descriptor.FieldDescriptor
JSON_FIELD_NUMBER: _ClassVar[int]
json: _descriptor.FieldDescriptor
HEADER_FIELD_NUMBER: _ClassVar[int]
header: _descriptor.FieldDescriptor
QUERY_FIELD_NUMBER: _ClassVar[int]
query: _descriptor.FieldDescriptor

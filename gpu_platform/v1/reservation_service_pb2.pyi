from google.api import annotations_pb2 as _annotations_pb2
from google.protobuf import empty_pb2 as _empty_pb2
from gpu_platform.v1 import types_pb2 as _types_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CreateReservationRequest(_message.Message):
    __slots__ = ("body",)
    BODY_FIELD_NUMBER: _ClassVar[int]
    body: _types_pb2.WindowRequest
    def __init__(self, body: _Optional[_Union[_types_pb2.WindowRequest, _Mapping]] = ...) -> None: ...

class ListReservationsRequest(_message.Message):
    __slots__ = ("cursor", "limit")
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    cursor: str
    limit: int
    def __init__(self, cursor: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class GetReservationRequest(_message.Message):
    __slots__ = ("reservation",)
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    reservation: str
    def __init__(self, reservation: _Optional[str] = ...) -> None: ...

class UpdateReservationRequest(_message.Message):
    __slots__ = ("reservation", "body")
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    reservation: str
    body: _types_pb2.WindowChanges
    def __init__(self, reservation: _Optional[str] = ..., body: _Optional[_Union[_types_pb2.WindowChanges, _Mapping]] = ...) -> None: ...

class DeleteReservationRequest(_message.Message):
    __slots__ = ("reservation",)
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    reservation: str
    def __init__(self, reservation: _Optional[str] = ...) -> None: ...

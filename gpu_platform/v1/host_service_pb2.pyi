from google.api import annotations_pb2 as _annotations_pb2
from google.protobuf import empty_pb2 as _empty_pb2
from gpu_platform.v1 import types_pb2 as _types_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListHostsRequest(_message.Message):
    __slots__ = ("cursor", "limit")
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    cursor: str
    limit: int
    def __init__(self, cursor: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class CountClusterRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetHostRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class RemoveHostRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DrainHostRequest(_message.Message):
    __slots__ = ("name", "force", "body")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    name: str
    force: bool
    body: _types_pb2.ReasonBody
    def __init__(self, name: _Optional[str] = ..., force: _Optional[bool] = ..., body: _Optional[_Union[_types_pb2.ReasonBody, _Mapping]] = ...) -> None: ...

class TakeHostOfflineRequest(_message.Message):
    __slots__ = ("name", "force", "body")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    name: str
    force: bool
    body: _types_pb2.ReasonBody
    def __init__(self, name: _Optional[str] = ..., force: _Optional[bool] = ..., body: _Optional[_Union[_types_pb2.ReasonBody, _Mapping]] = ...) -> None: ...

class PutHostOnlineRequest(_message.Message):
    __slots__ = ("name", "body")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    name: str
    body: _types_pb2.ReasonBody
    def __init__(self, name: _Optional[str] = ..., body: _Optional[_Union[_types_pb2.ReasonBody, _Mapping]] = ...) -> None: ...

class DeclareHostLostRequest(_message.Message):
    __slots__ = ("name", "force", "body")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    name: str
    force: bool
    body: _types_pb2.ReasonBody
    def __init__(self, name: _Optional[str] = ..., force: _Optional[bool] = ..., body: _Optional[_Union[_types_pb2.ReasonBody, _Mapping]] = ...) -> None: ...

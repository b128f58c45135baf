from google.api import annotations_pb2 as _annotations_pb2
from gpu_platform.v1 import options_pb2 as _options_pb2
from gpu_platform.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SubmitArrayRequest(_message.Message):
    __slots__ = ("idempotency_key", "body")
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    idempotency_key: str
    body: _types_pb2.ArraySubmission
    def __init__(self, idempotency_key: _Optional[str] = ..., body: _Optional[_Union[_types_pb2.ArraySubmission, _Mapping]] = ...) -> None: ...

class ListArraysRequest(_message.Message):
    __slots__ = ("state", "cursor", "limit", "namespace", "user", "name", "kind")
    STATE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    state: _containers.RepeatedScalarFieldContainer[_types_pb2.ArrayState]
    cursor: str
    limit: int
    namespace: str
    user: str
    name: str
    kind: _types_pb2.WorkKind
    def __init__(self, state: _Optional[_Iterable[_Union[_types_pb2.ArrayState, str]]] = ..., cursor: _Optional[str] = ..., limit: _Optional[int] = ..., namespace: _Optional[str] = ..., user: _Optional[str] = ..., name: _Optional[str] = ..., kind: _Optional[_Union[_types_pb2.WorkKind, str]] = ...) -> None: ...

class GetArrayRequest(_message.Message):
    __slots__ = ("array_id", "wait_s")
    ARRAY_ID_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    array_id: str
    wait_s: float
    def __init__(self, array_id: _Optional[str] = ..., wait_s: _Optional[float] = ...) -> None: ...

class ChangeArrayRequest(_message.Message):
    __slots__ = ("array_id", "body")
    ARRAY_ID_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    array_id: str
    body: _types_pb2.ArrayChanges
    def __init__(self, array_id: _Optional[str] = ..., body: _Optional[_Union[_types_pb2.ArrayChanges, _Mapping]] = ...) -> None: ...

class CancelArrayRequest(_message.Message):
    __slots__ = ("array_id", "body")
    ARRAY_ID_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    array_id: str
    body: _types_pb2.ElementsBody
    def __init__(self, array_id: _Optional[str] = ..., body: _Optional[_Union[_types_pb2.ElementsBody, _Mapping]] = ...) -> None: ...

class KillArrayRequest(_message.Message):
    __slots__ = ("array_id", "body")
    ARRAY_ID_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    array_id: str
    body: _types_pb2.ElementsBody
    def __init__(self, array_id: _Optional[str] = ..., body: _Optional[_Union[_types_pb2.ElementsBody, _Mapping]] = ...) -> None: ...

class HoldArrayRequest(_message.Message):
    __slots__ = ("array_id", "body")
    ARRAY_ID_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    array_id: str
    body: _types_pb2.ReasonBody
    def __init__(self, array_id: _Optional[str] = ..., body: _Optional[_Union[_types_pb2.ReasonBody, _Mapping]] = ...) -> None: ...

class ReleaseArrayRequest(_message.Message):
    __slots__ = ("array_id",)
    ARRAY_ID_FIELD_NUMBER: _ClassVar[int]
    array_id: str
    def __init__(self, array_id: _Optional[str] = ...) -> None: ...

class RetryArrayRequest(_message.Message):
    __slots__ = ("array_id", "idempotency_key", "body")
    ARRAY_ID_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    array_id: str
    idempotency_key: str
    body: _types_pb2.RetryBody
    def __init__(self, array_id: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., body: _Optional[_Union[_types_pb2.RetryBody, _Mapping]] = ...) -> None: ...

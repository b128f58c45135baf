from google.api import annotations_pb2 as _annotations_pb2
from gpu_platform.v1 import types_pb2 as _types_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListQueueRequest(_message.Message):
    __slots__ = ("namespace", "cursor", "limit")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    cursor: str
    limit: int
    def __init__(self, namespace: _Optional[str] = ..., cursor: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListQuotasRequest(_message.Message):
    __slots__ = ("cursor", "limit")
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    cursor: str
    limit: int
    def __init__(self, cursor: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class DryRunJobRequest(_message.Message):
    __slots__ = ("body",)
    BODY_FIELD_NUMBER: _ClassVar[int]
    body: _types_pb2.JobSpec
    def __init__(self, body: _Optional[_Union[_types_pb2.JobSpec, _Mapping]] = ...) -> None: ...

class ReadReasonRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class ReadSnapshotRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AskWhatIfRequest(_message.Message):
    __slots__ = ("body",)
    BODY_FIELD_NUMBER: _ClassVar[int]
    body: _types_pb2.WhatIfRequest
    def __init__(self, body: _Optional[_Union[_types_pb2.WhatIfRequest, _Mapping]] = ...) -> None: ...

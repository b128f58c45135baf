from google.api import annotations_pb2 as _annotations_pb2
from gpu_platform.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListGpusRequest(_message.Message):
    __slots__ = ("host", "state", "cursor", "limit")
    HOST_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    host: str
    state: _containers.RepeatedScalarFieldContainer[_types_pb2.GpuState]
    cursor: str
    limit: int
    def __init__(self, host: _Optional[str] = ..., state: _Optional[_Iterable[_Union[_types_pb2.GpuState, str]]] = ..., cursor: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class GetGpuRequest(_message.Message):
    __slots__ = ("gpu_id",)
    GPU_ID_FIELD_NUMBER: _ClassVar[int]
    gpu_id: str
    def __init__(self, gpu_id: _Optional[str] = ...) -> None: ...

class GetGpuHealthRequest(_message.Message):
    __slots__ = ("gpu_id",)
    GPU_ID_FIELD_NUMBER: _ClassVar[int]
    gpu_id: str
    def __init__(self, gpu_id: _Optional[str] = ...) -> None: ...

class GetGpuEventsRequest(_message.Message):
    __slots__ = ("gpu_id", "limit")
    GPU_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    gpu_id: str
    limit: int
    def __init__(self, gpu_id: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class DrainGpuRequest(_message.Message):
    __slots__ = ("gpu_id", "force", "body")
    GPU_ID_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    gpu_id: str
    force: bool
    body: _types_pb2.ReasonBody
    def __init__(self, gpu_id: _Optional[str] = ..., force: _Optional[bool] = ..., body: _Optional[_Union[_types_pb2.ReasonBody, _Mapping]] = ...) -> None: ...

class TakeGpuOfflineRequest(_message.Message):
    __slots__ = ("gpu_id", "force", "body")
    GPU_ID_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    gpu_id: str
    force: bool
    body: _types_pb2.ReasonBody
    def __init__(self, gpu_id: _Optional[str] = ..., force: _Optional[bool] = ..., body: _Optional[_Union[_types_pb2.ReasonBody, _Mapping]] = ...) -> None: ...

class PutGpuOnlineRequest(_message.Message):
    __slots__ = ("gpu_id", "body")
    GPU_ID_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    gpu_id: str
    body: _types_pb2.ReasonBody
    def __init__(self, gpu_id: _Optional[str] = ..., body: _Optional[_Union[_types_pb2.ReasonBody, _Mapping]] = ...) -> None: ...

class GetRemediationRequest(_message.Message):
    __slots__ = ("gpu_id",)
    GPU_ID_FIELD_NUMBER: _ClassVar[int]
    gpu_id: str
    def __init__(self, gpu_id: _Optional[str] = ...) -> None: ...

class ApproveRemediationRequest(_message.Message):
    __slots__ = ("gpu_id", "body")
    GPU_ID_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    gpu_id: str
    body: _types_pb2.ReasonBody
    def __init__(self, gpu_id: _Optional[str] = ..., body: _Optional[_Union[_types_pb2.ReasonBody, _Mapping]] = ...) -> None: ...

class VetoRemediationRequest(_message.Message):
    __slots__ = ("gpu_id", "body")
    GPU_ID_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    gpu_id: str
    body: _types_pb2.ReasonBody
    def __init__(self, gpu_id: _Optional[str] = ..., body: _Optional[_Union[_types_pb2.ReasonBody, _Mapping]] = ...) -> None: ...

class GetServiceCaseRequest(_message.Message):
    __slots__ = ("gpu_id",)
    GPU_ID_FIELD_NUMBER: _ClassVar[int]
    gpu_id: str
    def __init__(self, gpu_id: _Optional[str] = ...) -> None: ...

from google.api import annotations_pb2 as _annotations_pb2
from gpu_platform.v1 import types_pb2 as _types_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class GetGpuMetricsRequest(_message.Message):
    __slots__ = ("gpu_id", "window_s")
    GPU_ID_FIELD_NUMBER: _ClassVar[int]
    WINDOW_S_FIELD_NUMBER: _ClassVar[int]
    gpu_id: str
    window_s: int
    def __init__(self, gpu_id: _Optional[str] = ..., window_s: _Optional[int] = ...) -> None: ...

class GetHostMetricsRequest(_message.Message):
    __slots__ = ("name", "window_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WINDOW_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    window_s: int
    def __init__(self, name: _Optional[str] = ..., window_s: _Optional[int] = ...) -> None: ...

class GetJobMetricsRequest(_message.Message):
    __slots__ = ("job_id", "window_s")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WINDOW_S_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    window_s: int
    def __init__(self, job_id: _Optional[str] = ..., window_s: _Optional[int] = ...) -> None: ...

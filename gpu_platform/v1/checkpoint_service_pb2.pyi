from google.api import annotations_pb2 as _annotations_pb2
from gpu_platform.v1 import types_pb2 as _types_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ListCheckpointsRequest(_message.Message):
    __slots__ = ("job_id", "verify")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    VERIFY_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    verify: bool
    def __init__(self, job_id: _Optional[str] = ..., verify: _Optional[bool] = ...) -> None: ...

class AskForCheckpointRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class CheckCheckpointRootsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

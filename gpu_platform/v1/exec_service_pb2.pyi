from google.api import annotations_pb2 as _annotations_pb2
from google.protobuf import empty_pb2 as _empty_pb2
from gpu_platform.v1 import options_pb2 as _options_pb2
from gpu_platform.v1 import types_pb2 as _types_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StartCommandRequest(_message.Message):
    __slots__ = ("job_id", "body")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    body: _types_pb2.ExecRequest
    def __init__(self, job_id: _Optional[str] = ..., body: _Optional[_Union[_types_pb2.ExecRequest, _Mapping]] = ...) -> None: ...

class ListCommandsRequest(_message.Message):
    __slots__ = ("job_id", "rank")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    rank: int
    def __init__(self, job_id: _Optional[str] = ..., rank: _Optional[int] = ...) -> None: ...

class AttachToCommandRequest(_message.Message):
    __slots__ = ("job_id", "session_id", "rows", "columns")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    session_id: str
    rows: int
    columns: int
    def __init__(self, job_id: _Optional[str] = ..., session_id: _Optional[str] = ..., rows: _Optional[int] = ..., columns: _Optional[int] = ...) -> None: ...

class OpenConnectionRequest(_message.Message):
    __slots__ = ("job_id", "session_id")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    session_id: str
    def __init__(self, job_id: _Optional[str] = ..., session_id: _Optional[str] = ...) -> None: ...

class ReadOutputRequest(_message.Message):
    __slots__ = ("job_id", "session_id", "offset", "attachment", "last_event_id")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    LAST_EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    session_id: str
    offset: int
    attachment: int
    last_event_id: str
    def __init__(self, job_id: _Optional[str] = ..., session_id: _Optional[str] = ..., offset: _Optional[int] = ..., attachment: _Optional[int] = ..., last_event_id: _Optional[str] = ...) -> None: ...

class ReadOutputResponse(_message.Message):
    __slots__ = ("id", "data")
    ID_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    id: str
    data: _types_pb2.ExecChunk
    def __init__(self, id: _Optional[str] = ..., data: _Optional[_Union[_types_pb2.ExecChunk, _Mapping]] = ...) -> None: ...

class EndCommandRequest(_message.Message):
    __slots__ = ("job_id", "session_id")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    session_id: str
    def __init__(self, job_id: _Optional[str] = ..., session_id: _Optional[str] = ...) -> None: ...

class GiveInputRequest(_message.Message):
    __slots__ = ("job_id", "session_id", "offset", "eof", "attachment", "body")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    EOF_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    session_id: str
    offset: int
    eof: bool
    attachment: int
    body: bytes
    def __init__(self, job_id: _Optional[str] = ..., session_id: _Optional[str] = ..., offset: _Optional[int] = ..., eof: _Optional[bool] = ..., attachment: _Optional[int] = ..., body: _Optional[bytes] = ...) -> None: ...

class ResizeTerminalRequest(_message.Message):
    __slots__ = ("job_id", "session_id", "rows", "columns")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    session_id: str
    rows: int
    columns: int
    def __init__(self, job_id: _Optional[str] = ..., session_id: _Optional[str] = ..., rows: _Optional[int] = ..., columns: _Optional[int] = ...) -> None: ...

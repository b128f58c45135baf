from google.api import annotations_pb2 as _annotations_pb2
from gpu_platform.v1 import options_pb2 as _options_pb2
from gpu_platform.v1 import types_pb2 as _types_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReadEventsRequest(_message.Message):
    __slots__ = ("after", "limit", "last_event_id")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    LAST_EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    after: int
    limit: int
    last_event_id: str
    def __init__(self, after: _Optional[int] = ..., limit: _Optional[int] = ..., last_event_id: _Optional[str] = ...) -> None: ...

class FollowEventsRequest(_message.Message):
    __slots__ = ("after", "limit", "last_event_id")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    LAST_EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    after: int
    limit: int
    last_event_id: str
    def __init__(self, after: _Optional[int] = ..., limit: _Optional[int] = ..., last_event_id: _Optional[str] = ...) -> None: ...

class FollowEventsResponse(_message.Message):
    __slots__ = ("id", "data")
    ID_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    id: str
    data: _types_pb2.Event
    def __init__(self, id: _Optional[str] = ..., data: _Optional[_Union[_types_pb2.Event, _Mapping]] = ...) -> None: ...

class ReadJobEventsRequest(_message.Message):
    __slots__ = ("job_id", "after", "limit", "last_event_id")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    LAST_EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    after: int
    limit: int
    last_event_id: str
    def __init__(self, job_id: _Optional[str] = ..., after: _Optional[int] = ..., limit: _Optional[int] = ..., last_event_id: _Optional[str] = ...) -> None: ...

class FollowJobEventsRequest(_message.Message):
    __slots__ = ("job_id", "after", "limit", "last_event_id")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    LAST_EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    after: int
    limit: int
    last_event_id: str
    def __init__(self, job_id: _Optional[str] = ..., after: _Optional[int] = ..., limit: _Optional[int] = ..., last_event_id: _Optional[str] = ...) -> None: ...

class FollowJobEventsResponse(_message.Message):
    __slots__ = ("id", "data")
    ID_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    id: str
    data: _types_pb2.Event
    def __init__(self, id: _Optional[str] = ..., data: _Optional[_Union[_types_pb2.Event, _Mapping]] = ...) -> None: ...

class ReadLogsRequest(_message.Message):
    __slots__ = ("job_id", "rank", "attempt", "last_event_id")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    LAST_EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    rank: int
    attempt: int
    last_event_id: str
    def __init__(self, job_id: _Optional[str] = ..., rank: _Optional[int] = ..., attempt: _Optional[int] = ..., last_event_id: _Optional[str] = ...) -> None: ...

class ReadLogsResponse(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: bytes
    def __init__(self, text: _Optional[bytes] = ...) -> None: ...

class FollowLogsRequest(_message.Message):
    __slots__ = ("job_id", "rank", "attempt", "last_event_id")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    LAST_EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    rank: int
    attempt: int
    last_event_id: str
    def __init__(self, job_id: _Optional[str] = ..., rank: _Optional[int] = ..., attempt: _Optional[int] = ..., last_event_id: _Optional[str] = ...) -> None: ...

class FollowLogsResponse(_message.Message):
    __slots__ = ("id", "data")
    ID_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    id: str
    data: _types_pb2.LogChunk
    def __init__(self, id: _Optional[str] = ..., data: _Optional[_Union[_types_pb2.LogChunk, _Mapping]] = ...) -> None: ...

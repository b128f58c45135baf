from google.api import annotations_pb2 as _annotations_pb2
from gpu_platform.v1 import options_pb2 as _options_pb2
from gpu_platform.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SubmitJobRequest(_message.Message):
    __slots__ = ("idempotency_key", "body")
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    idempotency_key: str
    body: _types_pb2.JobSpec
    def __init__(self, idempotency_key: _Optional[str] = ..., body: _Optional[_Union[_types_pb2.JobSpec, _Mapping]] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ("state", "array", "cursor", "limit", "namespace", "user", "name", "kind")
    STATE_FIELD_NUMBER: _ClassVar[int]
    ARRAY_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    state: _containers.RepeatedScalarFieldContainer[_types_pb2.JobState]
    array: str
    cursor: str
    limit: int
    namespace: str
    user: str
    name: str
    kind: _types_pb2.WorkKind
    def __init__(self, state: _Optional[_Iterable[_Union[_types_pb2.JobState, str]]] = ..., array: _Optional[str] = ..., cursor: _Optional[str] = ..., limit: _Optional[int] = ..., namespace: _Optional[str] = ..., user: _Optional[str] = ..., name: _Optional[str] = ..., kind: _Optional[_Union[_types_pb2.WorkKind, str]] = ...) -> None: ...

class GetJobRequest(_message.Message):
    __slots__ = ("job_id", "wait_s")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    wait_s: float
    def __init__(self, job_id: _Optional[str] = ..., wait_s: _Optional[float] = ...) -> None: ...

class ChangeJobRequest(_message.Message):
    __slots__ = ("job_id", "body")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    body: _types_pb2.JobChanges
    def __init__(self, job_id: _Optional[str] = ..., body: _Optional[_Union[_types_pb2.JobChanges, _Mapping]] = ...) -> None: ...

class CancelJobRequest(_message.Message):
    __slots__ = ("job_id", "body")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    body: _types_pb2.ReasonBody
    def __init__(self, job_id: _Optional[str] = ..., body: _Optional[_Union[_types_pb2.ReasonBody, _Mapping]] = ...) -> None: ...

class KillJobRequest(_message.Message):
    __slots__ = ("job_id", "body")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    body: _types_pb2.ReasonBody
    def __init__(self, job_id: _Optional[str] = ..., body: _Optional[_Union[_types_pb2.ReasonBody, _Mapping]] = ...) -> None: ...

class PreemptJobRequest(_message.Message):
    __slots__ = ("job_id", "body")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    body: _types_pb2.ReasonBody
    def __init__(self, job_id: _Optional[str] = ..., body: _Optional[_Union[_types_pb2.ReasonBody, _Mapping]] = ...) -> None: ...

class RetryJobRequest(_message.Message):
    __slots__ = ("job_id", "idempotency_key")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    idempotency_key: str
    def __init__(self, job_id: _Optional[str] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class HoldJobRequest(_message.Message):
    __slots__ = ("job_id", "body")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    body: _types_pb2.ReasonBody
    def __init__(self, job_id: _Optional[str] = ..., body: _Optional[_Union[_types_pb2.ReasonBody, _Mapping]] = ...) -> None: ...

class ReleaseJobRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

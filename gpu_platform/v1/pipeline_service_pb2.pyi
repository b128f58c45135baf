from google.api import annotations_pb2 as _annotations_pb2
from gpu_platform.v1 import options_pb2 as _options_pb2
from gpu_platform.v1 import types_pb2 as _types_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SubmitPipelineRequest(_message.Message):
    __slots__ = ("idempotency_key", "body")
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    idempotency_key: str
    body: _types_pb2.PipelineRequest
    def __init__(self, idempotency_key: _Optional[str] = ..., body: _Optional[_Union[_types_pb2.PipelineRequest, _Mapping]] = ...) -> None: ...

class ListPipelinesRequest(_message.Message):
    __slots__ = ("namespace", "cursor", "limit")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    cursor: str
    limit: int
    def __init__(self, namespace: _Optional[str] = ..., cursor: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class GetPipelineRequest(_message.Message):
    __slots__ = ("pipeline_id",)
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    pipeline_id: str
    def __init__(self, pipeline_id: _Optional[str] = ...) -> None: ...

class CancelPipelineRequest(_message.Message):
    __slots__ = ("pipeline_id", "body")
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    pipeline_id: str
    body: _types_pb2.ReasonBody
    def __init__(self, pipeline_id: _Optional[str] = ..., body: _Optional[_Union[_types_pb2.ReasonBody, _Mapping]] = ...) -> None: ...

class RetryPipelineRequest(_message.Message):
    __slots__ = ("pipeline_id", "body")
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    pipeline_id: str
    body: _types_pb2.RetryRequest
    def __init__(self, pipeline_id: _Optional[str] = ..., body: _Optional[_Union[_types_pb2.RetryRequest, _Mapping]] = ...) -> None: ...

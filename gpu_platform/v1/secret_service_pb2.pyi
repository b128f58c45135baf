from google.api import annotations_pb2 as _annotations_pb2
from google.protobuf import empty_pb2 as _empty_pb2
from gpu_platform.v1 import types_pb2 as _types_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListSecretsRequest(_message.Message):
    __slots__ = ("namespace", "cursor")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    cursor: str
    def __init__(self, namespace: _Optional[str] = ..., cursor: _Optional[str] = ...) -> None: ...

class SetSecretRequest(_message.Message):
    __slots__ = ("namespace", "secret", "body")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    secret: str
    body: _types_pb2.SecretValue
    def __init__(self, namespace: _Optional[str] = ..., secret: _Optional[str] = ..., body: _Optional[_Union[_types_pb2.SecretValue, _Mapping]] = ...) -> None: ...

class DeleteSecretRequest(_message.Message):
    __slots__ = ("namespace", "secret")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    secret: str
    def __init__(self, namespace: _Optional[str] = ..., secret: _Optional[str] = ...) -> None: ...

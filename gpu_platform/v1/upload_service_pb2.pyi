from google.api import annotations_pb2 as _annotations_pb2
from gpu_platform.v1 import types_pb2 as _types_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class GetUploadRequest(_message.Message):
    __slots__ = ("namespace", "sha256")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    sha256: str
    def __init__(self, namespace: _Optional[str] = ..., sha256: _Optional[str] = ...) -> None: ...

class PutUploadRequest(_message.Message):
    __slots__ = ("namespace", "sha256", "size_bytes", "offset", "body")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    sha256: str
    size_bytes: int
    offset: int
    body: bytes
    def __init__(self, namespace: _Optional[str] = ..., sha256: _Optional[str] = ..., size_bytes: _Optional[int] = ..., offset: _Optional[int] = ..., body: _Optional[bytes] = ...) -> None: ...

"""The JSON of messages, where it is no plain copy; what all models have is tried in tests/property."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import Message

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.rpc.json_messages import to_json, to_message
from gpu_platform.v1 import job_service_pb2, types_pb2

SAME: list[tuple[type[Message], dict[str, Any]]] = [
    (types_pb2.JobSpec, {"time_limit_s": None, "kind": "batch", "begin_at": "2026-01-02T03:04:05.600000Z"}),
    (types_pb2.JobSpec, {"begin_at": "2026-01-02T03:04:05Z", "max_retries": 0, "preemptible": False}),
    (types_pb2.RankGroup, {"name": "a", "command": []}),
    (types_pb2.RankGroup, {"name": "a"}),
    (types_pb2.ArraySpec, {"indices": "0-3", "matrix": {"lr": ["0.1", "0.2"]}}),
    (types_pb2.ParameterTable, {"names": ["a", "b"], "rows": [["1", "2"], ["3", "4"]]}),
    (types_pb2.TokenRequest, {"user": "ada", "roles": {"default": "user", "*": "viewer"}, "scopes": ["jobs:read"]}),
    (types_pb2.PipelineRequest, {"file": "f", "parameters": {"n": 3, "x": 0.5, "l": [None, True, {"a": []}]}}),
    (types_pb2.ExecChunk, {"stream": "stdout", "data": "+/+/AA==", "next_offset": 2**40}),
]


@pytest.mark.parametrize(("kind", "value"), SAME)
def test_json_comes_back(kind: type[Message], value: dict[str, Any]) -> None:
    assert to_json(to_message(value, kind)) == value


def test_a_time_of_another_zone_is_the_same_moment() -> None:
    message = to_message({"begin_at": "2026-01-02T03:04:05+02:00"}, types_pb2.JobSpec)
    assert to_json(message) == {"begin_at": "2026-01-02T01:04:05Z"}


def test_tuples_and_lists_with_holes_are_lists() -> None:
    value = {"shares": [None, {"percent": 50}, None], "groups": [["a", {"hosts": 2}]]}
    found = to_json(to_message(value, types_pb2.RunningRow))
    assert found["groups"] == value["groups"]
    assert [share and share["percent"] for share in found["shares"]] == [None, 50, None]


def test_an_answer_has_its_empty_lists_and_a_request_has_not() -> None:
    assert to_json(types_pb2.JobPage(), complete=True) == {"items": []}
    assert to_json(job_service_pb2.ListJobsRequest()) == {}


REFUSED: list[tuple[type[Message], Any, str]] = [
    (types_pb2.JobSpec, {"kind": "hobby"}, "kind: should be one of training, inference, batch, interactive"),
    (types_pb2.JobSpec, {"begin_at": "2026-01-02T03:04:05"}, "begin_at: should be a date and time with a time zone"),
    (types_pb2.JobSpec, {"begin_at": 5}, "begin_at: should be a date and time"),
    (types_pb2.JobSpec, {"nonsense": 5}, "JobSpec.nonsense: there is no such field"),
    (types_pb2.JobSpec, {"priority": 2**63}, "JobSpec cannot be sent as a message"),
    (types_pb2.JobSpec, {"priority": "x"}, "JobSpec cannot be sent as a message"),
    (types_pb2.JobSpec, {"command": 5}, "JobSpec cannot be sent as a message"),
    (types_pb2.JobSpec, {"name": "\ud800"}, "JobSpec cannot be sent as a message"),
    (types_pb2.JobSpec, {"gpus": 5}, "ResourceRequest: should be an object, and is 5"),
    (types_pb2.JobSpec, [], "JobSpec: should be an object"),
    (types_pb2.ExecChunk, {"data": "no base64!"}, "data: should be base64"),
    (types_pb2.PipelineRequest, {"parameters": {"seed": 2**53 + 1}}, "gRPC would round this integer"),
]


@pytest.mark.parametrize(("kind", "value", "message"), REFUSED)
def test_what_fits_no_message_is_refused_by_name(kind: type[Message], value: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        to_message(value, kind)
    assert message in refused.value.message


def test_an_answer_with_a_large_integer_is_rounded_and_not_lost() -> None:
    found = to_message({"file": "f", "parameters": {"seed": 2**60 + 1}}, types_pb2.PipelineRequest, exact=False)
    assert to_json(found)["parameters"]["seed"] == 2**60


def test_a_value_of_a_newer_service_is_no_error() -> None:
    newer = types_pb2.Job(id="j-1")
    newer.MergeFromString(b"\x18\x63")  # field 3, the state: value 99
    assert to_json(newer)["state"] == "unknown 99"

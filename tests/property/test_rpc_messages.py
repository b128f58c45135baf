"""Whatever the REST description allows becomes a message and comes back as the same JSON."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_platform.rpc.json_messages import to_json, to_message
from gpu_platform.settings import Settings
from gpu_platform.store import Store
from gpu_platform.v1 import types_pb2
from scripts import gen_proto
from service.app import create_app
from tests.support.examples import few

SCHEMAS: dict[str, Any] = create_app(Settings(), Store("sqlite:///unused.db")).openapi()["components"]["schemas"]
NAMES = {name: gen_proto._type_name(name) for name, facts in SCHEMAS.items() if "properties" in facts}
MESSAGES = {name: kind for name, kind in NAMES.items() if hasattr(types_pb2, kind)}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
TIMES = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))
FREE = st.recursive(
    st.none() | st.booleans() | TEXTS | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
"""What a schema says nothing about."""


@cache
def values(name: str, depth: int) -> st.SearchStrategy[Any]:
    """JSON that fits a named schema. ``depth``: how far models contain models; then, what may be left out is."""
    facts = SCHEMAS[name]
    if "enum" in facts:
        return st.sampled_from(facts["enum"])
    if "properties" not in facts:
        return FREE
    required = {key: fitting(one, depth - 1) for key, one in facts["properties"].items() if key in facts["required"]}\
        if "required" in facts else {}  # fmt: skip
    more = {} if depth < 0 else {
        key: fitting(one, depth - 1) for key, one in facts["properties"].items() if key not in required
    }  # fmt: skip
    return st.fixed_dictionaries(required, optional=more)


SCALARS: dict[tuple[str, str | None], st.SearchStrategy[Any]] = {
    ("string", "date-time"): TIMES.map(lambda time: time.isoformat().replace("+00:00", "Z")),
    ("string", "base64"): st.binary(max_size=5).map(lambda data: base64.b64encode(data).decode()),
    ("string", None): TEXTS,
    ("boolean", None): st.booleans(),
    ("integer", None): st.integers(-(2**63), 2**63 - 1),
    ("number", None): st.floats(allow_nan=False, allow_infinity=False),
    ("null", None): st.none(),
}
"""Type and format -> values."""


def fitting(facts: dict[str, Any], depth: int) -> st.SearchStrategy[Any]:
    """JSON that fits a schema."""
    match facts:
        case {"anyOf": choices}:
            return st.one_of([fitting(one, depth) for one in choices])
        case {"$ref": reference}:
            return st.deferred(lambda: values(reference.rsplit("/", 1)[-1], depth))
        case {"enum": found}:
            return st.sampled_from(found)
        case {"type": "array", "prefixItems": parts}:
            return st.tuples(*(fitting(one, depth) for one in parts)).map(list)
        case {"type": "array", "items": items}:
            return st.lists(fitting(items, depth), max_size=2 if depth >= 0 else 0)
        case {"type": "object"}:
            of_names = facts.get("patternProperties", {"": facts.get("additionalProperties", True)})
            [one] = of_names.values()
            return st.dictionaries(TEXTS, FREE if one is True else fitting(one, depth), max_size=2)
        case {"type": kind}:
            return SCALARS.get((kind, facts.get("format")), SCALARS[kind, None])
    return FREE


def without_what_is_empty(value: Any) -> Any:
    """In a message, a list that is empty and one that is left out are the same; so is null in an answer."""
    if isinstance(value, dict):
        cleaned = {key: without_what_is_empty(one) for key, one in value.items()}
        return {key: one for key, one in cleaned.items() if one is not None and one != [] and one != {}}
    return [without_what_is_empty(one) for one in value] if isinstance(value, list) else value


def test_all_models_are_tried() -> None:
    assert set(NAMES) - set(MESSAGES) <= {
        *("HostReport", "Heartbeat", "LeaseAnswer", "LaunchSecrets", "AttemptKey", "Member", "MembersChange"),
        *("SavedCheckpoint", "Authorities", "FirstCertificate", "NextCertificate", "Issued", "PostedAlert"),
        *("WirePayload", "WirePayloads"),
    }
    assert len(MESSAGES) > 100


@pytest.mark.parametrize("name", MESSAGES)
@settings(max_examples=few(25), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_model_comes_back_as_it_was(name: str, data: st.DataObject) -> None:
    given_json = data.draw(values(name, 2))
    kind = getattr(types_pb2, MESSAGES[name])
    message = kind.FromString(to_message(given_json, kind).SerializeToString())
    back = to_json(message)
    if "null_fields" in kind.DESCRIPTOR.fields_by_name:  # a request, where null and left out may differ
        assert {key for key in back if back[key] is None} == {key for key in given_json if given_json[key] is None}
    required = set(SCHEMAS[name].get("required", ()))
    assert without_what_is_empty(_only(back, given_json)) == without_what_is_empty(given_json)
    assert required - set(to_json(message, complete=True)) <= {key for key in required if given_json[key] is None}


def _only(back: Any, given_json: Any) -> Any:
    """Without what an answer always has, and this JSON has not: zeros of fields that were left out."""
    if isinstance(back, dict) and isinstance(given_json, dict):
        return {key: _only(one, given_json[key]) for key, one in back.items() if key in given_json}
    if isinstance(back, list) and isinstance(given_json, list):
        return [_only(one, two) for one, two in zip(back, given_json, strict=True)]
    return back

"""The description of the API is complete, and its examples are true."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_platform.client.wire import Problem
from gpu_platform.domain.access.rules import Reach
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.settings import Settings
from gpu_platform.store import Store
from service.access.routes import ROUTES
from service.app import create_app


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    store = Store(f"sqlite:///{tmp_path_factory.mktemp('api')}/none.db")
    return create_app(Settings(), store).openapi()


def test_every_operation_is_there_and_says_how_it_fails(described: dict[str, Any]) -> None:
    operations = {
        (method, path): operation for path, item in described["paths"].items() for method, operation in item.items()
    }
    for path in ("cancel", "kill", "preempt"):
        assert ("post", f"/v1/jobs/{{job_id}}/{path}") in operations
    for path in ("/v1/jobs", "/v1/hosts", "/v1/gpus", "/v1/events", "/healthz", "/readyz", "/metrics"):
        assert ("get", path) in operations
    for operation in operations.values():
        problem = operation["responses"]["default"]["content"]["application/problem+json"]
        assert problem["schema"] == {"$ref": "#/components/schemas/Problem"}
        Problem.model_validate(problem["example"])
        assert "422" not in operation["responses"]


def test_routes_stand_in_groups_and_those_of_node_workers_come_last(described: dict[str, Any]) -> None:
    groups = [group["name"] for group in described["tags"]]
    of_node_workers = {route for route, rule in ROUTES.items() if rule.reach is Reach.NODE}
    found: dict[str, set[str]] = {}
    for path, item in described["paths"].items():
        for method, operation in item.items():
            [group] = operation["tags"]
            found.setdefault(group, set()).add(f"{method.upper()} {path}")
    assert (groups[0], groups[-1]) == ("jobs", "node workers")
    assert set(groups) == set(found)
    assert of_node_workers & set().union(*found.values()) <= found["node workers"]
    titles = {group.lower() for group in groups}
    assert titles & {name.lower() for name in described["components"]["schemas"]} == set(), "two headings, one anchor"


def test_every_reference_leads_somewhere(described: dict[str, Any]) -> None:
    schemas = described["components"]["schemas"]

    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
            return own.union(*(references(item) for item in value.values()))
        return set().union(*(references(item) for item in value)) if isinstance(value, list) else set()

    assert {reference.rsplit("/", 1)[1] for reference in references(described)} <= schemas.keys()


def test_the_examples_are_jobs(described: dict[str, Any]) -> None:
    body = described["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["application/json"]
    assert len(body["examples"]) >= 2
    for example in body["examples"].values():
        JobSpec.model_validate(example["value"])

"""The page about bounds says what the code does."""

from __future__ import annotations

import re

from gpu_platform.client.wire import MAX_REASON
from gpu_platform.domain.jobs import array, artifacts, schedule
from gpu_platform.domain.jobs.dependency import MAX_DEPENDENCIES
from gpu_platform.domain.jobs.notify import MAX_RULES
from gpu_platform.domain.jobs.secret_uses import MAX_SECRETS
from gpu_platform.domain.jobs.spec import MAX_GANG_BYTES
from gpu_platform.domain.jobs.upload_limits import CHUNK_BYTES
from gpu_platform.domain.pipelines import expressions, pipeline, readiness, yaml_lines
from gpu_platform.domain.placing.what_if import MAX_HOSTS
from gpu_platform.domain.texts import MAX_COMMAND_BYTES, MAX_ENV_BYTES
from gpu_platform.rpc.limits import MAX_REQUEST_BYTES
from gpu_platform.store.jobs import paging
from service.http import body_limit
from service.http.connections import MOST_WAITING
from service.http.costs import SHARES
from service.http.turns import TURN_WITHIN_S
from tests.security.test_bounds import ROWS
from tests.support.pages import DOCS

ARRAYS = body_limit.LARGER["POST", "/v1/arrays"]
LARGEST = {
    "body": body_limit.MAX_BODY_BYTES,
    "values of a body": body_limit.MAX_VALUES,
    "body of an array": ARRAYS.most_bytes,
    "values of an array's body": ARRAYS.values,
    "parameters of an array": array.MAX_PARAMETERS,
    "bytes of an array's parameters": array.MAX_PARAMETER_BYTES,
    "parameters' names": array.MAX_PARAMETER_NAMES,
    "elements of an array": array.MAX_ELEMENTS,
    "matrix": 64,
    "command": MAX_COMMAND_BYTES,
    "environment": MAX_ENV_BYTES,
    "command and environment, times hosts": MAX_GANG_BYTES,
    "dependencies": MAX_DEPENDENCIES,
    "secrets of a job": MAX_SECRETS,
    "who is told": MAX_RULES,
    "file of a pipeline": pipeline.MAX_FILE_BYTES,
    "names and values of a pipeline's file": yaml_lines.MAX_VALUES,
    "depth of a pipeline's file": yaml_lines.DEEPEST,
    "characters of a number in it": yaml_lines.LONGEST_NUMBER,
    "steps of a pipeline": pipeline.MAX_STEPS,
    "what a pipeline's parameters become": expressions.MAX_FILLED_BYTES,
    "jobs of a step": pipeline.MAX_JOBS_OF_STEP,
    "what expressions read": expressions.MAX_WORK,
    "commands and environments of a step": array.MAX_PARAMETER_BYTES,
    "directories that a step gets": readiness.MOST_INPUT_BYTES,
    "output of a job of a pipeline": artifacts.MAX_OUTPUT_BYTES,
    "outputs of a pipeline": artifacts.MAX_OUTPUTS_BYTES,
    "firings of a backfill": schedule.MAX_BACKFILL,
    "firings that are made up for after an outage": schedule.MAX_CATCH_UP,
    "schedules of a user": schedule.MAX_OF_A_USER,
    "schedules of a namespace": schedule.MAX_OF_A_NAMESPACE,
    "reason": MAX_REASON,
    "part of an upload": CHUNK_BYTES,
    "page": paging.MAX_PAGE,
    "bytes of a page": paging.MAX_PAGE_BYTES,
    "hosts of a what-if": MAX_HOSTS,
    "connections of one network that ask nothing": MOST_WAITING,
    "message of gRPC": MAX_REQUEST_BYTES,
}


def rows_of(heading: str) -> list[list[str]]:
    section = (DOCS / "explanation/bounds.md").read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_each_bound_is_that_of_the_code() -> None:
    rows = rows_of("What one request may say")
    said = {name: int(re.match(r"\d+", largest)[0]) for name, largest, *_ in rows}  # type: ignore[index]
    assert said == LARGEST
    for _, _, where, why in rows:
        assert (DOCS.parent / where.strip("`")).is_file(), where
        assert why


def test_each_row_that_is_measured_is_on_the_page() -> None:
    assert {row.name for row in ROWS} <= LARGEST.keys()
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_the_turns_are_those_of_the_code() -> None:
    rows = {name: tuple(map(int, numbers)) for name, *numbers in rows_of("What of it is done at the same time")}
    assert rows == {cost.value: tuple(share) for cost, share in SHARES.items()}
    assert f"at most {TURN_WITHIN_S:g} seconds" in (DOCS / "explanation/bounds.md").read_text()

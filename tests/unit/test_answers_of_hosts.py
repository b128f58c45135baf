"""What a host answers is believed for itself: each field of each answer is lied in."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure as TemporalFailure
from temporalio.converter import ActivitySerializationContext, DataConverter
from temporalio.exceptions import ApplicationError

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.array_steps import ElementEnded, ElementLaunched
from gpu_platform.domain.jobs.artifacts import MAX_OUTPUT_BYTES, StepOutput, checked_output
from gpu_platform.domain.jobs.attempt import HostExits, HostPlan, Launched, Prepared, RankSpec, Stopped
from gpu_platform.temporal.payloads.converter import data_converter
from gpu_platform.temporal.payloads.unreadable import UnreadablePayload
from tests.security.host_messages import FIELDS, MESSAGES, Lie, Names, lies_in, models_in, names_of
from workflows.attempts import answers
from workflows.attempts.answers import UnreadableAnswer

KEY, THEIRS = AttemptKey(job_id="j-mine", attempt=1), AttemptKey(job_id="j-theirs", attempt=7)
PLAN = HostPlan(
    key=KEY,
    host="a",
    user="ada",
    namespace="default",
    command=["true"],
    ranks=[RankSpec(rank=rank, local_rank=rank, gpu_uuids=[f"GPU-a-{rank}"]) for rank in (0, 1)],
    gpu_uuids=["GPU-a-0", "GPU-a-1"],
)
VICTIM: dict[Names, list[Any]] = {
    Names.HOST: ["victim"],
    Names.GPU: ["GPU-victim"],
    Names.JOB: [THEIRS.job_id],
    Names.ATTEMPT: [7_000_001],
    Names.RANK: [7_000_002, -7_000_003],
    Names.ADDRESS: ["victim.example"],
}

FAILURE = {"kind": "user", "message": "bad", "rank": 0, "host": "a", "exit_code": 3, "gpu_uuid": "GPU-a-0", "xid": 7}
EXIT = {"rank": 0, "host": "a", "exit_code": 3, "ended_at_ms": 5, "failure": FAILURE}
USAGE = {"rank": 1, "host": "a", "seconds": 1.5, "gpu_seconds": 1.5}
EXITS = {"host": "a", "exits": [EXIT], "first_failure": EXIT, "usage": [USAGE]}
PREPARED = {"host": "a", "address": "10.0.0.1", "rendezvous_port": 29_500, "gang": ["10.0.0.1"]}
STARTED = {"rank": 0, "host": "a", "pid": 7, "started_at_ms": 1}
ENDED = {"key": KEY.model_dump(), "exits": EXITS, "stopped": True}


def watched(answer: HostExits) -> Any:
    return answers.of_watch("a", [0, 1], PLAN.gpu_uuids, answer)


def prepared(answer: Prepared) -> Prepared:
    """Without the address: control signs only one that the host has reported."""
    return answers.of_prepare(PLAN, answer).model_copy(update={"address": ""})


ANSWERS: dict[str, tuple[type[Any], dict[str, Any], Callable[[Any], Any]]] = {
    # Control signs an order with this address only if it is what the host has reported.
    "prepare_host": (
        Prepared,
        PREPARED,
        lambda answer: answers.of_prepare(PLAN, answer).model_copy(update={"address": ""}),
    ),
    "launch_ranks": (
        Launched,
        {"host": "a", "ranks": [STARTED], "ended": EXITS},
        lambda answer: answers.of_launch(PLAN, answer),
    ),
    "watch_ranks": (HostExits, EXITS, watched),
    "stop_ranks": (
        Stopped,
        {"host": "a", "exits": [EXIT], "usage": [USAGE]},
        lambda answer: answers.of_stop("a", [0, 1], answer),
    ),
    "launch_elements": (
        ElementLaunched,
        {"key": KEY.model_dump(), "ended": ENDED, "failure": FAILURE},
        lambda answer: list(answers.of_elements_launch({KEY: PLAN}, [answer]).values()),
    ),
    "watch_elements": (
        ElementEnded,
        ENDED,
        lambda answer: list(answers.of_elements_watch("a", {KEY: ([0, 1], PLAN.gpu_uuids)}, [answer]).values()),
    ),
}
CASES = [
    pytest.param(step, lie, id=f"{step}-{lie}")
    for step, (model, _, _) in ANSWERS.items()
    for lie in lies_in(model, VICTIM)
]


def text_of(believed: Any) -> str:
    items = believed if isinstance(believed, list) else [believed]
    return json.dumps([item.model_dump(mode="json") for item in items])


def test_every_field_of_a_hosts_message_is_classified() -> None:
    """A new field: say in ``tests/security/host_messages.py`` what it names, and compare it where it is used."""
    for message in MESSAGES:
        for model in [] if message.model is None else models_in(message.model):
            if any(issubclass(model, known) for known in FIELDS):
                assert set(names_of(model)) == set(model.model_fields), f"{message.name}: {model.__name__}"
            else:
                pytest.fail(f"{message.name} has a {model.__name__}, of which nothing is said")


@pytest.mark.parametrize(("step", "lie"), CASES)
def test_no_answer_of_a_host_names_another(step: str, lie: Lie) -> None:
    model, document, believe = ANSWERS[step]
    told = model.model_validate(lie.told(document))
    if lie.path[-1] not in ("address", "gang") and _is_there(document, lie.path):
        assert str(lie.value) in told.model_dump_json(), "the lie is told"
    assert str(lie.value) not in text_of(believe(told))


def _is_there(document: Any, path: tuple[str, ...]) -> bool:
    if isinstance(document, list):
        return any(_is_there(item, path) for item in document)
    return not path or (isinstance(document, dict) and path[0] in document and _is_there(document[path[0]], path[1:]))


@pytest.mark.parametrize("step", ANSWERS)
def test_an_honest_answer_is_believed(step: str) -> None:
    model, document, believe = ANSWERS[step]
    honest = model.model_validate(document)
    believed = believe(honest)
    if step == "prepare_host":
        honest = honest.model_copy(update={"address": "", "gang": []})  # the workflow fills in the gang
    wanted = honest.usage if step == "stop_ranks" else honest
    assert json.loads(text_of(believed)) == json.loads(text_of(wanted))


GARBAGE = {
    "no JSON": b"{",
    "another model": b'{"x": 1}',
    "a list": b"[[[]]]",
    "null": b"null",
    "deep": b"[" * 100_000,
    "bytes": b"\xff\xfe",
}


def on_host(converter: DataConverter) -> Any:
    context = ActivitySerializationContext(
        namespace="n",
        workflow_id="j",
        workflow_type="JobWorkflow",
        activity_type="watch_ranks",
        activity_id="1",
        activity_task_queue="node-a",
        is_local=False,
    )
    return converter.payload_converter.with_context(context)  # type: ignore[attr-defined]


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_an_answer_that_nobody_can_read_is_a_failure_of_the_host(garbage: bytes) -> None:
    payload = Payload(metadata={"encoding": b"json/plain"}, data=garbage)
    [answer] = on_host(data_converter(None)).from_payloads([payload], [HostExits])
    assert isinstance(answer, UnreadablePayload)
    failed = answers.of_watch("a", [0, 1], PLAN.gpu_uuids, answer).first_failure
    assert failed is not None
    assert failed.failure is not None
    assert (failed.host, failed.rank, failed.failure.kind, failed.failure.host) == ("a", 0, "hardware", "a")
    with pytest.raises(UnreadableAnswer, match="host a answered what nobody can read"):
        answers.readable("a", answer)


def test_numbers_and_texts_of_an_answer_fit_into_the_database() -> None:
    text = (
        '{"rank": 0, "host": "a", "seconds": NaN, "gpu_seconds": Infinity, "energy_j": 1e999, "ecc_errors": 1'
        + 90 * "0"
    )
    document = '{"host": "a\\u0000\\ud800", "exits": [], "usage": [' + text + "}]}"
    payload = Payload(metadata={"encoding": b"json/plain"}, data=document.encode())
    [answer] = on_host(data_converter(None)).from_payloads([payload], [HostExits])
    assert answer.host == "a?"
    [usage] = answers.of_watch("a", [0], [], answer).usage
    assert (usage.seconds, usage.gpu_seconds, usage.energy_j, usage.ecc_errors) == (0.0, 0.0, 0.0, 2**31 - 1)


def test_a_failure_that_nobody_can_read_is_one_all_the_same() -> None:
    failure = TemporalFailure(message="x")
    failure.application_failure_info.category = 77  # type: ignore[assignment]
    converter = data_converter(None)
    found = converter.failure_converter.from_failure(failure, on_host(converter))
    assert isinstance(found, ApplicationError)


@pytest.mark.parametrize("text", ["{", "[" * 50_000, '"' + "x" * MAX_OUTPUT_BYTES + '"'])
def test_an_output_that_is_no_json_or_too_large_is_a_problem(text: str) -> None:
    found = checked_output(StepOutput(text=text))
    assert found.text is None
    assert found.problem


PAGE = Path("docs/explanation/hosts-that-lie.md")


def test_the_page_names_every_message_and_where_it_is_compared() -> None:
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| (`[^|]+) \|$", PAGE.read_text(), re.MULTILINE)
    assert [name for name, _, _ in rows] == [message.name for message in MESSAGES]
    for _, _, places in rows:
        for file, names in re.findall(r"`([\w/]+\.py):([\w.]+)`", places):
            source = Path(file).read_text()
            for name in names.split("."):
                assert re.search(rf"^ *(async def|def|class) {name}\b", source, re.MULTILINE), f"{file}: {name}"

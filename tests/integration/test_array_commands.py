"""Arrays from the command line: the service, its database and a real Temporal, without workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_platform.domain.jobs.array import OnFailure
from gpu_platform.domain.states import ArrayState, JobState
from gpu_platform.store.jobs import arrays
from tests.integration.test_api_arrays import Service, service, temporal
from tests.support.command_line import NOBODY, Ran, run
from tests.support.store_cluster import NOW

__all__ = ["service", "temporal"]

TRAIN = ("--", "python", "train.py", "--fold", "{index}")


async def submitted(service: Service, *arguments: str) -> str:
    answer = await run("submit", *arguments, url=service.url)
    assert answer.code == 0, answer.err
    return answer.out.split()[0]


def words(answer: Ran) -> str:
    return " ".join((answer.out + answer.err).split())


async def test_indices_a_bound_and_fail_fast(service: Service) -> None:
    array_id = await submitted(service, "--gpus", "1", "--array", "0-1999%64", "--fail-fast", *TRAIN)
    spec, array = arrays.read_whole(service.store, array_id)
    assert (array.indices, array.at_once, array.on_failure) == ("0-1999", 64, OnFailure.STOP)
    assert (spec.command, spec.gpu_count, spec.name) == (list(TRAIN[1:]), 1, "python")


async def test_arrays_come_after_jobs_and_after_elements(service: Service) -> None:
    first = await submitted(service, "--array", "0-4", *TRAIN)
    job = (await run("submit", "--after", f"{first},{first}.3", "--", "x", url=service.url)).out.split()[0]
    second = await submitted(service, "--array", "0-4", "--after-array", first, "--after-any", job, *TRAIN)
    described = words(await run("jobs", "describe", second, url=service.url))
    assert f"waits for job {job} (PENDING)" in described
    wrong = await run("submit", "--array", "0-5", "--after-array", first, *TRAIN, url=service.url)
    assert wrong.code != 0
    assert f"indices 0-5, and {first} has 0-4: 5 is not in {first}" in words(wrong)
    alone = await run("submit", "--after-array", first, *TRAIN, url=service.url)
    assert "only an array comes after each element of another one" in words(alone)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("p.csv", "lr,seed\n1e-3,1\n\n1e-4,2\n"),
        ("p.jsonl", '{"lr": 1e-3, "seed": 1}\n\n{"seed": "2", "lr": 1e-4}\n'),
    ],
)
async def test_a_file_names_parameters(service: Service, tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    array_id = await submitted(service, "--array", f"{tmp_path / name}%8", "--", "x", "{lr}")
    array = arrays.read_whole(service.store, array_id).array
    assert (array.indices, array.at_once) == ("0-1", 8)
    assert [array.parameters_of(index) for index in (0, 1)] == [
        {"lr": "1e-3", "seed": "1"},
        {"lr": "1e-4", "seed": "2"},
    ]


@pytest.mark.parametrize(
    "options",
    [
        ["--matrix", "lr=1e-3,1e-4", "seed=1..5", "--", "x", "--", "a=b"],
        ["--matrix", "lr=1e-3,1e-4 seed=1..5", "--", "x", "--", "a=b"],
        ["--matrix", "lr=1e-3,1e-4", "--matrix", "seed=1..5", "--", "x", "--", "a=b"],
    ],
)
async def test_a_matrix_is_written_in_three_ways(service: Service, options: list[str]) -> None:
    array_id = await submitted(service, "--at-once", "3", *options)
    spec, array = arrays.read_whole(service.store, array_id)
    assert spec.command == ["x", "--", "a=b"]
    assert (array.indices, array.at_once) == ("0-9", 3)
    assert array.parameters_of(6) == {"lr": "1e-4", "seed": "2"}


async def test_some_combinations_of_a_large_matrix(service: Service) -> None:
    array_id = await submitted(service, "--array", "0,5", "--matrix", "a=1..1000", "--matrix", "b=1..1000", "--", "x")
    array = arrays.read_whole(service.store, array_id).array
    assert array.parameters_of(5) == {"a": "1", "b": "6"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--array", "0-100000"], "at most 100000"),
        (["--array", "5-1"], "empty"),
        (["--array", "nothing.csv"], "cannot read nothing.csv: No such file"),
        (["--array", "what"], "write indices"),
        (["--array", "0-9%0"], "at_once"),
        (["--array", "0-9%3", "--at-once", "4"], "contradicts %3"),
        (["--array", "0-9", "--follow"], "use --wait"),
        (["--fail-fast"], "--array or --matrix"),
        (["--at-once", "3"], "--array or --matrix"),
        (["--matrix", "a=1..1000000000"], "1,000,000,000 combinations"),
        (["--matrix", "a=1..99999", "--matrix", "b=1..99999"], "9,999,800,001 combinations"),
        (["--matrix", "a=1..1000", "--matrix", "b=1..1000"], "at most 100000 are allowed"),
        (["--matrix", "a=1,,2"], "a value is empty"),
        (["--matrix", "a=3..1"], "must not be after"),
        (["--matrix", "a"], "NAME=VALUE"),
        (["--matrix", "a=1", "--matrix", "a=2"], "twice"),
        (["--matrix", "index=1,2"], "no parameter can be called 'index'"),
        (["--matrix", "a=1,2", "b=1..5", "--gpus", "1"], "'--gpus' comes after words of --matrix"),
        (["--array", "0-20", "--matrix", "a=1,2"], "out of range"),
    ],
)
async def test_what_cannot_be_an_array_is_refused_before_anything_is_sent(options: list[str], said: str) -> None:
    answer = await run("submit", *options, "--", "true", url=NOBODY)
    assert answer.code == 2, answer.err
    assert said in " ".join(answer.err.replace("│", " ").split())


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("p.csv", "", "is empty"),
        ("p.csv", "lr,seed\n", "no rows"),
        ("p.csv", "lr,seed\n1,2\n\n3\n", "line 4: 1 values, but the first line names 2 parameters"),
        ("p.csv", "lr,lr\n1,2\n", "line 1: it names lr twice"),
        ("p.csv", "lr,my seed\n1,2\n", "line 1: 'my seed' is not the name of a parameter"),
        ("p.csv", 'lr\n"1\n', "line 2: unexpected end of data"),
        ("p.jsonl", "", "is empty"),
        ("p.jsonl", '{"a": 1}\n\n{"b": 1}\n', "line 3: the parameters are b, but those of the first line are a"),
        ("p.jsonl", '{"a": 1}\n[1]\n', "line 2: it is no object"),
        ("p.jsonl", '{"a": 1}\n{"a": \n', "line 2: it is not JSON"),
        ("p.jsonl", '{"a": {"b": 1}}\n', "line 1: the value of a is no text, number or truth value"),
        ("p.jsonl", '{"a": null}\n', "line 1: the value of a is no text, number or truth value"),
        ("p.jsonl", '{"a": 1, "a": 2}\n', "line 1: it names a parameter twice"),
        ("p.jsonl", "[" * 100_000, "line 1: it is not JSON"),
        ("p.txt", "x", "ends with .csv or .jsonl"),
    ],
)
async def test_a_wrong_file_is_refused_with_its_line(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content)
    answer = await run("submit", "--array", name, "--", "true", url=NOBODY, cwd=tmp_path)
    assert answer.code == 2, answer.err
    assert said in " ".join(answer.err.replace("│", " ").split())


async def test_a_dry_run_is_about_the_first_element(service: Service) -> None:
    answer = await run("submit", "--dry-run", "--array", "3-9", *TRAIN, url=service.url)
    assert answer.code == 0, answer.err
    assert "element 3, the first of 7:" in answer.err


async def test_lists_show_arrays_as_one_line_and_elements_by_array(service: Service) -> None:
    array_id = await submitted(service, "--array", "0-1999", "--name", "sweep", *TRAIN)
    single = await submitted(service, "--name", "alone", "--", "true")
    array = await service.client.array(array_id)
    service.elements(array, {0: JobState.COMPLETED, 1: JobState.FAILED, 2: JobState.RUNNING, 3: JobState.QUEUED})
    service.change(array, state=ArrayState.RUNNING.value)
    done = "2/2,000 done, 1 running, 1 failed"
    for command in (["jobs", "list"], ["status"], ["jobs", "list", "--state", "running"]):
        answer = await run(*command, url=service.url)
        assert answer.code == 0, answer.err
        assert done in words(answer)
        assert f"{array_id}." not in answer.out
    answer = await run("jobs", "list", "--json", url=service.url)
    assert [one["id"] for one in json.loads(answer.out)] == [single, array_id]
    assert array_id not in (await run("jobs", "list", "--state", "queued", url=service.url)).out
    answer = await run("jobs", "list", "--array", array_id, url=service.url)
    assert [line.split()[0] for line in answer.out.splitlines()[1:]] == [f"{array_id}.{index}" for index in range(4)]
    assert done in words(answer)
    answer = await run("jobs", "list", "--array", array_id, "--state", "FAILED", "--json", url=service.url)
    assert [one["id"] for one in json.loads(answer.out)] == [f"{array_id}.1"]
    assert (await run("jobs", "list", "--array", "a-none", url=service.url)).code == 3
    assert (await run("jobs", "list", "--array", array_id, "--user", "x", url=service.url)).code == 2
    answer = await run("jobs", "describe", array_id, url=service.url)
    for text in (done, "1,997, of which 1,996 have not entered the queue", f"{array_id}.1 FAILED", "jobs retry"):
        assert text in words(answer)
    assert json.loads((await run("jobs", "describe", array_id, "--json", url=service.url)).out)["size"] == 2000
    assert (await run("jobs", "describe", f"{array_id}.1", url=service.url)).code == 0


async def test_arrays_and_ranges_are_stopped_and_run_again(service: Service) -> None:
    array_id = await submitted(service, "--array", "0-9", *TRAIN)
    array = await service.client.array(array_id)
    service.elements(array, {0: JobState.FAILED, 1: JobState.FAILED, 2: JobState.RUNNING})
    answer = await run("jobs", "cancel", array_id, "--elements", "5-9", "--reason", "enough", url=service.url)
    assert f"elements 5-9 of {array_id} are being cancelled" in answer.err
    assert (await run("jobs", "kill", f"{array_id}.2", url=service.url)).code == 0
    assert (await run("jobs", "kill", array_id, "--json", url=service.url)).code == 0
    heard = [one[:2] for one in await service.heard(array_id)]
    assert heard == [["cancel_elements", "5-9"], ["element_kill", f"{array_id}.2"], ["kill", "ada"]]
    answer = await run("jobs", "retry", array_id, "--failed", url=service.url)
    assert arrays.get_array(service.store, answer.out.strip()).array.indices == "0-1"
    answer = await run("jobs", "retry", f"{array_id}.1", url=service.url)
    assert arrays.get_array(service.store, answer.out.strip()).array.indices == "1"
    single = await submitted(service, "--", "true")
    for command in (
        ["jobs", "retry", single, "--failed"],
        ["jobs", "cancel", single, "--elements", "1"],
        ["jobs", "retry", array_id, "--failed", "--elements", "1"],
        ["jobs", "retry", f"{array_id}.1", "--elements", "1"],
        ["jobs", "cancel", array_id, "--elements", "17"],
    ):
        answer = await run(*command, url=service.url)
        assert answer.code == 2, (command, answer.err)
    answer = await run("jobs", "logs", array_id, url=service.url)
    assert (answer.code, f"e.g. {array_id}.0" in answer.err) == (3, True)


@pytest.mark.parametrize(
    ("state", "code"), [(ArrayState.COMPLETED, 0), (ArrayState.FAILED, 1), (ArrayState.CANCELLED, 1)]
)
async def test_waiting_for_an_array_returns_how_it_ended(service: Service, state: ArrayState, code: int) -> None:
    array_id = await submitted(service, "--array", "0-2", *TRAIN)
    array = await service.client.array(array_id)
    answer = await run("jobs", "wait", array_id, "--timeout", "0.6s", url=service.url)
    assert (answer.code, "is PENDING after 0.6 s" in answer.err) == (1, True)
    service.elements(array, {0: JobState.COMPLETED, 1: JobState.COMPLETED, 2: JobState(state.value)})
    service.change(array, state=state.value, finished_at=NOW)
    answer = await run("jobs", "wait", array_id, url=service.url)
    assert answer.code == code
    assert f"{array_id} {state}: 3/3 done" in answer.err
    assert (f"{array_id}.2 FAILED" in answer.err) is (state is ArrayState.FAILED)
    answer = await run("jobs", "wait", array_id, "--json", url=service.url)
    assert json.loads(answer.out)["state"] == state

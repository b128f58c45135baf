"""Which elements an array has, and what each of them runs."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gpu_platform.domain.array_ids import array_of, element_id, index_of, is_array_id
from gpu_platform.domain.jobs.array import (
    MAX_ELEMENTS,
    MAX_PARAMETERS,
    ArraySpec,
    ParameterTable,
    check_elements,
    element_spec,
)
from gpu_platform.domain.jobs.index_set import MAX_INDEX, IndexSet
from gpu_platform.domain.jobs.spec import JobSpec

INDICES = st.lists(st.integers(0, 300), min_size=1, max_size=60, unique=True)
RANGES = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 12), st.integers(1, 5)), min_size=1, max_size=6)
PLAIN = st.text(st.characters(blacklist_characters="{}\0", blacklist_categories=("Cs",)), max_size=8)


@given(INDICES)
def test_a_set_of_indices_is_a_set(indices: list[int]) -> None:
    found, wanted = IndexSet.of(indices), sorted(indices)
    assert list(found) == wanted
    assert len(found) == len(wanted)
    assert [found[place] for place in range(len(found))] == wanted
    assert {index for index in range(-1, 310) if index in found} == set(wanted)
    assert found.largest == wanted[-1]
    assert list(IndexSet.parse(str(found))) == wanted
    with pytest.raises(IndexError):
        found[len(found)]


@given(RANGES)
def test_ranges_mean_the_same_after_writing_and_reading(parts: list[tuple[int, int, int]]) -> None:
    wanted: list[int] = []
    texts: list[str] = []
    for gap, length, step in parts:
        start = (wanted[-1] if wanted else 0) + gap
        texts.append(f" {start}-{start + length}:{step} ")
        wanted += range(start, start + length + 1, step)
    found = IndexSet.parse(",".join(texts))
    assert list(found) == wanted
    assert list(IndexSet.parse(str(found))) == wanted
    assert [index for index in range(wanted[-1] + 2) if index in found] == wanted


@given(INDICES, INDICES)
def test_what_is_missing_is_the_smallest_index(first: list[int], second: list[int]) -> None:
    missing = set(first) - set(second)
    assert IndexSet.of(first).missing_from(IndexSet.of(second)) == (min(missing) if missing else None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a range"),
        ("a", "not a range"),
        ("1,", "not a range"),
        ("-1", "not a range"),
        ("1-", "not a range"),
        ("1-2:", "not a range"),
        ("1.5", "not a range"),
        ("\u0661-\u0663", "not a range"),
        ("5-1", "must not be after"),
        ("1-5:0", "step"),
        ("3,1", "ascending"),
        ("1-5,5", "ascending"),
        (f"0-{MAX_INDEX + 1}", "too large"),
        ("9" * 5000, "too large"),
        ("0-5:" + "9" * 5000, "too large"),
    ],
)
def test_what_is_no_set_of_indices_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        IndexSet.parse(text)


def test_a_million_indices_cost_nothing() -> None:
    found = IndexSet.parse(f"0-{MAX_INDEX}")
    assert (len(found), found[1_234_567], found.largest, str(found)) == (
        MAX_INDEX + 1,
        1_234_567,
        MAX_INDEX,
        f"0-{MAX_INDEX}",
    )


@given(
    st.dictionaries(
        st.sampled_from(["a", "b", "c", "d"]), st.lists(st.text("xyz", max_size=3), min_size=1, max_size=4), min_size=1
    )
)
def test_a_matrix_is_the_product_of_its_values(matrix: dict[str, list[str]]) -> None:
    product = [dict(zip(matrix, values, strict=True)) for values in itertools.product(*matrix.values())]
    array = ArraySpec.model_validate({"indices": f"0-{len(product) - 1}", "matrix": matrix})
    assert [array.parameters_of(index) for index in array.index_set] == product


def test_a_matrix_of_a_thousand_million_is_never_expanded() -> None:
    values = tuple(str(value) for value in range(1000))
    with pytest.raises(ValidationError, match="at most 100000 are allowed"):
        ArraySpec(indices="0-9999999", matrix={"a": values, "b": values, "c": values})
    array = ArraySpec(indices="0,9999999", matrix={"a": values, "b": values, "c": values})
    assert array.parameter_rows == 10**9
    assert array.parameters_of(9_999_999) == {"a": "9", "b": "999", "c": "999"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"indices": f"0-{MAX_ELEMENTS}"}, "at most 100000"),
        ({"indices": "0-2", "matrix": {"a": ["1", "2"]}}, "index 2 is out of range"),
        ({"indices": "0", "matrix": {"a": []}}, "no values"),
        ({"indices": "0", "matrix": {"a b": ["1"]}}, "not the name"),
        ({"indices": "0", "matrix": {"count": ["1"]}}, "no parameter can be called"),
        ({"indices": "0", "matrix": {"a": ["1"], "A": ["1"]}}, "one name"),
        ({"indices": "0", "matrix": {"a": ["\0"]}}, "NUL"),
        ({"indices": "0", "matrix": {"a": ["\ud800"]}}, "UTF-8|surrogate|valid string"),
        ({"indices": "0", "matrix": {"a": ["1"]}, "parameters": {"names": ["b"], "rows": [["1"]]}}, "not both"),
        ({"indices": "0", "parameters": {"names": ["a", "b"], "rows": [["1", "2"], ["1"]]}}, "row 1 has 1 values"),
        ({"indices": "0", "parameters": {"names": [], "rows": [[]]}}, "at least 1"),
        ({"indices": "0", "parameters": {"names": ["a"], "rows": []}}, "no rows"),
        ({"indices": "0", "at_once": 0}, "greater than or equal to 1"),
        ({"indices": "0", "count": 0}, "greater than or equal to 1"),
        ({"indices": "0", "unknown": 1}, "Extra inputs"),
    ],
)
def test_what_is_no_array_is_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        ArraySpec.model_validate(fields)


def test_a_wrong_table_names_its_first_fault_only() -> None:
    with pytest.raises(ValidationError) as refused:
        ParameterTable.model_validate({"names": ["a"], "rows": [[1]] * 1000})
    assert len(refused.value.errors()) == 1
    rows = (("",) * 256,) * (MAX_PARAMETERS // 256 + 1)
    with pytest.raises(ValidationError, match="at most 200000 values"):
        ParameterTable(names=tuple(f"p{number}" for number in range(256)), rows=rows)


def test_an_element_has_its_index_and_its_parameters() -> None:
    spec = JobSpec.model_validate(
        {
            "command": ["run-{lr}", "{index}/{count}", "{array}", "{other} {} {{index}} {lr}{seed}"],
            "env": {"OUT": "out/{index}", "GPU_PLATFORM_ARRAY_ID": "mine"},
            "workdir": "/data/{seed}",
            "groups": [{"name": "a", "command": ["{lr}"], "env": {"S": "{seed}"}}, {"name": "b"}],
        }
    )
    array = ArraySpec(indices="0-5", matrix={"lr": ("0.1", "{seed}"), "seed": ("1", "2", "3")})
    element = element_spec(spec, array, "a-x", 4)
    assert element.command == ["run-{seed}", "4/6", "a-x", "{other} {} {4} {seed}2"]
    assert element.env == {
        "OUT": "out/4",
        "GPU_PLATFORM_ARRAY_ID": "a-x",
        "GPU_PLATFORM_ARRAY_INDEX": "4",
        "GPU_PLATFORM_ARRAY_COUNT": "6",
        "GPU_PLATFORM_PARAM_LR": "{seed}",
        "GPU_PLATFORM_PARAM_SEED": "2",
    }
    assert element.workdir == "/data/2"
    assert [(group.command, group.env) for group in element.groups] == [(["{seed}"], {"S": "2"}), (None, {})]
    assert spec.command[0] == "run-{lr}"


@given(st.lists(PLAIN, min_size=1, max_size=4), st.lists(PLAIN.filter(str.strip), min_size=1, max_size=4))
def test_every_element_of_a_checked_array_is_a_valid_job(arguments: list[str], values: list[str]) -> None:
    spec = JobSpec(command=["{p}", *(argument + "{p}{index}" for argument in arguments)], env={"V": "{p}{count}"})
    array = ArraySpec(indices=f"0-{len(values) - 1}", matrix={"p": tuple(values)})
    check_elements(spec, array)
    for index in array.index_set:
        element = element_spec(spec, array, "a-x", index)
        assert JobSpec.model_validate(element.model_dump()) == element


@pytest.mark.parametrize(
    ("spec", "matrix", "words"),
    [
        ({"command": ["x", "{a}{a}{a}"]}, ["1", "y" * 50_000], "the command has"),
        ({"command": ["x"], "env": {"A": "{a}{a}{a}"}}, ["1", "y" * 70_000], "the environment has"),
        ({"command": ["x"], "gpus": {"hosts": 64, "gpus_per_host": 1}}, ["y" * 30_000], "for 64 hosts"),
        ({"command": ["{a}"]}, ["x", " "], "a value of that parameter is empty"),
        ({"command": ["x"], "groups": [{"name": "g", "command": ["{a}"]}]}, [""], "is empty"),
    ],
)
def test_elements_that_could_not_run_are_refused(spec: dict[str, object], matrix: list[str], words: str) -> None:
    array = ArraySpec(indices="0", matrix={"a": tuple(matrix)})
    with pytest.raises(ValueError, match=words):
        check_elements(JobSpec.model_validate(spec), array)


def test_ids_of_elements_name_their_array() -> None:
    assert (array_of(element_id("a-x", 17)), index_of("a-x.17")) == ("a-x", 17)
    for text in ("a-x", "j-x", "j-x.1", "a-x.", "a-x.y", "a-x.1.2", "a-x.\u0661", ""):
        assert array_of(text) is None
        with pytest.raises(ValueError, match="no element"):
            index_of(text)
    assert [is_array_id(text) for text in ("a-x", "a-x.1", "j-x")] == [True, False, False]

"""Slurm's notations: what is written is read again, and no input does anything but be read or refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpu_platform.slurm import (
    amounts,
    array_option,
    dependencies,
    exporting,
    getopt,
    hostlists,
    ids,
    patterns,
    sbatch_options,
    script,
    times,
)
from gpu_platform.slurm.constraints import read_constraint
from gpu_platform.slurm.translation import Submitter, translate
from tests.support.examples import few

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
HOSTILE = st.one_of(
    st.text(max_size=60),
    st.text(alphabet="0123456789-:,[]%@=/\\.+ abnowT&|'\"#\0\n", max_size=40),
    st.sampled_from(
        ["9" * 30, "n[0-999999999]", "[0-9][0-9][0-9][0-9][0-9][0-9]", "0-9999999999%1", "now+999999999weeks"]
    ),
)
NAMES = st.builds(
    "{}{}{}".format,
    st.sampled_from(["n", "gpu-", "rack1-"]),
    st.one_of(st.just(""), st.integers(0, 300), st.integers(0, 300).map("{:03}".format)),
    st.sampled_from(["", "", "-ib", "-ib0"]),
)


def _read_or_refused(reader: Callable[[str], Any], text: str) -> Any:
    """What was read, or the error, which is short and of the one kind that is expected."""
    try:
        return reader(text)
    except ValueError as error:
        return error if len(str(error)) < 2000 else pytest.fail("the message is too long")


@given(st.integers(min_value=1, max_value=times.MAX_LIMIT_S))
def test_a_limit_is_read_as_it_is_written(seconds: int) -> None:
    text = times.written_limit(seconds)
    if text.count(":") == 1:  # Slurm prints minutes:seconds, and reads the same
        assert times.read_limit_s(text) == seconds
    assert times.read_limit_s(times.written_long(seconds)) == seconds


@given(st.integers(0, 99), st.integers(0, 99), st.integers(0, 59), st.integers(0, 59))
def test_all_forms_of_a_limit(days: int, hours: int, minutes: int, seconds: int) -> None:
    whole = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    assert times.read_limit_s(f"{days}-{hours}:{minutes}:{seconds}") == (whole or None)
    assert times.read_limit_s(f"{days}-{hours}:{minutes}") == (whole - seconds or None)
    assert times.read_limit_s(f"{days}-{hours}") == ((days * 24 + hours) * 3600 or None)
    assert times.read_limit_s(f"{hours}:{minutes}:{seconds}") == ((hours * 60 + minutes) * 60 + seconds or None)
    assert times.read_limit_s(f"{minutes}:{seconds}") == (minutes * 60 + seconds or None)
    assert times.read_limit_s(f"{minutes}") == (minutes * 60 or None)


@settings(max_examples=few(60))
@given(st.lists(NAMES, min_size=1, max_size=30))
@example(["n9", "n10", "n09", "n010"])
@example(["n1", "n1-ib", "n01"])
def test_a_list_of_hosts_names_them_again(names: list[str]) -> None:
    unique = list(dict.fromkeys(names))
    assert sorted(hostlists.expand(hostlists.compress(names))) == sorted(unique)


@given(st.integers(0, 10**6), st.integers(0, 200), st.integers(1, 7))
def test_a_range_has_its_own_width(first: int, more: int, width: int) -> None:
    text = f"n[{first:0{width}}-{first + more:0{width}}]"
    assert hostlists.expand(text) == [
        f"n{number:0{width if f'{first:0{width}}'.startswith('0') else 1}}" for number in range(first, first + more + 1)
    ]


@given(st.sampled_from("ja"), st.text(ids._ALPHABET, min_size=15, max_size=15), st.integers(0, 9_999_998))
@example("j", "0" * 15, 0)
@example("a", "z" * 15, 9_999_998)
def test_a_number_is_an_id_and_never_below_0_for_a_shell(kind: str, letters: str, index: int) -> None:
    job = f"{kind}-{letters}"
    wanted = [job] if kind == "j" else [job, f"{job}.{index}", f"{job}.{index + 1}"]
    for one in wanted:
        assert ids.id_of(ids.number_of(one)) == ids.id_of(ids.shown_id(one)) == one
        assert int(ids.number_of(one)) % 2**64 < 2**63
    assert len(ids.number_of(job)) == 24
    assert len({ids.number_of(one)[-4:] for one in wanted[-2:]}) == min(2, len(wanted))


@given(st.sets(st.integers(0, 5000), min_size=1, max_size=50), st.none() | st.integers(1, 100))
def test_an_array_has_its_indices(indices: set[int], at_once: int | None) -> None:
    text = ",".join(str(index) for index in sorted(indices, reverse=True)) + ("" if at_once is None else f"%{at_once}")
    written, about = array_option.read_array(text)
    again, _ = array_option.read_array(written)
    assert again == written
    assert (about["count"], about["min"], about["max"]) == (len(indices), min(indices), max(indices))
    assert written.endswith(f"%{at_once}") or at_once is None


@settings(max_examples=few(60))
@given(HOSTILE)
def test_hostile_input_is_read_or_refused(text: str) -> None:
    readers = [
        times.read_limit_s,
        lambda one: times.read_moment(one, NOW),
        hostlists.expand,
        array_option.read_array,
        read_constraint,
        dependencies.read_dependencies,
        amounts.read_gres,
        amounts.read_gpus,
        amounts.read_memory_mib,
        amounts.read_nodes,
        amounts.read_signal,
        amounts.read_tres,
        amounts.read_gpu_bind,
        ids.id_of,
        lambda one: exporting.exported(one, {"A": "b"}),
        lambda one: patterns.filled(one, {}),
        lambda one: script.parse(b"#!/bin/sh\n" + one.encode("utf-8", "replace"), "job.sh"),
    ]
    for reader in readers:
        found = _read_or_refused(reader, text)
        assert not isinstance(found, list) or len(found) <= hostlists.MAX_HOSTS


@settings(max_examples=few(80))
@given(st.sampled_from(sorted(sbatch_options.TABLE.by_name)), HOSTILE)
def test_every_option_is_translated_or_refused_whatever_its_value(name: str, value: str) -> None:
    given = [getopt.Given(name, value, "job.sh:2")]
    found = _read_or_refused(lambda _: translate(given, Submitter("job.sh", "/w", {}, NOW)), value)
    if isinstance(found, ValueError):
        assert str(found).startswith("job.sh:2")
    else:
        assert all(isinstance(word, str) for word in found.words)


@given(st.text(max_size=20), st.text(max_size=20), st.integers(0, 10**6))
def test_a_value_in_a_name_of_a_file_never_leads_to_another_directory(job: str, host: str, index: int) -> None:
    values = {"j": job, "N": host, "a": str(index), "x": "../../etc", "u": "a/b"}
    name = patterns.filled("logs/%j-%N-%5a-%x-%u.out", values)
    assert name.count("/") == 1
    assert "\0" not in name
    assert os.path.dirname(os.path.normpath(os.path.join("/w", name))) == "/w/logs"


@given(st.lists(st.tuples(st.sampled_from(["nodes", "time", "job-name"]), st.text("abc=1-", min_size=1, max_size=8))))
def test_options_are_read_in_all_their_forms(pairs: list[tuple[str, str]]) -> None:
    short = {"nodes": "-N", "time": "-t", "job-name": "-J"}
    for form in (
        [f"--{name}={value}" for name, value in pairs],
        [word for name, value in pairs for word in (f"--{name}", value)],
        [word for name, value in pairs for word in (short[name], value)],
    ):
        found, rest = sbatch_options.TABLE.read([*form, "job.sh", "--its-own"])
        assert [(one.name, one.value) for one in found] == pairs
        assert rest == ["job.sh", "--its-own"]

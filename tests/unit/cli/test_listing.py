"""Lists: the same rows as a table, JSON, YAML and CSV, with the columns that were asked for."""

from __future__ import annotations

import csv
import io
import json
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
import typer
import yaml

from gpu_platform.cli.show import job_rows, list_columns
from gpu_platform.cli.show.listing import Column, Listing, Shape, at, field

ROWS: list[dict[str, Any]] = [
    {"id": "a", "note": 'x, "y"\nz', "at": "2026-07-01T12:00:00Z", "tags": ["p", "q"]},
    {"id": "b", "note": "\x1b[31mred", "at": None, "tags": []},
]
COLUMNS = (
    Column("id", field("id")),
    Column("made", field("at"), text=at),
    Column("tags", field("tags"), wide=True),
    Column("note", field("note")),
)


@pytest.fixture(autouse=True)
def berlin() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Europe/Berlin"
    time.tzset()
    yield
    os.environ.pop("TZ")
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


def printed(capsys: pytest.CaptureFixture[str], shape: Shape, names: str | None = None) -> str:
    Listing(COLUMNS, shape, names).show(ROWS)
    return capsys.readouterr().out


def test_csv_is_quoted_has_every_column_and_times_of_rfc_3339(capsys: pytest.CaptureFixture[str]) -> None:
    head, first, second = csv.reader(io.StringIO(printed(capsys, "csv")))
    assert head == ["id", "made", "tags", "note"]
    assert first == ["a", "2026-07-01T12:00:00Z", '["p", "q"]', 'x, "y"\nz']
    assert second == ["b", "", "[]", r"\x1b[31mred"]


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-2+3", "'-2+3"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("\uff1d1", "'\uff1d1"),
        ("-5", "-5"),
        ("+1.5e-3", "+1.5e-3"),
        ("-", "-"),
        ("a=1", "a=1"),
        ("", ""),
    ],
)
def test_no_text_of_a_list_is_a_formula(capsys: pytest.CaptureFixture[str], text: str, cell: str) -> None:
    Listing(COLUMNS, "csv").show([{**ROWS[0], "note": text}])
    _, row = csv.reader(io.StringIO(capsys.readouterr().out))
    assert row[-1] == cell


def test_json_and_yaml_have_what_the_service_sent(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(printed(capsys, "json")) == ROWS
    shown = printed(capsys, "yaml")
    assert yaml.safe_load(shown) == ROWS
    assert "\x1b" not in shown


def test_tables_have_local_times_and_say_in_which_zone(capsys: pytest.CaptureFixture[str]) -> None:
    head, first, *_ = printed(capsys, "table").splitlines()
    assert head.startswith("ID  MADE (CE")
    assert "2026-07-01 14:00:00" in first
    assert "TAGS" not in head
    assert "TAGS" in printed(capsys, "wide")


def test_columns_are_chosen_in_any_order_and_a_wrong_one_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "csv", "note,ID").splitlines()[0] == "note,id"
    assert printed(capsys, "table", "tags, id").split()[:2] == ["TAGS", "ID"]
    with pytest.raises(typer.BadParameter, match="'nots', did you mean note\\? There are: id, made, tags, note"):
        Listing(COLUMNS, "csv", "nots")
    with pytest.raises(typer.BadParameter, match="YAML has all fields"):
        Listing(COLUMNS, "yaml", "id")
    with pytest.raises(typer.BadParameter, match="--json contradicts"):
        Listing(COLUMNS, "csv", None, json=True)


def test_the_columns_of_each_list_have_names_of_their_own() -> None:
    lists = [job_rows.COLUMNS, *(value for name, value in vars(list_columns).items() if name.isupper())]
    for columns in lists:
        if isinstance(columns, tuple):
            names = [column.name for column in columns]
            assert len(set(names)) == len(names)
            assert all(name == name.lower() and " " not in name for name in names)


@pytest.mark.parametrize("word", ["GPU", "Zürich", "\N{CJK UNIFIED IDEOGRAPH-4E00}"])
def test_into_a_pipe_each_row_is_one_whole_line_without_blanks_at_its_end(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    long = f"needs 2 hosts x 4 GPUs of one NVLink island of {word}: " + ", ".join(f"dgx-{n}: 2 free" for n in range(80))
    rows = [{"id": "a", "note": long}, {"id": "b", "note": "short"}, {"id": "c", "note": "two\nlines"}]
    Listing((Column("id", field("id")), Column("note", field("note")))).show(rows)
    head, first, second, third = capsys.readouterr().out.splitlines()
    assert (head, first, second, third) == ("ID  NOTE", f"a   {long}", "b   short", r"c   two\nlines")

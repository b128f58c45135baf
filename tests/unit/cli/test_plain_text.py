"""A table without rich looks as one with rich does."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_platform.cli.show import plain_text
from gpu_platform.cli.show.listing import Column, Listing, coloured_state, field
from gpu_platform.cli.terminal import SafeConsole

COLUMNS = (
    Column("job", field("job")),
    Column("state", field("state"), text=coloured_state),
    Column("age", field("age")),
    Column("why", field("why")),
)
TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "job": TEXTS,
            "state": st.sampled_from(["RUNNING", "FAILED", "OF_A_NEWER_RELEASE"]),
            "age": TEXTS,
            "why": st.none() | TEXTS,
        }
    ),
    max_size=4,
)


def by_rich(rows: list[dict[str, str]], *, colours: bool) -> str:
    text = io.StringIO()
    kind = {"force_terminal": True, "color_system": "standard"} if colours else {}
    SafeConsole(file=text, width=120, **kind).print(Listing(COLUMNS).table(rows))
    return text.getvalue()


@given(ROWS, st.booleans())
def test_it_is_what_rich_prints(rows: list[dict[str, str]], colours: bool) -> None:
    plain = Listing(COLUMNS)._plain(rows, 120, colours)
    # Rich switches the weight of the heads off and on again between columns.
    assert f"{plain}\n" == by_rich(rows, colours=colours).replace("\x1b[0m\x1b[1m", "")


@pytest.mark.parametrize("why", ["x" * 100, "Zürich", "two\tparts", "\x1b[31m", "\N{CJK UNIFIED IDEOGRAPH-4E00}"])
def test_what_must_be_folded_escaped_or_measured_is_left_to_rich(why: str) -> None:
    row = {"job": "j-1", "state": "RUNNING", "age": "5s", "why": why}
    assert Listing(COLUMNS)._plain([row], 100, False) is None


def test_a_pipe_is_wide_and_without_colours_unless_somebody_asks_rich_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", io.StringIO())
    for name in plain_text._DECIDES_COLOURS:
        monkeypatch.delenv(name, raising=False)
    assert plain_text.room(240) == (240, False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert plain_text.room(240) is None

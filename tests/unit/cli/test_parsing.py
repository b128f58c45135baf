"""What people type becomes what they meant, or an error that says what would be right."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from gpu_platform.cli import parsing
from gpu_platform.cli.parsing import bandwidth_gb_s, duration_s, environment, gang_shape, limit_s, memory_mib, whole_s


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("16GiB", 16384),
        ("16g", 16384),
        ("16G", 16384),
        ("16 GiB", 16384),
        ("16384MiB", 16384),
        ("16384m", 16384),
        ("1.5g", 1536),
        ("1T", 1024**2),
        ("80GB", 76294),
        ("1k", 1),
        ("0g", 0),
    ],
)
def test_sizes(text: str, mib: int) -> None:
    assert memory_mib(text) == mib


@pytest.mark.parametrize(
    ("text", "gb_s"),
    [("100GB/s", 100), ("100", 100), ("12.5 GB/s", 12.5), ("400Gb/s", 50), ("200Gbit/s", 25), ("100Gbps", 12.5)],
)
def test_bandwidths(text: str, gb_s: float) -> None:
    assert bandwidth_gb_s(text) == gb_s


@pytest.mark.parametrize("text", ["", "fast", "-1GB/s", "100MB/s", "100gb", "nan", "1e3GB/s"])
def test_no_bandwidths(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="like 100GB/s"):
        bandwidth_gb_s(text)


@pytest.mark.parametrize("text", ["", "16", "16b", "-1g", "g", "16xb", "1e3g", "16 gigs", "\u0661\u0666g", "nan g"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="like 16GiB"):
        memory_mib(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2h", 7200),
        ("90m", 5400),
        ("1h30m", 5400),
        ("45s", 45),
        ("1d", 86400),
        ("1D2H", 93600),
        ("01:30:00", 5400),
        ("100:00:00", 360000),
        ("1-12:00:00", 129600),
        ("1-12", 129600),
        ("1-12:30", 131400),
    ],
)
def test_times(text: str, seconds: int) -> None:
    assert duration_s(text) == whole_s(text) == limit_s(text) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1", 1), ("0", 0), ("1.5", 1.5), ("0s", 0), ("500ms", 0.5), ("1s500ms", 1.5), ("2m", 120), ("1.5h", 5400)],
)
def test_durations_may_be_short_and_without_a_unit(text: str, seconds: float) -> None:
    assert duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "1:30", "2 h", "-2h", "h", "1h2h", "30m1h", "1-", "\u0662h", "1s2", "ms", "inf"])
def test_no_times(text: str) -> None:
    for parse in (duration_s, whole_s, limit_s):
        with pytest.raises(typer.BadParameter, match="is not a time"):
            parse(text)


def test_a_limit_needs_a_unit_and_whole_seconds() -> None:
    with pytest.raises(typer.BadParameter, match="write 90s, 90m or 90h"):
        limit_s("90")
    with pytest.raises(typer.BadParameter, match="write whole seconds"):
        whole_s("500ms")


@pytest.mark.parametrize("text", ["0h", "00:00:00", "0s"])
def test_no_time_at_all(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="leave it out"):
        limit_s(text)


@given(st.integers(0, 400), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_a_time_is_the_same_however_it_is_written(days: int, hours: int, minutes: int, seconds: int) -> None:
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if total:
        assert limit_s(f"{days}-{hours}:{minutes:02}:{seconds:02}") == total
        assert limit_s(f"{days}d{hours}h{minutes}m{seconds}s") == total
        assert limit_s(f"{days * 24 + hours}:{minutes:02}:{seconds:02}") == total


@given(st.integers(0, 2**40), st.sampled_from("kmgt"), st.sampled_from(["", "i", "iB", "ib"]))
def test_a_size_is_never_rounded_down(number: int, unit: str, suffix: str) -> None:
    size = number * 1024 ** ("kmgt".index(unit) + 1)
    assert math.isclose(memory_mib(f"{number}{unit}{suffix}"), math.ceil(size / 2**20), rel_tol=1e-12)


@given(st.text(max_size=12))
def test_any_text_is_a_value_or_a_clear_error(text: str) -> None:
    for parse in (memory_mib, duration_s, limit_s):
        with contextlib.suppress(typer.BadParameter):
            assert parse(text) >= 0


@pytest.mark.parametrize(
    ("given_", "shape"),
    [
        ((None, None, None), (None, None)),
        ((4, None, None), (1, 4)),
        ((8, 2, None), (2, 4)),
        ((8, None, 4), (2, 4)),
        ((8, 2, 4), (2, 4)),
        ((None, 2, 4), (2, 4)),
        ((None, 2, None), (2, None)),
    ],
)
def test_shapes(given_: tuple[int | None, ...], shape: tuple[int | None, int | None]) -> None:
    assert gang_shape(*given_) == shape


@pytest.mark.parametrize(
    ("given_", "words"),
    [
        ((7, 2, None), "6 or 8 GPUs"),
        ((1, 2, None), "use 2 GPUs"),
        ((7, None, 4), "4 or 8 GPUs"),
        ((9, 2, 4), "contradicts"),
        ((0, None, None), "--gpus 0"),
        ((None, -1, None), "--hosts -1"),
    ],
)
def test_no_shapes(given_: tuple[int | None, ...], words: str) -> None:
    with pytest.raises(typer.BadParameter, match=words):
        gang_shape(*given_)


@given(st.integers(1, 64), st.integers(1, 64))
def test_a_total_is_divided_evenly(hosts: int, per_host: int) -> None:
    assert gang_shape(hosts * per_host, hosts, None) == (hosts, per_host)
    assert gang_shape(hosts * per_host, None, per_host) == (hosts, per_host)


def test_environment() -> None:
    assert environment(["A=1", "B", "C=", "D=x=y"], {"B": "here"}) == {"A": "1", "B": "here", "C": "", "D": "x=y"}
    with pytest.raises(typer.BadParameter, match="E: it is not set here"):
        environment(["E"], {})
    with pytest.raises(typer.BadParameter, match="NAME=VALUE"):
        environment(["=x"], {})


NOON = datetime(2026, 11, 24, 12, tzinfo=UTC)


@pytest.fixture
def noon_in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """It is 12:00 UTC, and 13:00 local time."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return NOON.astimezone(tz)

    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Europe/Berlin")
        patched.setattr(parsing, "datetime", Clock)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("+2h", "2026-11-24T14:00Z"),
        ("now+90m", "2026-11-24T13:30Z"),
        ("16:30", "2026-11-24T15:30Z"),
        ("9:05", "2026-11-25T08:05Z"),
        ("12:30:15", "2026-11-25T11:30:15Z"),
        ("2026-12-01", "2026-11-30T23:00Z"),
        ("2026-12-01T08:00", "2026-12-01T07:00Z"),
        ("2026-12-01 08:00Z", "2026-12-01T08:00Z"),
        ("2026-12-01T08:00-05:00", "2026-12-01T13:00Z"),
    ],
)
@pytest.mark.usefixtures("noon_in_berlin")
def test_moments(text: str, expected: str) -> None:
    assert parsing.moment(text) == datetime.fromisoformat(expected)


@pytest.mark.parametrize("text", ["", "tomorrow", "25:00", "+soon", "+", "2026-13-01", "12", "+99999999d"])
@pytest.mark.usefixtures("noon_in_berlin")
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a time: write"):
        parsing.moment(text)

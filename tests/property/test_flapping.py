"""The time that something which keeps failing stays out of service: it grows, is bounded, and the first is free."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from gpu_platform.domain.hosts.remediation import BackOff

spans = st.timedeltas(min_value=timedelta(seconds=1), max_value=timedelta(days=30))


@given(first=spans, longest=spans, failures=st.integers(1, 10_000))
def test_it_doubles_up_to_the_bound(first: timedelta, longest: timedelta, failures: int) -> None:
    policy = BackOff(window=timedelta(hours=24), first=first, longest=longest)
    now, next_time = policy.out_for(failures), policy.out_for(failures + 1)
    assert timedelta(0) <= now <= next_time <= longest
    if failures == 1:
        assert not now
    elif next_time < longest:
        assert next_time == 2 * now


@given(failures=st.integers(0, 1000))
def test_zero_keeps_nothing_out(failures: int) -> None:
    policy = BackOff(window=timedelta(hours=24), first=timedelta(0), longest=timedelta(hours=4))
    assert not policy.out_for(failures)


def test_the_defaults_in_minutes() -> None:
    policy = BackOff(window=timedelta(hours=24), first=timedelta(minutes=1), longest=timedelta(hours=4))
    minutes = [policy.out_for(failures) / timedelta(minutes=1) for failures in range(1, 11)]
    assert minutes == [0, 2, 4, 8, 16, 32, 64, 128, 240, 240]

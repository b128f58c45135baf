"""Schedules of one user or one namespace are bounded, and so is what an outage makes of them."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from gpu_platform.domain.errors import OverQuota
from gpu_platform.domain.jobs.schedule import MAX_CATCH_UP, ScheduleRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.store import Store
from gpu_platform.store.jobs import schedules
from tests.support.store_cluster import NOW


def nightly(user: str, namespace: str = "default") -> ScheduleRequest:
    return ScheduleRequest(cron="@daily", job=JobSpec(command=["true"], user=user, namespace=namespace))


def test_a_user_and_a_namespace_have_so_many(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "MAX_OF_A_USER", 3)
    monkeypatch.setattr(schedules, "MAX_OF_A_NAMESPACE", 5)

    def create(number: int, user: str, namespace: str = "default") -> None:
        schedules.create(store, f"s-{number}", nightly(user, namespace), actor=user, now=NOW)

    for number in range(3):
        create(number, "ada")
    with pytest.raises(OverQuota, match="user ada has 3 schedules, and 3 are the most: delete some of them"):
        create(3, "ada", "other")
    for number in range(3, 5):
        create(number, f"u{number}")
    with pytest.raises(OverQuota, match="namespace default has 5 schedules, and 5 are the most"):
        create(5, "eve")
    create(6, "eve", "other")
    schedules.remove(store, "s-0", actor="ada", now=NOW)
    create(7, "ada")


@pytest.mark.parametrize(
    ("overlap", "every_s", "catch_up_s", "allowed"),
    [
        ("allow", 1, MAX_CATCH_UP - 1, True),
        ("allow", 1, MAX_CATCH_UP, False),
        ("buffer-all", 1, MAX_CATCH_UP, False),
        ("allow", 1, 366 * 86400, False),
        ("skip", 1, 366 * 86400, True),  # one of them submits a job
        ("buffer-one", 1, 366 * 86400, True),
        ("cancel-other", 1, 3600, True),
        ("allow", 3600, 30 * 86400, True),
    ],
)
def test_what_is_made_up_for_after_an_outage_is_bounded(
    overlap: str, every_s: int, catch_up_s: int, allowed: bool
) -> None:
    fields = {"every_s": every_s, "catch_up_s": catch_up_s, "overlap": overlap, "job": {"command": ["true"]}}
    if allowed:
        assert ScheduleRequest.model_validate(fields)
        return
    with pytest.raises(ValidationError, match=f"at most {MAX_CATCH_UP} are possible: make catch_up_s smaller"):
        ScheduleRequest.model_validate(fields)

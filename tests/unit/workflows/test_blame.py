"""Who is to blame for a failure is decided in one function."""

from __future__ import annotations

import re
from pathlib import Path

from gpu_platform.domain.jobs import blame as module
from gpu_platform.domain.jobs.blame import FailureCause, FailureKind, blame

ROOT = Path(__file__).parents[3]
DECIDES = re.compile(r"kind=FailureKind\.|(?<!`)kind=\"(?:user|hardware)\"|\"kind\": \"(?:user|hardware)\"")


def test_only_the_program_and_the_request_are_the_users_fault() -> None:
    users = {cause for cause in FailureCause if blame(cause) is FailureKind.USER}
    assert users == {FailureCause.PROGRAM, FailureCause.REQUEST, FailureCause.PROGRAM_FAULT}
    assert blame(FailureCause.TIME_LIMIT) is FailureKind.TIME_LIMIT
    assert blame(FailureCause.NOT_ADMITTED) is FailureKind.REJECTED


def test_nobody_else_decides_it() -> None:
    assert DECIDES.search("Failure(kind=FailureKind.USER)"), "a planted one is found"
    for package in ("gpu_platform", "activities", "workflows", "workers", "service"):
        for path in (ROOT / package).rglob("*.py"):
            if path != Path(module.__file__):
                assert not DECIDES.search(path.read_text()), f"{path} names the guilty itself: use blame()"

"""Estimated starts respect windows that are still to come: compared with the real scheduler, run forward in time.

``WORLDS=500 pytest tests/property/test_scheduling_window_estimates.py`` looks at more worlds.
"""

from __future__ import annotations

import os
from unittest.mock import patch

import pytest

from gpu_platform.scheduling.explaining.forward_run import NO_HOSTS, UsableGpus
from tests.support.promise_worlds import Violation
from tests.support.window_worlds import play_foreseen

WORLDS = int(os.environ.get("WORLDS", "8"))


def test_estimates_are_outside_of_windows_and_mostly_what_happens() -> None:
    """Each world raises if an estimate is inside a window. The run forward is a light model, so some others differ."""
    exact, all_ = 0, 0
    for seed in range(WORLDS):
        world = play_foreseen(seed)
        for name, estimate in world.estimates.items():
            if estimate is not None:
                all_ += 1
                exact += abs(world.started[name] - estimate) <= 0.5  # a leader looks each second, and so do they
            else:
                assert name not in world.started or world.started[name] > FAR_S, f"{name} in world {seed}"
    assert all_ > WORLDS
    assert exact >= 0.9 * all_, f"{exact} of {all_}"


FAR_S = 40.0
"""Windows are planned eight occurrences ahead, and occur at least so often in these worlds."""


def test_a_run_that_forgets_windows_is_found() -> None:
    """Else the worlds would prove nothing."""
    with patch.object(UsableGpus, "pass_time", lambda self, moment: NO_HOSTS), pytest.raises(Violation, match="window"):
        play_until_it_fails()


def play_until_it_fails() -> None:
    for seed in range(40):
        play_foreseen(seed)

"""The policy by which a leader decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.policy_file import is_broken, read_policy


@dataclass(frozen=True)
class PolicyInForce:
    """The policy by which a leader decides now."""

    policy: Policy
    written: dict[str, Any]
    """The policy as people wrote it. The leader stores it in the database, where the service reads it."""

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> PolicyInForce:
        """Read a policy. Plugins that cannot be loaded are switched off. Raises InvalidRequest."""
        return cls(read_policy(written, "scheduler.policy", do_without=is_broken), dict(written))

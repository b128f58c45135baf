"""How clocks are compared and judged. Certificates, tokens and leases are judged by the clock."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_platform.client.wire import Clock
from gpu_platform.clock_difference import ClockDifference
from workers.doctor.results import Part, Result

WARNING_S, FAILED_S = 1.0, 60.0
"""Differences that are certain: the time that the question took is not counted."""
_ADVICE = "let chrony or systemd-timesyncd set the clocks of all machines; `chronyc tracking` says how well it does"
_WHY = f"{_ADVICE}: certificates and tokens are judged by the clock"
_MOST_NAMES = 5


def judge(part: Part, difference: ClockDifference, whose: str) -> Result:
    """The result for the clock of one other machine. ``whose``: ``the service's``."""
    apart_s, ours = difference.at_least_s, "behind" if difference.ahead_s > 0 else "ahead of"
    found = f"this machine's clock is {abs(difference.ahead_s):.3g} s {ours} {whose}{_exactly(difference.uncertain_s)}"
    if apart_s >= FAILED_S:
        return part.failed("clock", found, _WHY)
    if apart_s >= WARNING_S:
        return part.warning("clock", found, _ADVICE)
    return part.ok("clock", found)


def judge_others(part: Part, clocks: Sequence[Clock]) -> list[Result]:
    """The results for what the service compared with its own clock."""
    found = [_of_database(part, one) for one in clocks if one.kind == "database"]
    hosts = [one for one in clocks if one.kind == "host"]
    return [*found, *([_of_hosts(part, hosts)] if hosts else [])]


def _of_database(part: Part, one: Clock) -> Result:
    found = f"the database's clock is {_apart(one)} the service's"
    if one.at_least_s >= FAILED_S:
        return part.failed("clock of the database", found, _WHY)
    if one.at_least_s >= WARNING_S:
        return part.warning("clock of the database", found, _ADVICE)
    return part.ok("clock of the database", found)


def _of_hosts(part: Part, hosts: Sequence[Clock]) -> Result:
    name = "clocks of hosts"
    known = [one for one in hosts if one.ahead_s is not None]
    wrong = sorted((one for one in known if one.at_least_s >= WARNING_S), key=lambda one: -one.at_least_s)
    if wrong:
        shown = ", ".join(f"{one.name} is {_apart(one)}" for one in wrong[:_MOST_NAMES])
        more = f" and {len(wrong) - _MOST_NAMES} more" if len(wrong) > _MOST_NAMES else ""
        found = f"compared with the service's clock {shown} it{more}"
        return (part.failed if wrong[0].at_least_s >= FAILED_S else part.warning)(name, found, _WHY)
    if not known:
        return part.skipped(name, f"no host says its time: {hosts[0].problem}")
    farthest = max(known, key=lambda one: abs(one.ahead_s or 0.0))
    found = f"{len(known)} of {len(hosts)} compared; the farthest, {farthest.name}, is {_apart(farthest)} the service's"
    return part.ok(name, found)


def _apart(one: Clock) -> str:
    ahead_s = one.ahead_s or 0.0
    return f"{abs(ahead_s):.3g} s{_exactly(one.uncertain_s)} {'ahead of' if ahead_s > 0 else 'behind'}"


def _exactly(uncertain_s: float) -> str:
    return f" (± {uncertain_s:.2g} s)"

"""Whatever the shape of a process tree: nothing of the attempt is missed, nothing else is touched."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpu_platform.domain.hosts.faults import FaultAction
from gpu_platform.node.health.fault_policy import FaultPolicy, PastFault
from gpu_platform.node.system.process_tree import FoundProcess, Stat, descendants


@st.composite
def tables(draw: st.DrawFn) -> dict[int, Stat]:
    """A forest: each process's parent is an earlier pid, or 0 for none."""
    size = draw(st.integers(1, 30))
    return {
        pid: Stat(FoundProcess(pid, 100 + pid), draw(st.integers(0, pid - 1)), draw(st.booleans()))
        for pid in range(1, size + 1)
    }


def ancestors(pid: int, table: dict[int, Stat]) -> set[int]:
    found: set[int] = set()
    while (pid := table[pid].parent) in table:
        found.add(pid)
    return found


@given(tables(), st.sets(st.integers(1, 30)), st.sets(st.integers(1, 30)))
def test_descendants_are_exactly_those_below_a_root_or_a_marked_process(
    table: dict[int, Stat], roots: set[int], marked: set[int]
) -> None:
    roots, marked = roots & set(table), (marked & set(table)) - roots
    expected = {
        stat.process
        for pid, stat in table.items()
        if pid not in roots and not stat.zombie and ({pid, *ancestors(pid, table)} & (roots | marked))
    }
    assert descendants(roots, table, also=marked.__contains__) == expected


@given(st.integers(0, 400), st.lists(st.integers(0, 400)), st.integers(0, 7), st.sampled_from(["platform", "vendor"]))
def test_every_xid_has_an_action_and_more_history_never_makes_it_milder(
    xid: int, past: list[int], verdict: int, name: str
) -> None:
    policy = FaultPolicy.load(name)
    order = list(FaultAction)
    history = [PastFault(cause, 0) for cause in past]
    alone = policy.action(xid, now_ms=1, recovery_action=verdict)
    again = policy.action(xid, history=history, now_ms=1, recovery_action=verdict)
    assert order.index(again) >= order.index(alone)

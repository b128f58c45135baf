"""Random small worlds with advance reservations and maintenance windows: see ``promise_worlds``.

After each decision it asks, by rules of its own: does nobody start on GPUs that a window keeps, who might still run in
it? Does nobody run in an open window who may not? Do jobs of a reservation run there and nowhere else?
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice
from random import Random

from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.promise import PromiseChange, WithdrawalCode
from gpu_platform.domain.placing.window import WindowPlace, WindowRow, conflict
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.scheduler import Decision, Scheduler
from tests.builders import cluster, job
from tests.support.promise_traces import Arrival, Trace
from tests.support.promise_worlds import Violation, World


@dataclass(frozen=True)
class WindowTrace(Trace):
    """A world with windows: (when an operator makes it, the window)."""

    windows: tuple[tuple[float, WindowRow], ...] = ()

    @property
    def is_calm(self) -> bool:
        return False  # operators make windows, and promises end

    @classmethod
    def with_windows(cls, seed: int) -> WindowTrace:
        """``Trace.random(seed)`` or ``Trace.troubled(seed)``, with windows and jobs that ask for them."""
        draw = Random(f"windows {seed}")
        usual = Trace.troubled(seed) if draw.random() < 0.4 else Trace.random(seed)
        margin_s = draw.choice([0.0, 2.0, 10.0])
        windows: list[tuple[float, WindowRow]] = []
        for number in range(draw.randint(1, 4)):
            made_at = float(draw.choice([0, 0, 3, 15, 40]))
            window = _window(draw, number, made_at, usual)
            if conflict(window, [other for _, other in windows]) is None:
                windows.append((made_at, window))
        jobs = []
        for one in usual.jobs:
            row = one.row
            if draw.random() < 0.4 and row.time_limit_s is not None:
                resources = row.resources.model_copy(update={"reservation": f"w{draw.randint(0, 3)}"})
                groups = tuple(
                    (name, asked.model_copy(update={"reservation": resources.reservation}))
                    for name, asked in row.groups
                )
                row = replace(row, resources=resources, groups=groups)
            grace_s = Random(f"{seed} {row.job_id}").choice([0.0, 1.0, 1.0, 10.0, 40.0])
            jobs.append(replace(one, row=replace(row, grace_s=grace_s)))
        policies = tuple((at, replace(policy, window_margin_s=margin_s)) for at, policy in usual.policies)
        return cls(
            usual.hosts,
            tuple(jobs),
            replace(usual.policy, window_margin_s=margin_s),
            usual.outages,
            (*usual.looks, *(float(at) + 0.3 for at in range(0, 200, 2))),
            usual.new_leaders,
            policies,
            tuple(windows),
        )

    @classmethod
    def foreseen(cls, seed: int) -> WindowTrace:
        """Jobs for whole GPUs that are all there at the beginning and run to their limits, and windows that are known
        then."""
        draw = Random(f"foreseen {seed}")
        machines = cluster().hosts(draw.choice([1, 2, 3]))
        hosts = tuple(machines.host_rows.values())
        policy = Policy(
            order="fcfs",
            backfill=draw.choice(["easy", "easy", "conservative", "none"]),
            window_margin_s=draw.choice([0.0, 2.0]),
        )
        usual = Trace(hosts, (), policy)
        windows: list[tuple[float, WindowRow]] = []
        for number in range(draw.randint(1, 3)):
            window = _window(draw, number, 0.0, usual)
            if conflict(window, [other for _, other in windows]) is None:
                windows.append((0.0, window))
        jobs = []
        for number in range(draw.randint(2, 7)):
            made = job(draw.choice([1, 4, 8]), hosts=draw.choice([1, 1, len(hosts)]), name=f"j{number}")
            made = made.of(draw.choice("ab"), draw.choice(["anna", "ben"])).arrived(number * 1e-3)
            limit = draw.choice([3.0, 10.0, 20.0, 40.0])
            row = replace(made.lasting(limit).row, grace_s=draw.choice([0.0, 2.0, 15.0]))
            if draw.random() < 0.25:
                asked = row.resources.model_copy(update={"reservation": f"w{draw.randint(0, len(windows) - 1)}"})
                row = replace(row, resources=asked)
            jobs.append(Arrival(row, limit))
        looks = tuple(at + 0.5 for at in range(0, 240, 2))
        return cls(hosts, tuple(jobs), policy, looks=looks, windows=tuple(windows))


def _window(draw: Random, number: int, made_at: float, trace: Trace) -> WindowRow:
    start = made_at + draw.choice([0.0, 5.0, 20.0, 50.0])
    duration = draw.choice([5.0, 20.0, 60.0])
    places = []
    for host in draw.sample(trace.hosts, draw.randint(1, len(trace.hosts))):
        gpus = [gpu.uuid for gpu in host.inventory.gpus]
        some = None if draw.random() < 0.6 else tuple(draw.sample(gpus, draw.choice([1, 4])))
        places.append(WindowPlace(host.name, some))
    maintenance = draw.random() < 0.3
    repeats = draw.random() < 0.3
    return WindowRow(
        f"w{number}",
        start,
        start + duration,
        tuple(places),
        maintenance,
        period_s=int(duration) + draw.choice([1, 20, 40]) if repeats else None,
        until=start + 150 if repeats else None,
        namespaces=() if maintenance else draw.choice([("a",), ("b",), ("a", "b")]),
        users=() if maintenance else draw.choice([(), ("anna",)]),
    )


@dataclass
class WindowWorld(World):
    """A world in which an operator makes windows, and the leader opens and closes them."""

    windows: dict[str, WindowRow] = field(default_factory=dict)
    known: dict[str, WindowRow] = field(default_factory=dict)
    placed: dict[str, Placement] = field(default_factory=dict)
    stopping: set[str] = field(default_factory=set)
    started_in_window: int = 0
    cleared: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        assert isinstance(self.trace, WindowTrace)
        for made_at, window in self.trace.windows:
            self.at_window(made_at, "made", window)

    def at_window(self, when: float, what: str, window: WindowRow) -> None:
        self.known[f"{window.name} {window.start}"] = window
        self.at(when, what, f"{window.name} {window.start}")

    def happens(self, what: str, whom: object) -> None:
        if what in ("made", "opens", "closes"):
            self.changes(what, self.known[str(whom)])
        else:
            super().happens(what, whom)

    def changes(self, what: str, window: WindowRow) -> None:
        if what == "opens":
            self.windows[window.name] = replace(window, is_open=True)
            self.at_window(window.end, "closes", window)
        elif what == "closes" or window.end <= self.now:
            following = window.following()
            self.windows.pop(window.name, None)
            if following is not None:
                self.changes("made", following)
                return
        else:
            self.windows[window.name] = window
            self.at_window(max(self.now, window.start), "opens", window)
        self.windows_changed_at = self.now
        self.scheduler.replace_windows(self.windows.values())

    def clear(self, decision: Decision) -> None:
        for one in decision.cleared:
            for name, attempt in one.victims:
                row = self.running[name]
                if row.attempt != attempt:
                    raise Violation(f"{name} is to be stopped, and attempt {attempt} does not run")
                self.stopping.add(name)
                self.cleared += 1
                self.at(self.now + row.grace_s, "stopped", row)

    def leaves(self, name: str) -> None:
        super().leaves(name)
        self.stopping.discard(name)
        self.placed.pop(name)

    def decide(self) -> None:
        super().decide()
        for window in self.windows.values():
            if window.is_open:
                for name, placement in self.placed.items():
                    row = self.running[name]
                    if _meets(window, placement) and not _may_run(window, row) and name not in self.stopping:
                        raise Violation(f"{name} runs in {window} at {self.now}")

    def check_idle(self) -> None:
        if not self.scheduler.promises:  # else it may wait for the end of a window, for somebody who was promised that
            super().check_idle()

    def check_reason(self, change: PromiseChange) -> None:
        if change.code is not WithdrawalCode.WINDOW:
            super().check_reason(change)
        elif not (self.windows or self.windows_changed_at >= change.given_at):
            raise Violation(f"there was no window at {self.now}: {change}")

    def starts(self, row: PlacementRequest, placement: Placement) -> None:
        asked, margin_s = row.resources.reservation, self.policy.window_margin_s
        end = math.inf if row.time_limit_s is None else self.now + row.time_limit_s
        gone = end + row.grace_s
        for window in self.windows.values():
            comes = window.is_open or gone > window.start - margin_s
            if asked != window.name and _meets(window, placement) and comes:
                raise Violation(f"{row.job_id} starts at {self.now} and may run until {end} or {gone}, in {window}")
        if asked is not None:
            window = self.windows.get(asked)
            if window is None or not window.is_open or end > window.end or not _may_run(window, row):
                raise Violation(f"{row.job_id} starts at {self.now} without its reservation {window}")
            if not _is_inside(window, placement):
                raise Violation(f"{row.job_id} starts outside of {window}: {placement.slices}")
            self.started_in_window += 1
        self.placed[row.job_id] = placement
        super().starts(row, placement)


def _may_run(window: WindowRow, row: PlacementRequest) -> bool:
    allowed = not window.maintenance and row.namespace in window.namespaces
    return allowed and row.resources.reservation == window.name and (not window.users or row.user in window.users)


def _meets(window: WindowRow, placement: Placement) -> bool:
    return any(
        place.host == part.host and (place.gpu_uuids is None or bool(set(place.gpu_uuids) & set(part.gpu_uuids)))
        for place in window.places
        for part in placement.slices
    )


def _is_inside(window: WindowRow, placement: Placement) -> bool:
    kept = {place.host: place.gpu_uuids for place in window.places}
    for part in placement.slices:
        if part.host not in kept:
            return False
        gpus = kept[part.host]
        if gpus is not None and not set(part.gpu_uuids) <= set(gpus):
            return False
    return True


def play_windows(seed: int, make: Callable[[Policy], Scheduler] = Scheduler) -> WindowWorld:
    """Run one world to its end."""
    world = WindowWorld(WindowTrace.with_windows(seed), make)
    world.play()
    return world


@dataclass
class ForeseenWorld(WindowWorld):
    """A world in which nothing happens that was not known at the beginning. What was told then can be compared."""

    estimates: dict[str, float | None] = field(default_factory=dict)
    """Job that had to wait at the beginning -> its estimated start."""
    asked: bool = False

    def decide(self) -> None:
        super().decide()
        if self.now < max(one.row.enqueued_at for one in self.trace.jobs) or self.asked:
            return
        self.asked = True
        for row in list(self.scheduler.queue):
            reason = self.scheduler.why(row.job_id, self.now)
            assert reason is not None
            self.estimates[row.job_id] = reason.estimated_start
            if reason.estimated_start is not None and not self.may_start(row, reason.estimated_start):
                raise Violation(f"{row.job_id} is told {reason.estimated_start}, in a window: {reason}")

    def may_start(self, row: PlacementRequest, at: float) -> bool:
        """Tell whether windows leave the job enough hosts then, if nobody else is there."""
        request, longest = row.resources, math.inf if row.time_limit_s is None else row.time_limit_s
        gone = at + longest + row.grace_s
        all_ = [one for _, window in self.trace.windows for one in islice(window.occurrences(), 20)]  # type: ignore[attr-defined]
        own = [one for one in all_ if one.name == request.reservation and one.start <= at and at + longest <= one.end]
        if request.reservation is not None and not any(_may_run(one, row) for one in own):
            return False
        out = [
            one
            for one in all_
            if one.name != request.reservation and at < one.end and gone > one.start - self.policy.window_margin_s
        ]
        able = 0
        for host in self.trace.hosts:
            uuids = {gpu.uuid for gpu in host.inventory.gpus}
            for window in own:
                kept = [place for place in window.places if place.host == host.name]
                uuids &= set().union(*(uuids if one.gpu_uuids is None else one.gpu_uuids for one in kept))
            for place in (place for window in out for place in window.places if place.host == host.name):
                uuids -= uuids if place.gpu_uuids is None else set(place.gpu_uuids)
            able += len(uuids) >= request.gpus_per_host
        return able >= request.hosts


def play_foreseen(seed: int, make: Callable[[Policy], Scheduler] = Scheduler) -> ForeseenWorld:
    """Run one world in which all is known at the beginning."""
    world = ForeseenWorld(WindowTrace.foreseen(seed), make)
    world.play()
    return world

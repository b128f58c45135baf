"""A small platform whose every step is chosen at random: what the reconciler is tried against.

The store is real, and so are the steps of workflows that touch it, the reconciler and the host's report. Temporal and
the ranks are dictionaries. At each point where the reconciler, or an activity, waits for somebody, a few steps of
others come in between. A workflow that was terminated or lost may still have one step under way.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from temporalio.exceptions import ApplicationError

from activities.admission import admit
from activities.cleanup import CleanupActivities
from activities.reservation import EndAttempt, ReservationActivities, ReserveRequest
from activities.takeover import TakeoverActivities
from gpu_platform.domain.contracts import AttemptKey, cleanup_id
from gpu_platform.domain.errors import IllegalTransition
from gpu_platform.domain.jobs.job import Interrupt, JobInput, JobProgress
from gpu_platform.domain.placing.reserved import Reserved
from gpu_platform.domain.states import GpuState, JobState
from gpu_platform.store import Store
from gpu_platform.store.hosts import gpus
from gpu_platform.store.jobs import jobs, queue
from gpu_platform.store.reservations import allocations
from gpu_platform.store.restoring import orphans
from gpu_platform.temporal.errors import WORKFLOW_IS_OLDER, workflow_is_older
from gpu_platform.temporal.job_workflows import CleanupInput, WorkflowLife, WorkflowView, cleanup_keys
from tests.support.store_cluster import NOW, Cluster, placement, set_job_state, spec
from workers.scheduler.reconciler import Reconciler

HOSTS = ("a", "b")
DEPTH = 3

Program = AsyncIterator[None]
"""One step of somebody, and then the next."""


class Hurt(AssertionError):
    """A healthy job was touched."""


@dataclass
class Workflow:
    program: Program | None
    """None: closed."""
    attempt: int = 0
    cancelled: bool = False
    ended: str = "completed"
    is_older: bool = False
    """The row knows more of the job."""
    unseen_until: float = 0.0
    """Until then Temporal answers that it knows no such workflow."""


@dataclass
class World:
    store: Store
    chance: random.Random
    now: float = 1000.0
    workflows: dict[str, Workflow] = field(default_factory=dict)
    programs: dict[str, Program] = field(default_factory=dict)
    """Cleanups, services, and workflows that are gone with their last step."""
    ranks: set[tuple[AttemptKey, str]] = field(default_factory=set)
    closed: set[tuple[AttemptKey, str]] = field(default_factory=set)
    submitted: list[str] = field(default_factory=list)
    excused: set[str] = field(default_factory=set)
    """Jobs that a person ended, or whose workflow was terminated: they need not complete."""
    looking: bool = True
    """Cleanups look first; else they end what they are told to, as they once did."""

    def __post_init__(self) -> None:
        self.reservation = ReservationActivities(self.store)
        self.cleanup = CleanupActivities(self.store, self, in_thread=self.in_thread)
        self.cluster = Cluster(self.store)
        self._running: set[int] = set()
        self._depth = 0
        for host in HOSTS:
            self.cluster.host(host, gpus=2)

    # ---- what others do meanwhile ----

    async def others(self, most: int = 3) -> None:
        if self._depth >= DEPTH:
            return
        self._depth += 1
        for _ in range(self.chance.randint(0, most)):
            await self.step()
        self._depth -= 1

    async def in_thread(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        await self.others()
        answer = call(*args, **kwargs)
        await self.others()
        return answer

    async def step(self) -> bool:
        """One step of one program. False: nobody has any left."""
        self.now += self.chance.choice([0.0, 0.0, 0.1, 1.0])
        programs = {job_id: w.program for job_id, w in self.workflows.items() if w.program is not None}
        programs |= self.programs
        ready = sorted(name for name, program in programs.items() if id(program) not in self._running)
        if not ready:
            return False
        name = self.chance.choice(ready)
        program = programs[name]
        self._running.add(id(program))
        try:
            await anext(program)
        except StopAsyncIteration:
            self._ended(name, program)
        finally:
            self._running.discard(id(program))
        return True

    def _ended(self, name: str, program: Program) -> None:
        if self.programs.get(name) is program:
            del self.programs[name]
        flow = self.workflows.get(name)
        if flow is not None and flow.program is program:
            flow.program = None

    # ---- Temporal, as the reconciler sees it ----

    async def look(self, job_id: str) -> WorkflowView:
        await self.others()
        flow = self.workflows.get(job_id)
        view = WorkflowView(WorkflowLife.UNKNOWN)
        if flow is not None and self.now >= flow.unseen_until:
            view = (
                WorkflowView(WorkflowLife.OPEN)
                if flow.program is not None
                else WorkflowView(WorkflowLife.CLOSED, flow.ended)
            )
        await self.others()
        return view

    async def start(self, given: JobInput) -> bool:
        await self.others()
        started = self.start_now(given)
        await self.others()
        return started

    async def clean_up(self, given: CleanupInput) -> bool:
        await self.others()
        return self.clean_up_now(given)

    async def kill(self, job_id: str, request: Interrupt) -> None:
        if (flow := self.workflows.get(job_id)) is not None:
            flow.cancelled = True

    def start_now(self, given: JobInput, *, cancelled: bool = False) -> bool:
        if given.job_id in self.workflows:
            return False
        flow = Workflow(None, cancelled=cancelled, unseen_until=self.now + self.chance.choice([0, 0, 0, 2, 30]))
        flow.program = self._job(flow, given)
        self.workflows[given.job_id] = flow
        return True

    def clean_up_now(self, given: CleanupInput) -> bool:
        name = cleanup_id(given.key)
        if name in self.programs:
            return False
        self.programs[name] = self._cleanup(given)
        return True

    # ---- what people and accidents do ----

    def submit(self) -> None:
        job_id = f"j{len(self.submitted)}"
        self.submitted.append(job_id)
        jobs.submit_job(self.store, job_id, spec(), actor="ada", now=NOW, idempotency_key=None)
        if self.chance.random() < 0.85:  # else the service dies here
            self.programs[f"service-{job_id}"] = self._service(job_id)

    def terminate(self) -> None:
        if flow := self._some_open():
            job_id, workflow = flow
            self.excused.add(job_id)
            self._last_step(job_id, workflow)
            workflow.program, workflow.ended = None, "terminated"

    def lose(self) -> None:
        """Temporal forgets the workflow."""
        if flow := self._some_open():
            job_id, workflow = flow
            self._last_step(job_id, workflow)
            del self.workflows[job_id]

    def cancel(self) -> None:
        """As the service does it: by signal, else by beginning it again with the signal, else by a cleanup."""
        live = sorted(orphans.live_jobs(self.store))
        if not live:
            return
        job = jobs.get_job(self.store, self.chance.choice(live))
        self.excused.add(job.id)
        flow = self.workflows.get(job.id)
        if flow is not None and flow.program is not None:
            flow.cancelled = True
        elif not self.start_now(JobInput(job_id=job.id, spec=job.spec, takes_over=True), cancelled=True):
            for key in cleanup_keys(job.id, job.attempt, orphans.held_of_job(self.store, job.id)):
                self.clean_up_now(CleanupInput(key=key, message="cancelled", state=JobState.CANCELLED, actor="ada"))

    def write_over(self) -> None:
        """Somebody writes by hand: the row of a job that runs says FAILED, and GPUs are still held."""
        running = [key.job_id for key in allocations.held_attempts(self.store)]
        live = sorted(set(running) & set(orphans.live_jobs(self.store)))
        if live:
            job_id = self.chance.choice(live)
            self.excused.add(job_id)
            set_job_state(self.store, job_id, JobState.FAILED, now=NOW, actor="somebody")
            flow = self.workflows.get(job_id)
            if flow is not None and id(flow.program) not in self._running:
                flow.program = None

    def report(self) -> None:
        host = self.chance.choice(HOSTS)
        there = sorted({key for key, at in self.ranks if at == host}, key=str)
        for key in self.cluster.report(host, gpus=2, attempts=there).kill:
            self._stop(key, host, by="the answer to a report")

    def _some_open(self) -> tuple[str, Workflow] | None:
        started = sorted(name for name, flow in self.workflows.items() if flow.program is not None)
        idle = [name for name in started if id(self.workflows[name].program) not in self._running]
        return (name := self.chance.choice(idle), self.workflows[name]) if idle else None

    def _last_step(self, job_id: str, flow: Workflow) -> None:
        if self.chance.random() < 0.5 and flow.program is not None:
            self.programs[f"gone-{job_id}-{self.now}"] = _only_next(flow.program)

    # ---- the programs ----

    async def _service(self, job_id: str) -> Program:
        yield
        self.start_now(JobInput(job_id=job_id, spec=jobs.get_job(self.store, job_id).spec))

    async def _job(self, flow: Workflow, given: JobInput) -> Program:
        takes_over, flow.is_older = given.takes_over, True
        while flow.is_older:
            flow.is_older = False
            async for _ in self._from_its_row(flow, given.job_id, takes_over=takes_over):
                yield
            takes_over = True

    async def _from_its_row(self, flow: Workflow, job_id: str, *, takes_over: bool) -> Program:
        pending = True
        if takes_over:
            found = TakeoverActivities(self.store).take_over(job_id)
            pending = found.state is JobState.PENDING
            yield
            if found.state.is_terminal:
                return
            if found.placement is not None:
                key = AttemptKey(job_id=job_id, attempt=found.progress.attempt)
                for host in found.placement.hosts:
                    self._stop(key, host, by="itself")
                    yield
                self._end(key, JobState.CANCELLED if flow.cancelled else JobState.QUEUED)
                yield
            flow.attempt = found.closed_attempt
        if pending:
            admit(self.store, job_id)
            yield
        async for _ in self._attempts(flow, job_id):
            yield

    async def _attempts(self, flow: Workflow, job_id: str) -> Program:
        flow.attempt += 1
        key = AttemptKey(job_id=job_id, attempt=flow.attempt)
        taken: list[str] = []
        ending = JobState.FAILED
        try:
            while not taken and not flow.cancelled:
                self._ask(key)
                if plan := self._place():
                    request = ReserveRequest(key=key, placement=placement(plan))
                    if isinstance(self.reservation.reserve_gang(request), Reserved):
                        taken = list(plan)
                yield
            for host in taken:
                self._launch(flow, key, host)
                yield
            if not flow.cancelled:
                self.reservation.mark_running(key)
            for _ in range(self.chance.randint(0, 6)):
                if not flow.cancelled:
                    yield
                    self._check_ranks(flow, key, taken)
            ending = JobState.CANCELLED if flow.cancelled else JobState.COMPLETED
        except ApplicationError as error:
            # The row is not ours any more: everything is undone, and what it says is believed.
            flow.is_older = error.type == WORKFLOW_IS_OLDER
        for host in taken:
            self._stop(key, host, by="itself")
            yield
        if not flow.is_older:
            self._end(key, ending)

    def _ask(self, key: AttemptKey) -> None:
        """As ``place_gang`` does."""
        try:
            nothing = {"task_token": b"t", "excluded_gpus": (), "excluded_hosts": ()}
            queue.enqueue(self.store, key.job_id, key.attempt, now=NOW, **nothing)
        except IllegalTransition as error:
            raise workflow_is_older(key) from error

    async def _cleanup(self, given: CleanupInput) -> Program:
        key = given.key
        hosts = [host for one in orphans.held_of_job(self.store, key.job_id) if one.key == key for host in one.hosts]
        yield
        if self.looking:
            found = await self.cleanup.find_orphan(key)
            if found.driven:
                return
            hosts = found.hosts
        for host in hosts:
            self._stop(key, host, by="a cleanup")
            yield
        if self.looking:
            await self.cleanup.end_orphan(given)
        else:
            self._end(key, JobState.FAILED)

    def _place(self) -> dict[str, list[int]]:
        free = [gpu for gpu in gpus.list_gpus(self.store) if gpu.state is GpuState.AVAILABLE]
        plan: dict[str, list[int]] = {}
        for gpu in self.chance.sample(free, min(len(free), self.chance.randint(1, 2))):
            plan.setdefault(gpu.host, []).append(gpu.info.index)
        return plan

    def _launch(self, flow: Workflow, key: AttemptKey, host: str) -> None:
        if (key, host) in self.closed:
            raise ApplicationError("closed")
        if self._healthy(flow, key):
            held = [one.hosts for one in orphans.held_of_job(self.store, key.job_id) if one.key == key]
            assert [host in hosts for hosts in held] == [True], f"{key} starts ranks on {host}, where it holds nothing"
        self.ranks.add((key, host))

    def _check_ranks(self, flow: Workflow, key: AttemptKey, hosts: list[str]) -> None:
        if self._healthy(flow, key) and any((key, host) not in self.ranks for host in hosts):
            raise Hurt(f"ranks of {key} were stopped under its workflow")

    def _healthy(self, flow: Workflow, key: AttemptKey) -> bool:
        return self.workflows.get(key.job_id) is flow and flow.program is not None and not flow.cancelled

    def _stop(self, key: AttemptKey, host: str, by: str) -> None:
        flow = self.workflows.get(key.job_id)
        driven = flow is not None and flow.program is not None and flow.attempt == key.attempt and not flow.cancelled
        if by != "itself" and driven and allocations.is_held(self.store, key):
            raise Hurt(f"{by} stops {key} on {host} under its workflow")
        self.closed.add((key, host))
        self.ranks.discard((key, host))

    def _end(self, key: AttemptKey, state: JobState) -> None:
        self.reservation.end_attempt(EndAttempt(key=key, state=state, progress=JobProgress(attempt=key.attempt)))

    # ---- a life ----

    async def live(self, reconciler: Reconciler, turns: int = 60) -> None:
        """Trouble for a while, then peace; :class:`AssertionError` if a promise was broken."""
        for _ in range(turns):
            draw = self.chance.random()
            if draw < 0.10 and len(self.submitted) < 6:
                self.submit()
            elif draw < 0.14:
                self.terminate()
            elif draw < 0.18:
                self.lose()
            elif draw < 0.21:
                self.cancel()
            elif draw < 0.23:
                self.write_over()
            elif draw < 0.30:
                self.report()
            elif draw < 0.45:
                await reconciler.sweep()
                self.now += 5
            else:
                await self.others(6)
        await self._settle(reconciler)
        self._check_end()

    async def _settle(self, reconciler: Reconciler) -> None:
        for _ in range(60):
            for _ in range(100):
                await self.step()
            for _ in range(4):
                self.report()
            if not (orphans.live_jobs(self.store) or allocations.held_attempts(self.store) or self.ranks):
                return
            await reconciler.sweep()
            self.now += 5

    def _check_end(self) -> None:
        assert not self.ranks, f"ranks run for ever: {self.ranks}"
        assert not allocations.held_attempts(self.store), "GPUs are leaked"
        for job_id in self.submitted:
            job = jobs.get_job(self.store, job_id)
            assert job.state.is_terminal, f"{job_id} stays {job.state}"
            if job_id not in self.excused and job.state is not JobState.COMPLETED:
                raise Hurt(f"{job_id} is {job.state} although nobody ended it: {job.failure}")


async def _only_next(program: Program) -> Program:
    try:
        await anext(program)
    except StopAsyncIteration:
        return
    return
    yield

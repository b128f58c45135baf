"""What kills control workers again and again is set aside, and everything else goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.worker import Worker

from gpu_platform.node.isolation.cgroups.cgroup import Cgroup, find_hierarchies
from gpu_platform.node.isolation.cgroups.cgroup_limits import Limits, apply_limits
from gpu_platform.store import Store, events
from gpu_platform.store.poison import SET_ASIDE_AFTER, Poison, WorkflowStep, forget, note_deaths, read_poison
from tests.support.temporal_server import temporal_server
from tests.support.waiting import eventually
from workers.poison import GuardedRunner, Journal, PoisonGuard, left_behind
from workflows.sandbox import workflow_runner
from workflows.steps import database_step

AT = datetime(2026, 1, 1, tzinfo=UTC)


def test_only_what_was_under_way_in_a_process_that_died_is_suspect(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
import sys, time
from gpu_platform.store.poison import WorkflowStep
from workers.poison import Journal
journal = Journal(Path({str(tmp_path)!r}) / "notes")
with journal.under_way(WorkflowStep("j-done", "place")):
    pass
with journal.under_way(WorkflowStep("j-first", "place")), journal.under_way(WorkflowStep("p-second", "advance")):
    print("ready", flush=True)
    time.sleep(60)
"""
    directory = tmp_path / "notes"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        own = Journal(directory)
        assert left_behind(directory) == [], "both live"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert sorted(left_behind(directory)) == [WorkflowStep("j-first", "place"), WorkflowStep("p-second", "advance")]
    assert left_behind(directory) == [], "each is told once"
    own.close()
    assert not any(directory.iterdir())


def test_a_long_name_and_too_many_steps_are_run_all_the_same(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "notes")
    with ThreadPoolExecutor(8) as pool:

        def run(number: int) -> int:
            with journal.under_way(WorkflowStep("x" * 1000, str(number))):
                return number

        assert sorted(pool.map(run, range(2000))) == [*range(2000)]
    journal.close()


def test_a_step_is_set_aside_after_some_deaths_and_said_so(store: Store) -> None:
    step = WorkflowStep("j-1jrp3k2h0x4t7za", "advance")
    other = WorkflowStep("j-2jrp3k2h0x4t7za", "advance")
    for number in range(SET_ASIDE_AFTER + 1):
        note_deaths(store, [step, *([other] if number == 0 else [])], AT + timedelta(minutes=number))
    found = read_poison(store)
    assert found[other].set_aside_until is None
    assert found[step] == Poison(SET_ASIDE_AFTER + 1, AT + timedelta(minutes=SET_ASIDE_AFTER))
    waits = [Poison(deaths, AT).set_aside_until for deaths in range(1, 12)]
    assert waits[:5] == [None, None, *(AT + timedelta(seconds=wait_s) for wait_s in (60, 240, 960))]
    assert waits[-1] == AT + timedelta(hours=1)
    said = [event for event in events.read_events(store, 0) if event.kind == "step.set_aside"]
    assert [(event.job_id, event.data["deaths"]) for event in said] == [(step.workflow_id, 3), (step.workflow_id, 4)]
    forget(store, step)
    assert set(read_poison(store)) == {other}
    note_deaths(store, [step], AT + timedelta(days=30))
    assert set(read_poison(store)) == {step}, "old ones are forgotten"


MEMORY_MIB = 400
"""What a worker has; it needs less than half of it."""


class Steps:
    def __init__(self, state_dir: Path) -> None:
        self._tries = state_dir / "tries"

    @activity.defn
    async def work(self, name: str) -> str:
        if name == "deadly":
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "greedy":
            return str(len(b"x" * (2 * MEMORY_MIB << 20)))  # the kernel kills it: it is out of memory
        if name == "twice":
            with self._tries.open("a") as file:
                file.write("x")
            if self._tries.stat().st_size <= 2:
                return str(len(b"x" * (2 * MEMORY_MIB << 20)))
        return name


def cgroup_of(pid: int) -> Cgroup:
    return Cgroup(find_hierarchies(), f"gpu-platform-test-{pid}")


def confine() -> None:
    """This process has so much memory as a container has that runs a worker."""
    cgroup = cgroup_of(os.getpid())
    cgroup.create()
    apply_limits(cgroup, Limits(memory_bytes=MEMORY_MIB << 20))
    cgroup.enter()


def can_confine() -> bool:
    found = find_hierarchies()
    return os.geteuid() == 0 and (found.unified is not None or "memory" in found.v1)


@workflow.defn
class OneStep:
    @workflow.run
    async def run(self, name: str) -> str:
        return await database_step(Steps.work, name, summary="work")


async def run_worker(address: str, namespace: str, database_url: str, state_dir: str) -> None:
    """As the control worker does, until it is killed."""
    if can_confine():
        confine()
    client, store = await Client.connect(address, namespace=namespace), Store(database_url)
    guard = PoisonGuard.begin(store, Path(state_dir))
    async with Worker(
        client,
        task_queue="control",
        workflows=[OneStep],
        activities=[Steps(Path(state_dir)).work],
        interceptors=[guard],
        workflow_runner=GuardedRunner(workflow_runner(), guard),
    ):
        await guard.keep_looking()


class Restarted:
    """A worker that is started again whenever it dies, as systemd does."""

    def __init__(self, *arguments: str) -> None:
        self._code = f"import asyncio, tests.integration.test_poison as t; asyncio.run(t.run_worker(*{arguments!r}))"
        self.deaths = -1
        self.look()

    def look(self) -> None:
        if self.deaths < 0 or self._process.poll() is not None:
            self._clear_up()
            self.deaths += 1
            self._process = subprocess.Popen([sys.executable, "-c", self._code])

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._clear_up()

    def _clear_up(self) -> None:
        if self.deaths >= 0 and can_confine():
            cgroup_of(self._process.pid).remove()


@pytest.fixture
def worker_of(request: pytest.FixtureRequest) -> Iterator[list[Restarted]]:
    made: list[Restarted] = []
    yield made
    for one in made:
        one.end()


def begun(client: Client, directory: Path, worker_of: list[Restarted]) -> Restarted:
    """A worker on the store of the test."""
    address = client.service_client.config.target_host
    worker = Restarted(address, client.namespace, f"sqlite:///{directory / 'platform.db'}", str(directory))
    worker_of.append(worker)
    return worker


@pytest.mark.some(1)
@pytest.mark.parametrize("how", ["deadly", "greedy"])
async def test_what_kills_its_worker_is_set_aside_and_the_others_go_on(
    sqlite_store: Store, tmp_path: Path, worker_of: list[Restarted], how: str
) -> None:
    if how == "greedy" and not can_confine():
        pytest.skip("needs root and a cgroup for memory")
    async with temporal_server() as client:
        worker = begun(client, tmp_path, worker_of)
        start = client.start_workflow
        deadly = await start(OneStep.run, how, id="deadly", task_queue="control")
        others = [await start(OneStep.run, f"w{n}", id=f"w{n}", task_queue="control") for n in range(20)]

        async def is_set_aside() -> bool:
            worker.look()
            known = await asyncio.to_thread(read_poison, sqlite_store)
            return any(step.workflow_id == "deadly" and one.set_aside_until for step, one in known.items())

        await eventually(is_set_aside, within_s=120)
        worker.look()
        others += [await start(OneStep.run, f"v{n}", id=f"v{n}", task_queue="control") for n in range(20)]
        ended = await asyncio.wait_for(asyncio.gather(*[one.result() for one in others]), 60)
        assert len(ended) == 40
        deaths = worker.deaths
        assert deaths <= SET_ASIDE_AFTER + 1, "each death is one of the deadly step"
        await asyncio.sleep(1.0)
        worker.look()
        assert worker.deaths == deaths, "it is not tried again"
        assert (await deadly.describe()).status is WorkflowExecutionStatus.RUNNING, "it waits"
        innocent = {step for step in await asyncio.to_thread(read_poison, sqlite_store) if step.workflow_id != "deadly"}
        assert innocent == set(), "what only happened to be under way was cleared"


@pytest.mark.long
async def test_what_kills_its_worker_twice_for_want_of_memory_goes_on_by_itself(
    sqlite_store: Store, tmp_path: Path, worker_of: list[Restarted]
) -> None:
    """Nothing is set aside, and what was under way beside it runs again, too."""
    if not can_confine():
        pytest.skip("needs root and a cgroup for memory")
    async with temporal_server() as client:
        worker = begun(client, tmp_path, worker_of)
        start = client.start_workflow
        started = [await start(OneStep.run, "twice", id="twice", task_queue="control")]
        started += [await start(OneStep.run, f"w{n}", id=f"w{n}", task_queue="control") for n in range(20)]
        ended = asyncio.gather(*[one.result() for one in started])

        def all_ended() -> bool:
            worker.look()
            return ended.done()

        await eventually(all_ended, "all to end", within_s=120)
        assert len(ended.result()) == 21
        assert worker.deaths == 2
        assert await asyncio.to_thread(read_poison, sqlite_store) == {}
        assert not [one for one in events.read_events(sqlite_store, 0) if one.kind == "step.set_aside"]

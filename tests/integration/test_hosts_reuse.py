"""A supervisor takes one rank after the other: what it keeps, what it must not keep, and when it takes no more."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.node.isolation.orders import RankOrder
from gpu_platform.node.processes import spawner as spawner_module
from gpu_platform.node.processes.environment import marker
from gpu_platform.node.processes.spawner_client import SpawnerClient
from gpu_platform.node.system import paths, records
from gpu_platform.node.system.process_tree import boot_id, read_stat
from tests.integration.test_hosts_survival import NodeWorkerProcess
from tests.support.hosts_rig import HostRig, is_running, kill
from tests.support.waiting import eventually

LOOK = """
import json, os, resource, signal
print(json.dumps({
    "env": sorted(os.environ),
    "cwd": os.getcwd(),
    "umask": os.umask(0),
    "signals": [line for line in open("/proc/self/status") if line.startswith(("SigP", "SigB", "SigI", "SigC", "Shd"))],
    "files": sorted(f"{fd} {os.readlink(f'/proc/self/fd/{fd}').split(':')[0]}" for fd in (0, 1, 2)),
    "more_files": len(os.listdir("/proc/self/fd")),
    "limits": [resource.getrlimit(number) for number in range(16)],
    "cpus": sorted(os.sched_getaffinity(0)),
    "leads": os.getsid(0) == os.getpid(),
    "priority": os.getpriority(os.PRIO_PROCESS, 0),
}))
"""
"""Prints all that a program inherits."""
PYTHON = ("/usr/bin/env", "python3", "-c")


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[HostRig]:
    rig = HostRig(tmp_path / "state")
    yield rig
    await rig.aclose()


@pytest.fixture
def spawner() -> Iterator[SpawnerClient]:
    client = SpawnerClient()
    yield client
    client.close()


def supervisor_of(host: HostRig, plan: HostPlan) -> int:
    record = records.read_record(str(paths.rank_dir(host.home, plan.key, 0) / records.LOCK))
    assert record is not None
    return record["pid"]


async def run(host: HostRig, *command: str, **options: object) -> HostPlan:
    """Run a rank to its end. Its supervisor is idle then, or on the way there."""
    plan = host.plan(*command, **options)  # type: ignore[arg-type]
    await asyncio.to_thread(host.launch, plan)
    await host.watch(plan)
    return plan


async def follow(host: HostRig, before: HostPlan, *command: str, **options: object) -> HostPlan:
    """Run a rank under the supervisor that ``before`` had."""
    wanted = supervisor_of(host, before)
    for _ in range(50):  # the order may come before the supervisor has said that it is idle
        plan = await run(host, *command, **options)
        if supervisor_of(host, plan) == wanted:
            return plan
        kill(supervisor_of(host, plan))  # the one that became idle last is taken first, so it would be taken again
    raise AssertionError("the supervisor took no other rank")


def order(tmp_path: Path, name: str, *argv: str, **changes: object) -> RankOrder:
    attempt = tmp_path / name
    return RankOrder(
        rank_dir=str(attempt / "rank-0"),
        attempt_dir=str(attempt),
        argv=list(argv),
        env={"PATH": os.defpath},
        workdir=None,
        host="box",
        log_file_bytes=1 << 20,
        log_files=2,
    )._replace(**changes)  # type: ignore[arg-type]


async def test_a_rank_inherits_nothing_of_the_rank_before_it(host: HostRig, tmp_path: Path) -> None:
    first = await run(host, *PYTHON, LOOK)
    workdir = tmp_path / "workdir"
    workdir.mkdir()
    spoil = "import os, signal; signal.signal(signal.SIGUSR1, signal.SIG_IGN); os.umask(0o77); os.nice(5); print(1)"
    other = await follow(host, first, *PYTHON, spoil, env={"OTHERS_TOKEN": "hunter2"}, workdir=str(workdir))
    second = await follow(host, other, *PYTHON, LOOK)
    fresh, used = json.loads(host.log(first)), json.loads(host.log(second))
    assert used == fresh
    assert used["leads"]
    assert "OTHERS_TOKEN" not in used["env"]
    assert used["cwd"] == "/" or used["cwd"] == os.environ["HOME"]
    supervisor = supervisor_of(host, second)
    assert Path(f"/proc/{supervisor}/environ").read_bytes() == b""
    opened = [os.readlink(f"/proc/{supervisor}/fd/{fd}") for fd in os.listdir(f"/proc/{supervisor}/fd")]
    page, channel = "/memfd:gpu-platform-page (deleted)", [name for name in opened if name.startswith("socket:")]
    assert sorted(opened) == ["/dev/null", "/dev/null", "/dev/null", page, *channel]


async def test_each_rank_has_its_own_usage(host: HostRig) -> None:
    burn = "x = bytearray(200 << 20); sum(i * i for i in range(2_000_000))"
    first = await run(host, *PYTHON, burn)
    second = await follow(host, first, "true")
    big, small = (host.worker.local.rank(plan.key, 0).used for plan in (first, second))
    assert big is not None
    assert small is not None
    assert big["peak_memory_mib"] > 200
    assert big["cpu_s"] > small["cpu_s"]
    assert small["peak_memory_mib"] < 100
    assert small["cpu_s"] < big["cpu_s"] / 2
    assert host.worker.local.rank(second.key, 0).reaped_cpu_s >= big["cpu_s"] * 0.9


async def test_an_attempt_that_has_ended_has_no_process_of_the_next_one(host: HostRig) -> None:
    first = await run(host, "true")
    second = host.plan("sleep", "600")
    for _ in range(50):
        pid = (await asyncio.to_thread(host.launch, second)).ranks[0].pid
        if supervisor_of(host, second) == supervisor_of(host, first):
            break
        await host.stop(second.key)
        first, second = await run(host, "true"), host.plan("sleep", "600")
    assert host.processes(first.key) == {}
    assert list(host.processes(second.key).values()) == [pid]
    assert (await host.stop(first.key)).killed_processes == 0
    assert is_running(pid)
    assert is_running(supervisor_of(host, second))


async def test_the_supervisor_of_a_stopped_rank_ends(host: HostRig) -> None:
    plan = host.plan("sleep", "600")
    await asyncio.to_thread(host.launch, plan)
    supervisor = supervisor_of(host, plan)
    await host.stop(plan.key)
    await eventually(lambda: not is_running(supervisor), "its end", within_s=2)


async def test_a_supervisor_that_had_to_kill_leftovers_ends(host: HostRig) -> None:
    plan = await run(host, "sh", "-c", "setsid sleep 600 & echo $!")
    await eventually(lambda: not is_running(supervisor_of(host, plan)), "its end", within_s=2)
    assert not is_running(int(host.log(plan)))


async def test_a_rank_with_secrets_has_a_supervisor_of_its_own(spawner: SpawnerClient, tmp_path: Path) -> None:
    file = tmp_path / "environ"
    file.write_text(json.dumps({"TOKEN": "hunter2"}))
    [answer] = spawner.start_ranks([order(tmp_path, "one", "sh", "-c", "echo $TOKEN", secrets=str(file))])
    assert answer["status"] == "started"
    owner = records.read_record(f"{tmp_path}/one/rank-0/{records.LOCK}")
    assert owner is not None
    await eventually(lambda: not is_running(owner["pid"]), "its end", within_s=2)
    assert Path(f"{tmp_path}/one/rank-0/{records.LOG}").read_text() == "hunter2\n"


async def test_idle_supervisors_end_with_a_killed_node_worker(host: HostRig) -> None:
    plan = host.plan("true")
    worker = await asyncio.to_thread(NodeWorkerProcess, host.settings.state_dir, plan)
    supervisor = supervisor_of(host, plan)
    await eventually(lambda: not host.worker.local.rank(plan.key, 0).is_locked, "the end of the rank")
    assert is_running(supervisor)
    worker.kill()
    await eventually(lambda: not is_running(supervisor) and not is_running(worker.spawner), "their end", within_s=2)
    host.restart()
    assert (await host.watch(plan)).exits[0].exit_code == 0


async def test_idle_supervisors_end_with_a_killed_spawner_and_working_ones_do_not(host: HostRig) -> None:
    working = host.plan("sleep", "600")
    pid = (await asyncio.to_thread(host.launch, working)).ranks[0].pid
    idle = await run(host, "true")
    kill(host.worker._launcher.spawner.pid)
    await eventually(lambda: not is_running(supervisor_of(host, idle)), "its end", within_s=2)
    assert is_running(pid)
    assert is_running(supervisor_of(host, working))
    after = await run(host, "true")
    assert host.worker.local.rank(after.key, 0).exit_now().exit_code == 0


async def test_an_idle_supervisor_that_is_killed_costs_no_rank(host: HostRig) -> None:
    for _ in range(10):
        kill(supervisor_of(host, await run(host, "true")))
        plan = await run(host, "echo", "ran")
        assert host.worker.local.rank(plan.key, 0).exit_now().exit_code == 0
        assert host.log(plan) == "ran\n"


async def test_few_supervisors_wait_and_not_for_long(host: HostRig, tmp_path: Path) -> None:
    loop = f"while [ ! -e {tmp_path / 'go'} ]; do sleep 0.05; done"
    plans = [host.plan("sh", "-c", loop) for _ in range(spawner_module.MAX_IDLE + 8)]
    await asyncio.gather(*[asyncio.to_thread(host.launch, plan) for plan in plans])
    (tmp_path / "go").touch()
    await asyncio.gather(*[host.watch(plan) for plan in plans])
    pids = {supervisor_of(host, plan) for plan in plans}
    assert len(pids) == len(plans)
    await eventually(lambda: 0 < sum(map(is_running, pids)) <= spawner_module.MAX_IDLE, "a few to be left", within_s=4)
    await eventually(lambda: not any(map(is_running, pids)), "all to end", within_s=spawner_module.IDLE_S + 5)


async def test_a_supervisor_killed_just_before_the_spawn_leaves_a_rank_that_never_starts(
    spawner: SpawnerClient, tmp_path: Path
) -> None:
    """It waits for its secrets, which are a pipe here, between the first write of its record and the spawn."""
    secrets = tmp_path / "secrets"
    os.mkfifo(secrets)
    wanted = order(tmp_path, "one", "touch", str(tmp_path / "ran"), secrets=str(secrets))
    started = Path(wanted.rank_dir) / records.STARTED
    starting = asyncio.create_task(asyncio.to_thread(spawner.start_ranks, [wanted]))
    record = await eventually(lambda: records.read_record(str(started)), "the first write")
    assert record["pid_known"] is False
    kill(record["pid"])
    assert await starting == [{"status": "taken"}]
    assert spawner.start_ranks([wanted]) == [{"status": "taken"}]
    assert records.read_record(str(started)) == record
    assert not (tmp_path / "ran").exists()


async def test_a_rank_whose_pid_was_not_written_is_found_by_its_environment(host: HostRig) -> None:
    """As after a SIGKILL of its supervisor between the spawn and the second write."""
    plan = host.plan("sleep", "600")
    await asyncio.to_thread(host.worker.prepare, plan)
    directory = paths.rank_dir(host.home, plan.key, 0)
    directory.mkdir(0o700)
    rank = await asyncio.create_subprocess_exec("sleep", "600", env=marker(host.home, plan.key), start_new_session=True)
    supervisor = await asyncio.create_subprocess_exec("sleep", "600")
    stat = read_stat(supervisor.pid)
    assert stat is not None
    supervisor.kill()
    await supervisor.wait()
    record = {**stat.process._asdict(), "boot_id": boot_id(), "started_at_ms": 1}
    with records.StartRecord(str(directory / records.STARTED), record):
        pass
    launched = await asyncio.to_thread(host.launch, plan)
    assert [one.pid for one in launched.ranks] == [supervisor.pid]  # and nothing was started
    assert host.worker.local.rank(plan.key, 0).main_process is None
    exits = await host.watch(plan)
    assert exits.first_failure is not None
    assert exits.first_failure.vanished
    assert (await host.stop(plan.key)).killed_processes == 1
    assert await rank.wait() == -signal.SIGKILL


async def test_a_rank_that_writes_nothing_has_an_empty_log(host: HostRig) -> None:
    plan = await run(host, "true")
    assert host.log(plan) == ""
    await host.stop(plan.key)
    host.worker.forget(plan.key)
    assert host.log(plan) == ""
    with pytest.raises(FileNotFoundError):
        host.log(host.plan("true"))

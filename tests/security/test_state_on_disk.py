"""What other accounts find of the platform on disk: nothing. What they could write, nobody believes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_platform.domain.errors import CannotStart, HostUnavailable
from gpu_platform.domain.jobs.attempt import HostPlan, Program
from gpu_platform.node.isolation.accounts import account_of
from gpu_platform.node.system import records
from gpu_platform.node.system.paths import attempt_dir, rank_dir
from gpu_platform.node.system.process_tree import read_stat
from gpu_platform.node.system.records import UntrustedRecord, read_record
from gpu_platform.state_dir import keep_private
from tests.integration.test_hosts_exec import ExecRig
from tests.security.attacks import attack
from tests.support.hosts_rig import HostRig
from tests.support.waiting import eventually

SECRET = "hunter2-hunter2"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has other accounts' rights to try")


@pytest.fixture
def private_umask() -> Any:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
async def plain(tmp_path: Path, private_umask: None) -> AsyncIterator[HostRig]:
    keep_private(tmp_path / "state", make=True)
    rig = HostRig(tmp_path / "state")
    yield rig
    await rig.aclose()


@pytest.fixture
async def jailed(tmp_path: Path, jails: None) -> AsyncIterator[ExecRig]:
    rig = HostRig(tmp_path / "state", isolation="required")
    found = ExecRig(rig)
    yield found
    await rig.aclose()
    found.sessions.close()


def open_to_others(directory: Path) -> list[str]:
    """Files below the directory that another account could read, and directories that it could enter."""
    everything = [directory, *directory.rglob("*")]
    return [f"{path} {path.lstat().st_mode:o}" for path in everything if not path.is_symlink() and _is_open(path)]


def _is_open(path: Path) -> bool:
    return bool(stat.S_IMODE(path.lstat().st_mode) & 0o077)


async def test_all_that_a_host_writes_is_its_own(plain: HostRig, tmp_path: Path) -> None:
    plan = plain.plan("sh", "-c", "echo out; sleep 600", env={"TOKEN": SECRET})
    plain.launch(plan)
    await eventually(lambda: plain.log(plan), "its output")
    found = [line for line in open_to_others(tmp_path / "state") if "/checkpoints" not in line]
    assert found == []


def nobody_finds(text: str, directory: Path) -> str:
    """What the account ``nobody`` reads of files with this text."""
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "grep", "-rs", text, str(directory)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@as_root
async def test_another_account_reads_neither_logs_nor_records_nor_databases(private_umask: None) -> None:
    place = Path(tempfile.mkdtemp(prefix="state-"))
    place.chmod(0o755)
    state = place / "state"
    keep_private(state, make=True)
    rig = HostRig(state)
    try:
        (state / "platform.db").write_text(SECRET)
        plan = rig.plan("sh", "-c", f"echo {SECRET}", env={"TOKEN": SECRET})
        rig.launch(plan)
        await rig.watch(plan)
        assert await asyncio.to_thread(nobody_finds, SECRET, state) == ""
        for path in (state, *state.rglob("*")):
            path.chmod(0o755)
        found = await asyncio.to_thread(nobody_finds, SECRET, state)
        assert "platform.db" in found, "this test would see what is open"
        assert records.LOG in found
    finally:
        await rig.aclose()
        shutil.rmtree(place)


def test_what_somebody_left_open_is_closed_at_the_start(tmp_path: Path, private_umask: None) -> None:
    state = tmp_path / "state"
    (state / "nodes" / "a").mkdir(parents=True)
    (state / "checkpoints").mkdir()
    for name in ("platform.db", "temporal.db"):
        (state / name).write_text("x")
    state.chmod(0o777)
    keep_private(state)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (state, *state.iterdir())}
    assert modes == {"state": 0o700, "nodes": 0o700, "checkpoints": 0o755, "platform.db": 0o600, "temporal.db": 0o600}
    (state / "new").touch()
    assert stat.S_IMODE((state / "new").stat().st_mode) == 0o600


def test_a_directory_that_all_accounts_share_is_no_state_directory(tmp_path: Path, private_umask: None) -> None:
    tmp_path.chmod(0o1777)
    with pytest.raises(CannotStart, match="is shared by all accounts"):
        keep_private(tmp_path)
    tmp_path.chmod(0o700)


async def test_a_plan_on_disk_has_no_environment_and_nothing_has_one_after_the_end(plain: HostRig) -> None:
    group = {"workers": Program(command=["sleep", "600"], env={"TOKEN": SECRET})}
    plan = plain.plan("sleep", "600", env={"TOKEN": SECRET}, groups=group)
    plan = plan.model_copy(update={"ranks": [one.model_copy(update={"group": "workers"}) for one in plan.ranks]})
    plain.launch(plan)
    directory = attempt_dir(plain.home, plan.key)
    assert SECRET not in (directory / records.PLAN).read_text()
    assert plain.worker.local.plan(plan.key) == plan.without_environments()
    order = rank_dir(plain.home, plan.key, 0) / records.ORDER
    assert SECRET in order.read_text(), "for jobs exec, while it runs"
    supervisor = plain.worker.local.rank(plan.key, 0).supervisor
    assert supervisor is not None
    os.kill(supervisor.pid, 9)  # it would have removed the order
    await plain.stop(plan.key)
    assert [str(path) for path in plain.home.rglob("*") if path.is_file() and SECRET in path.read_text("latin1")] == []


@as_root
@pytest.mark.parametrize("how", ["of another account", "writable by others", "a link"])
def test_a_record_that_others_can_write_is_not_believed(tmp_path: Path, how: str) -> None:
    path = tmp_path / "record.json"
    records.write_record(str(path), {"a": 1}, durable=False)
    assert read_record(str(path)) == {"a": 1}
    match how:
        case "of another account":
            os.chown(path, 65534, 65534)
        case "writable by others":
            path.chmod(0o646)
        case _:
            path.rename(tmp_path / "other")
            path.symlink_to(tmp_path / "other")
    with pytest.raises(UntrustedRecord, match="is not trusted"):
        read_record(str(path))


def change(path: Path, **values: Any) -> None:
    """Change a record as somebody could who had found a way to write it, keeping its owner and mode."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


async def refused(host: ExecRig, plan: HostPlan) -> str:
    with pytest.raises(HostUnavailable) as caught:
        await host.run(plan.key, "sh", "-c", "grep CapEff /proc/self/status; id -u")
    return caught.value.message


async def test_an_order_that_was_changed_gives_no_command_outside_the_jail(jailed: ExecRig) -> None:
    """``jail: null`` in this file once gave a shell with all capabilities, no filter, and the host's processes."""
    plan = attack(jailed.rig, "time.sleep(600)", gpu=None)
    jailed.rig.launch(plan)
    order = rank_dir(jailed.rig.home, plan.key, 0) / records.ORDER
    good = order.read_text()
    jail = json.loads(good)["jail"]
    assert (await jailed.run(plan.key, "id", "-u")).out.strip() == str(jail["uid"])
    attacks: list[tuple[dict[str, Any], str]] = [
        ({"jail": None}, "it names no jail"),
        ({"jail": {**jail, "uid": 0, "gid": 0}}, "it names the account 0"),
        ({"jail": {**jail, "uid": None, "gid": None}}, "it names the account None"),
        ({"jail": {**jail, "uid": 65534}}, "it names the account 65534"),
        ({"jail": {**jail, "rank": 7}}, "it names rank 7"),
    ]
    for values, says in attacks:
        change(order, **values)
        assert says in await refused(jailed, plan)
        order.write_text(good)
    assert (await jailed.run(plan.key, "id", "-u")).out.strip() == str(jail["uid"])


async def test_an_order_that_names_another_attempt_leads_into_its_own_jail_alone(jailed: ExecRig) -> None:
    victim, plan = (attack(jailed.rig, "time.sleep(600)", gpu=None) for _ in range(2))
    for one in (victim, plan):
        jailed.rig.launch(one)
    order = rank_dir(jailed.rig.home, plan.key, 0) / records.ORDER
    victims = rank_dir(jailed.rig.home, victim.key, 0)
    change(order, attempt_dir=str(victims.parent), rank_dir=str(victims))
    ran = await jailed.run(plan.key, "sh", "-c", "id -u; readlink /proc/self/ns/mnt")
    rank = jailed.rig.worker.local.rank(plan.key, 0).main_process
    assert rank is not None
    uid = account_of(jailed.rig.settings.node, plan).uid
    assert ran.out.split() == [str(uid), os.readlink(f"/proc/{rank.pid}/ns/mnt")]


async def test_a_start_record_that_names_a_process_of_root_gives_no_command(jailed: ExecRig) -> None:
    plan = attack(jailed.rig, "time.sleep(600)", gpu=None)
    jailed.rig.launch(plan)
    started = rank_dir(jailed.rig.home, plan.key, 0) / records.STARTED
    good = started.read_text()
    own = read_stat(os.getpid())
    assert own is not None
    change(started, pid=os.getpid(), started=own.process.started)
    assert "the rank runs as 0" in await refused(jailed, plan)
    started.write_text(good)


async def test_a_plain_rank_of_a_host_that_isolates_now_gets_no_command(tmp_path: Path, jails: None) -> None:
    plain = HostRig(tmp_path / "state")
    plan = plain.plan("sleep", "600")
    plain.launch(plan)
    plain.worker.close()
    rig = HostRig(tmp_path / "state", isolation="required")
    host = ExecRig(rig)
    rig.keys.append(plan.key)
    try:
        assert "restart the job" in await refused(host, plan)
    finally:
        await rig.aclose()
        host.sessions.close()


def _modes(path: Path, wanted: Callable[[Path], bool]) -> dict[str, int]:
    return {one.name: stat.S_IMODE(one.stat().st_mode) for one in path.iterdir() if wanted(one)}


async def test_logs_are_read_through_the_node_worker_only(plain: HostRig) -> None:
    plan = plain.plan("echo", SECRET)
    plain.launch(plan)
    await plain.watch(plan)
    directory = rank_dir(plain.home, plan.key, 0)
    logs = _modes(directory, lambda path: path.name.startswith(records.LOG))
    assert logs
    assert set(logs.values()) == {0o600}
    assert plain.log(plan) == f"{SECRET}\n"

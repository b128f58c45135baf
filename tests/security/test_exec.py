"""``jobs exec`` and the jail: who enters a rank's place gets no more than the rank has, and leaves nothing."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_platform.cli import placeholder
from gpu_platform.node.isolation.jail import Jail
from gpu_platform.node.system.paths import attempt_dir
from tests.integration.test_hosts_exec import ExecRig, output
from tests.security.attacks import PRELUDE, PYTHON, attack
from tests.support.hosts_rig import HostRig, is_running, kill
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("jails")

RANK = "print(os.getpid(), flush=True); time.sleep(1000)"


@pytest.fixture
async def host(tmp_path: Path, dev: Path) -> AsyncIterator[ExecRig]:
    work = tmp_path / "work"
    work.mkdir()
    rig = HostRig(
        tmp_path / "state",
        isolation="required",
        dev=dev,
        writable_paths=[Path(sys.prefix), work],
        rank_pids_max=60,
        rank_memory_mib=96,
        rank_tmp_mib=16,
        users={"bob": "nobody"},
    )
    found = ExecRig(rig)
    yield found
    await rig.aclose()
    found.sessions.close()


async def python(host: ExecRig, script: str) -> list[str]:
    plan = attack(host.rig, RANK)
    host.rig.launch(plan)
    ran = await host.run(plan.key, PYTHON, "-c", PRELUDE + script)
    assert ran.code == 0, ran
    return ran.out.splitlines()


async def test_it_sees_what_the_rank_sees(host: ExecRig) -> None:
    plan = host.rig.plan("sleep", "1000", user="bob")
    host.rig.launch(plan)
    script = "id -un; ls /dev | grep nvidia; ls /proc | grep -c '^[0-9]'; readlink /proc/self/ns/pid; tty"
    ran = await host.run(plan.key, "sh", "-c", script)
    user, *nodes, count, pid_namespace, _ = ran.out.splitlines()
    assert (user, nodes) == ("nobody", ["nvidia0", "nvidiactl"])
    assert int(count) < 10, "its own processes, not the host's"
    assert pid_namespace != os.readlink("/proc/self/ns/pid")
    rank = host.rig.worker.local.rank(plan.key, 0).main_process
    assert rank is not None
    session = await host.start(plan.key, "sleep", "1000")
    jail = Jail.of(str(attempt_dir(host.rig.home, plan.key)))
    assert jail is not None
    inside = jail.cgroup.child("rank-0").processes()
    assert rank.pid in inside
    assert len(inside) == 2, "the rank and the command"
    session.end("test")


async def test_it_can_do_no_more_than_the_rank(host: ExecRig, tmp_path: Path) -> None:
    """Neither privileges nor devices nor system calls: the attacks on a rank's jail, from a command."""
    os.chmod(tmp_path, 0o755)
    other = (tmp_path / "dev" / "nvidia1").stat().st_rdev
    lines = await python(
        host,
        f"""
attempt("other gpu", open_it, {str(tmp_path / "dev" / "nvidia1")!r})
attempt("mknod", node, "/tmp/n", {other})
attempt("mount", call, "mount", b"none", b"/tmp", b"tmpfs", 0, None)
attempt("unshare", call, "unshare", 0x10000000)
print(open("/proc/self/status").read().split("NoNewPrivs:")[1].split()[0])
print(int(open("/proc/self/status").read().split("CapEff:")[1].split()[0], 16))
print(sorted(int(n) for n in os.listdir("/proc/self/fd"))[:3], len(os.listdir("/proc/self/fd")))
""",
    )
    assert not [line for line in lines[:4] if "WORKS" in line], lines
    assert lines[4:6] == ["1", "0"]
    assert lines[6] == "[0, 1, 2] 4", "no descriptor of ours came with it; the fourth is the listing's"


async def test_a_memory_bomb_hits_the_ranks_limit(host: ExecRig) -> None:
    plan = attack(host.rig, RANK)
    host.rig.launch(plan)
    ran = await host.run(plan.key, PYTHON, "-c", "x = bytearray(300 << 20); print(len(x))")
    assert ran.code != 0
    assert "314572800" not in ran.out


@pytest.mark.parametrize("ends", ["killed", "by itself"])
async def test_a_daemon_of_a_command_dies_with_the_job(host: ExecRig, tmp_path: Path, ends: str) -> None:
    """It left its session, its parent and its environment; the session has ended; the cgroup still has it."""
    work = tmp_path / "work"
    work.chmod(0o777)
    go = work / "go"
    plan = attack(host.rig, f"import pathlib\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)")
    host.rig.launch(plan)
    script = "exec >/dev/null 2>&1; setsid env -i /bin/sh -c 'trap \"\" TERM; sleep 1000; sleep 1001' & exit 0"
    ran = await host.run(plan.key, "sh", "-c", script)
    assert ran.code == 0
    jail = Jail.of(str(attempt_dir(host.rig.home, plan.key)))
    assert jail is not None
    rank = host.rig.worker.local.rank(plan.key, 0).main_process
    assert rank is not None
    left = await eventually(lambda: jail.cgroup.child("rank-0").processes() - {rank.pid}, "the daemon")
    if ends == "killed":
        await host.rig.stop(plan.key)
    else:
        go.touch()
        await host.rig.watch(plan)
        await host.rig.stop(plan.key)
    assert not any(is_running(pid) for pid in left)
    assert not jail.exists


async def test_a_command_whose_helper_was_killed_ends_and_the_rank_goes_on(host: ExecRig) -> None:
    plan = host.rig.plan("sleep", "1000")
    host.rig.launch(plan)
    session = await host.start(plan.key, "sh", "-c", "sleep 1000 & sleep 1000")
    jail = Jail.of(str(attempt_dir(host.rig.home, plan.key)))
    assert jail is not None
    inside = jail.cgroup.child("rank-0")
    await eventually(lambda: len(inside.processes()) == 4, "the rank, the command, and two below it")
    [helper] = host.rig.worker.local.rank(plan.key, 0).exec_helpers
    kill(helper.pid)
    await eventually(lambda: len(inside.processes()) == 1, "the end of the command", within_s=5)
    assert (await output(session)).reason == "its helper was killed"


async def test_a_terminal_has_a_name_inside(host: ExecRig) -> None:
    plan = host.rig.plan("sleep", "1000", user="bob")
    host.rig.launch(plan)
    session = await host.start(plan.key, "sh", "-c", "tty; echo hello > $(tty); test -t 0", tty=True, term="xterm")
    ended = await asyncio.wait_for(output(session), 20)
    assert ended.code == 0, ended
    assert ended.out.split() == ["/dev/pts/0", "hello"]


async def test_a_session_finds_the_placeholder_of_its_job_inside(host: ExecRig) -> None:
    plan = host.rig.plan(*placeholder.placeholder(["sh"], 900), user="bob")
    host.rig.launch(plan)
    script = "id -un; ls -l /proc/self/fd | grep -c end; exit 7"
    ran = await host.run(plan.key, *placeholder.session_command(["sh", "-c", script]))
    assert (ran.out.split(), ran.code) == (["nobody", "0"], 7), "the program does not get the pipe"
    assert [one.exit_code for one in (await host.rig.watch(plan)).exits] == [7]

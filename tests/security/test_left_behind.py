"""What a rank leaves for the platform to read, as root: names, manifests, deep trees, environments, names of processes.

A mistake there is everybody's: the node worker of the host would end, or take one tenant's processes for another's.
"""

from __future__ import annotations

import asyncio
import os
import textwrap
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.domain.jobs.checkpoint import CheckpointPolicy
from gpu_platform.node.health import fitness
from gpu_platform.node.health.fitness import GpuFitness
from gpu_platform.node.sharing import mps
from gpu_platform.node.sharing.mps import MpsDaemon
from tests.integration.test_hosts_exec import ExecRig
from tests.security.attacks import PYTHON, attack
from tests.support.hosts_rig import HostRig, is_running
from tests.support.waiting import eventually
from workers.node.http import node_app

pytestmark = pytest.mark.usefixtures("jails")


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[HostRig]:
    rig = HostRig(tmp_path / "state", isolation="required", rank_pids_max=60)
    yield rig
    await rig.aclose()


async def run(host: HostRig, script: str) -> HostPlan:
    plan = attack(host, script, gpu=None)
    host.launch(plan)
    exits = await host.watch(plan)
    assert exits.first_failure is None, host.log(plan)
    return plan


MANIFESTS = [
    "[",  # many times
    '{"files": {"\\ud800": {"size": 1}}}',
    '{"files": {"a\\u0000b": {"size": 1}}}',
    '{"files": {"DEEP": {"size": 1}}}',
    '{"files": {"../../../../etc/shadow": {"size": 1}}}',
    '{"files": {"a": {"size": 1e400}}}',
    '{"files": {"a": {"size": true}}}',
    '{"files": {"a": {"size": -1}}, "step": 1e999}',
    '{"files": {"a": {"size": 99999999999999999999999999}}, "step": 99999999999999999999999999}',
    "\\udcff",
]


async def test_names_and_manifests_of_a_rank_end_nothing(host: HostRig) -> None:
    """A name that is no text once ended the node worker: its report could not be made. So the host was LOST."""
    script = f"""
    place = os.environ["GPU_PLATFORM_CHECKPOINT_DIR"].encode()
    def save(name, manifest=None):
        os.mkdir(place + b"/" + name)
        open(place + b"/" + name + b"/COMPLETE", "w").close()
        if manifest is not None:
            open(place + b"/" + name + b"/MANIFEST.json", "w", errors="surrogateescape").write(manifest)
    save(b"step-1")
    for name in (b"\\xff\\xfe", b"step-\\xed\\xa0\\x80", b"a\\nb", b"\\x1b[2J", b"~", b"~~~", b"{{}}", b"x" * 255):
        save(name)
    for number, manifest in enumerate({MANIFESTS!r}):
        save(b"bad-%d" % number, manifest.replace("DEEP", "a/" * 5000) if number else manifest * 200_000)
    os.mkfifo(place + b"/bad-0/pipe")
    os.symlink("/proc/1/root", place + b"/link")
    os.utime(place + b"/step-1/COMPLETE", (2**40, 2**40))
    """
    plan = await run(host, script)
    checkpointing = host.worker.checkpointing
    listed = {one.name: one for one in checkpointing.list_job(plan.key.job_id, hashes=True)}
    assert listed["step-1"].complete
    assert not [name for name, one in listed.items() if name.startswith("bad-") and one.complete and name != "bad-6"]
    assert not [name for name in listed if not name.isprintable()]
    checkpointing.newest([plan.key])  # in a thread
    [saved] = await eventually(lambda: checkpointing.newest([plan.key]), "the newest checkpoint")
    assert saved.model_dump_json()
    host.worker.sweep_checkpoints()
    checkpointing.retention.sweep_job(plan.key.model_copy(update={"attempt": 2}), keep=1)


async def test_a_deep_tree_is_removed_and_stops_nothing(host: HostRig) -> None:
    """Deeper than Python calls itself, and than a path may be long; and a link in it leads nowhere."""
    script = """
    os.chdir(os.environ["GPU_PLATFORM_CHECKPOINT_DIR"])
    os.mkdir(".removed-0-deep")
    os.symlink(os.getcwd(), ".removed-0-deep/link")
    open("stays", "w").close()
    os.chdir(".removed-0-deep")
    for _ in range(1200):
        os.mkdir("d" * 20)
        os.chdir("d" * 20)
    """
    plan = await run(host, script)
    directory = host.settings.state_dir / "checkpoints" / plan.key.job_id / "1"
    assert host.worker.checkpointing.retention.sweep_job(plan.key, keep=None) == []
    assert os.listdir(directory) == ["stays"]


@pytest.mark.timeout(60)
async def test_a_rank_that_says_it_is_anothers_is_not_taken_for_it(host: HostRig) -> None:
    """Environments say whose a process is, and a job chooses its own. The victim's stop never ended, because the
    attacker's processes were killed in its name, and new ones came; its GPUs were given to nobody else."""
    victim = attack(host, "time.sleep(600)")
    host.launch(victim)
    script = f"""
    mark = {{"GPU_PLATFORM_ATTEMPT_ID": "{victim.key.job_id}/1", "GPU_PLATFORM_NODE_DIR": {str(host.home)!r}}}
    first = None
    while True:
        last = subprocess.Popen(["sleep", "600"], env=mark)
        if first is None:
            first = last
            print("up", flush=True)
        time.sleep(0.005)
        if first.poll() is not None:
            print("killed", flush=True)
            first = last
    """
    attacker = attack(host, script, gpu=1)
    host.launch(attacker)
    await eventually(lambda: "up" in host.log(attacker), "the attacker")
    stopped = await host.stop(victim.key)
    assert stopped.killed_processes <= 1
    assert "killed" not in host.log(attacker)


async def test_a_rank_that_says_it_is_a_daemon_of_mps_is_not_taken_for_it(host: HostRig, tmp_path: Path) -> None:
    """A tenant kept all others off a GPU that is shared by MPS: its process passed for the daemon of that GPU."""
    daemon = MpsDaemon(tmp_path / "mps", "GPU-0", jailed=True)
    plan = attack(host, "print('up', flush=True); time.sleep(600)", gpu=None)
    plan = plan.model_copy(update={"env": {mps._MARK: os.fsdecode(daemon._name)}})
    host.launch(plan)
    await eventually(lambda: "up" in host.log(plan), "the rank")
    assert daemon.processes() == []


async def test_a_process_whose_name_is_no_text_can_be_named_and_entered(host: HostRig) -> None:
    exec_rig = ExecRig(host)
    script = """
    libc.prctl(15, b"\\xff\\xfe) Z 1 (", 0, 0, 0)
    print("up", flush=True)
    time.sleep(600)
    """
    plan = attack(host, textwrap.dedent(script), gpu=None)
    pid = host.launch(plan).ranks[0].pid
    await eventually(lambda: "up" in host.log(plan), "the rank")
    assert fitness._comm(pid)
    ran = await exec_rig.run(plan.key, PYTHON, "-c", "print('inside')")
    exec_rig.sessions.close()
    assert ran.out == "inside\n"


async def test_a_gpu_that_was_passed_on_is_taken_back(tmp_path: Path, dev: Path) -> None:
    """One job gives its GPU's descriptor to another, by a socket in a directory that both write. The device filter
    asks at open(2) only, so the other had the GPU still when the next tenant got it."""
    shared = tmp_path / "shared"
    shared.mkdir()
    rig = HostRig(tmp_path / "state", isolation="required", dev=dev, writable_paths=[shared])
    shared.chmod(0o777)
    rig.nvml.has_device_nodes = True
    worker = rig.worker
    rig.restart(
        [
            GpuFitness(
                rig.nvml,
                rig.inventory,
                rig.settings.node,
                own_pids=lambda uuid: worker.attempt_pids(uuid),
                on_fault=lambda _: None,
                dev=dev,
            )
        ]
    )
    worker = rig.worker
    taker = attack(
        rig,
        f"""
        server = socket.socket(socket.AF_UNIX)
        server.bind({str(shared / "door")!r})
        os.chmod({str(shared / "door")!r}, 0o777)
        server.listen()
        print("up", flush=True)
        _, [fd], _, _ = socket.recv_fds(server.accept()[0], 1, 1)
        print("has", os.readlink(f"/proc/self/fd/{{fd}}"), flush=True)
        time.sleep(600)
        """,
        gpu=None,
    )
    giver = attack(
        rig,
        f"""
        client = socket.socket(socket.AF_UNIX)
        client.connect({str(shared / "door")!r})
        socket.send_fds(client, [b"x"], [os.open("/dev/nvidia0", os.O_RDONLY | os.O_NONBLOCK)])
        time.sleep(600)
        """,
    )
    try:
        pid = rig.launch(taker).ranks[0].pid
        await eventually(lambda: "up" in rig.log(taker), "the taker")
        rig.launch(giver)
        await eventually(lambda: "has" in rig.log(taker), "the descriptor")
        assert is_running(pid)
        await rig.stop(giver.key)
        assert not is_running(pid)
    finally:
        await rig.aclose()


async def test_another_host_of_the_gang_cannot_choose_what_a_rank_sees(host: HostRig) -> None:
    """Rank 0's host says what the gang resumes from, and could name a directory that is hidden from ranks."""
    checkpoints = host.settings.state_dir.resolve() / "checkpoints"
    for job in ("source", "source-2", "victim"):
        (checkpoints / job / "1" / "step-1").mkdir(parents=True)
    plan = host.plan("true", checkpoint=CheckpointPolicy(resume_from="source:1"))
    shown = host.worker.checkpointing.shown
    own = str(checkpoints / "source" / "1" / "step-1")
    assert shown(plan, own) == [own]
    for path in ("victim/1/step-1", "source-2/1", "source/../victim/1", "source/1/../../../nodes", ""):
        assert shown(plan, f"{checkpoints}/{path}") == [], path
    for path in ("/etc", "/etc/gpu-platform", "/root", str(host.home), "source/1", "."):
        assert shown(plan, path) == [], path


async def test_many_who_verify_large_checkpoints_leave_logs_to_others(
    host: HostRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job writes what takes hours to read, and its user asks for it again and again."""
    plan = await run(host, "print('hello')")
    let_go = threading.Event()
    monkeypatch.setattr(host.worker.checkpointing, "list_job", lambda *_, **__: let_go.wait(60) and [])
    application, asked = node_app(host.worker, "secret"), []

    async def counted(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        await application(scope, receive, send)

    transport = httpx.ASGITransport(counted)
    async with httpx.AsyncClient(transport=transport, base_url="http://box", auth=("service", "secret")) as http:
        lists = [asyncio.create_task(http.get("/checkpoints/j-1?hashes=1")) for _ in range(50)]
        try:
            await eventually(lambda: len(asked) == len(lists), "all to have asked")
            async with asyncio.timeout(10):
                answer = await http.get(f"/logs/{plan.key.job_id}/1/0")
        finally:
            let_go.set()
            await asyncio.gather(*lists)
    assert answer.text == "hello\n"

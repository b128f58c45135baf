"""Ranks as real processes: how they start, how they end, what a user's mistake looks like."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_platform.domain.errors import HostUnavailable, IllegalTransition, NotFound, PreflightFailed
from gpu_platform.domain.jobs.attempt import LaunchRequest, Prepared
from gpu_platform.domain.jobs.blame import FailureKind
from tests.security.attacks import PYTHON
from tests.support.hosts_rig import HostRig, is_running
from tests.support.waiting import eventually


@pytest.fixture(params=["plain", "required"])
async def host(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[HostRig]:
    """Everything holds for plain processes and for jailed ones."""
    if request.param == "required":
        request.getfixturevalue("jails")
    # A jailed rank has a /tmp of its own, and an account of its own.
    tmp_path.chmod(0o777)
    rig = HostRig(tmp_path / "state", isolation=request.param, writable_paths=[tmp_path], workdirs=[str(tmp_path)])
    yield rig
    await rig.aclose()


async def test_a_rank_runs_to_its_end_and_its_output_is_in_its_log(host: HostRig) -> None:
    plan = host.plan("sh", "-c", "echo out; echo err >&2")
    launched = host.launch(plan)
    exits = await host.watch(plan)
    assert [rank.exit_code for rank in exits.exits] == [0]
    assert exits.first_failure is None
    assert launched.ranks[0].pid > 0
    assert host.log(plan) == "out\nerr\n"
    assert host.worker.read_log(plan.key, 0, offset=4, limit=3) == (b"err", 4, 8, None)
    with pytest.raises(FileNotFoundError):
        host.worker.read_log(plan.key, 7)


async def test_ranks_find_their_rendezvous_gpus_and_checkpoints_in_the_environment(host: HostRig) -> None:
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    plan = host.plan(
        PYTHON, "-c", script, env={"RANK": "0", "GPU_PLATFORM_HOST": "forged", "GPU_PLATFORM_CLUSTER_NAME": "forged"}
    )
    gang = Prepared(host="other", address="10.0.0.7", rendezvous_port=29500, resume_from="/ckpt/j/1")
    host.worker.launch(LaunchRequest(plan=plan, rendezvous=gang))
    await host.watch(plan)
    env = json.loads(host.log(plan))
    expected = {
        "MASTER_ADDR": "10.0.0.7",
        "MASTER_PORT": "29500",
        "RANK": "0",
        "CUDA_VISIBLE_DEVICES": plan.gpu_uuids[0],
        "NVIDIA_VISIBLE_DEVICES": plan.gpu_uuids[0],
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "GPU_PLATFORM_CLUSTER_NAME": "gpu-platform",
        "GPU_PLATFORM_JOB_ID": plan.key.job_id,
        "GPU_PLATFORM_ATTEMPT": "1",
        "GPU_PLATFORM_ATTEMPT_ID": f"{plan.key.job_id}/1",
        "GPU_PLATFORM_HOST": "box",
        "GPU_PLATFORM_GPUS": plan.gpu_uuids[0],
        "GPU_PLATFORM_RESUME_FROM": "/ckpt/j/1",
    }
    assert {name: env[name] for name in expected} == expected
    assert Path(env["GPU_PLATFORM_CHECKPOINT_DIR"]).is_dir()


async def test_the_node_workers_secrets_do_not_reach_a_rank(host: HostRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_PLATFORM_DATABASE_URL", "postgresql://secret")
    plan = host.plan("env")
    host.launch(plan)
    await host.watch(plan)
    assert "postgresql" not in host.log(plan)
    supervisors = [pid for pid in os.listdir("/proc") if pid.isdigit() and _environ_has(pid, b"postgresql://secret")]
    assert supervisors == []


def _environ_has(pid: str, text: bytes) -> bool:
    try:
        return text in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


async def test_the_exit_code_is_what_a_shell_would_say(host: HostRig) -> None:
    for command, code in (("exit 3", 3), ("kill -TERM $$", 128 + 15), ("kill -KILL $$", 128 + 9)):
        plan = host.plan("sh", "-c", command)
        host.launch(plan)
        exits = await host.watch(plan)
        assert exits.first_failure is not None
        assert exits.first_failure.exit_code == code
        assert exits.first_failure.failure is None


async def test_a_rank_starts_with_default_signals_and_no_descriptors_of_ours(host: HostRig) -> None:
    plan = host.plan("sh", "-c", "grep -E 'Sig(Blk|Ign)' /proc/self/status; ls -l /proc/self/fd")
    host.launch(plan)
    await host.watch(plan)
    blocked, ignored, *fds = host.log(plan).splitlines()
    # 32 and 33 belong to the C library, which lets nobody set them: as they were inherited, they stay.
    ours = ~(0b11 << 31)
    assert (int(blocked.split()[1], 16) & ours, int(ignored.split()[1], 16) & ours) == (0, 0)
    opened = {line.split(" -> ")[1] for line in fds if " -> " in line}
    [log] = {path for path in opened if path.startswith("pipe:")}
    assert {path for path in opened if not path.startswith("/proc/")} == {"/dev/null", log}


async def test_watching_ends_at_the_first_failure_and_says_which(host: HostRig) -> None:
    plan = host.plan("sh", "-c", '[ "$CUDA_VISIBLE_DEVICES" = "$BAD" ] && exit 7; sleep 600', ranks=3)
    bad = plan.gpu_uuids[1]
    plan = plan.model_copy(update={"env": {"BAD": bad}})
    host.launch(plan)
    exits = await host.watch(plan)
    assert exits.first_failure is not None
    assert (exits.first_failure.rank, exits.first_failure.exit_code) == (1, 7)
    stopped = await host.stop(plan.key)
    assert [rank.exit_code for rank in stopped.exits] == [137, 7, 137]


async def test_what_a_finished_rank_leaves_behind_is_killed(host: HostRig) -> None:
    plan = host.plan("sh", "-c", "setsid sleep 600 & echo $!; (setsid sh -c 'echo $$; exec sleep 600' &); sleep 0.2")
    host.launch(plan)
    exits = await host.watch(plan)
    assert len(host.log(plan).split()) == 2
    assert [rank.exit_code for rank in exits.exits] == [0]
    assert host.processes(plan.key) == {}


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (["no-such-program-anywhere"], "was not found"),
        (["/no/such/program"], "does not exist"),
        (["/etc/passwd"], "not executable"),
        (["/tmp"], "not executable"),
    ],
)
async def test_a_program_that_cannot_be_executed_is_the_users_mistake(
    host: HostRig, command: list[str], text: str
) -> None:
    with pytest.raises(PreflightFailed, match=text) as caught:
        host.worker.prepare(host.plan(*command))
    assert caught.value.details["kind"] == "user"


async def test_a_missing_workdir_is_the_users_mistake(host: HostRig, tmp_path: Path) -> None:
    jailed = host.settings.node.isolation == "required"
    texts = {str(tmp_path / "nowhere"): "does not exist", "/etc/passwd": "not allowed" if jailed else "not a directory"}
    for workdir, text in texts.items():
        with pytest.raises(PreflightFailed, match=text):
            host.launch(host.plan("true", workdir=workdir))


@pytest.mark.parametrize(
    ("content", "text"),
    [("#!/no/such/interpreter\n", "interpreter in its first line"), ("\x7fnot a program", "no binary of this machine")],
)
async def test_what_only_the_kernel_can_tell_comes_back_as_a_clear_failure(
    host: HostRig, tmp_path: Path, content: str, text: str
) -> None:
    program = tmp_path / "program"
    program.write_text(content)
    program.chmod(0o755)
    plan = host.plan(str(program))
    for _ in range(2):  # the second time from its record
        with pytest.raises(PreflightFailed, match=text) as caught:
            host.launch(plan)
        assert caught.value.details["kind"] == "user"
    exits = await host.watch(plan)
    assert exits.first_failure is not None
    assert exits.first_failure.failure is not None
    assert exits.first_failure.failure.kind is FailureKind.USER
    assert exits.first_failure.exit_code in (126, 127)


async def test_arguments_larger_than_the_kernel_takes(host: HostRig) -> None:
    plan = host.plan("true", env={"BIG": "x" * 200_000})  # above MAX_ARG_STRLEN
    with pytest.raises(PreflightFailed, match="larger than the kernel"):
        host.launch(plan)


async def test_a_workdir_that_vanishes_between_prepare_and_launch(host: HostRig, tmp_path: Path) -> None:
    workdir = tmp_path / "work"
    workdir.mkdir()
    plan = host.plan("true", workdir=str(workdir))
    host.worker.prepare(plan)
    workdir.rmdir()
    with pytest.raises(PreflightFailed, match="working directory"):
        host.launch(plan)


async def test_a_lost_gpu_fails_the_preflight_and_is_named(host: HostRig) -> None:
    plan = host.plan("true")
    host.strike(0, lost=True)
    with pytest.raises(PreflightFailed) as caught:
        host.worker.prepare(plan)
    assert caught.value.details == {"kind": "hardware", "gpu_uuid": plan.gpu_uuids[0]}
    host.worker.prepare(plan.model_copy(update={"gpu_uuids": host.plan("true", ranks=2).gpu_uuids[1:]}))


async def test_stop_kills_what_ignores_sigterm_leaves_the_session_and_forks_twice(host: HostRig) -> None:
    tree = (
        "trap '' TERM; setsid sh -c 'trap \"\" TERM; echo $$; sleep 600 & echo $!; wait' & "
        "(setsid sh -c 'echo $$; exec sleep 600' &) ; echo $$; while :; do sleep 1; done"
    )
    plan = host.plan("sh", "-c", tree, ranks=2)
    host.launch(plan)
    for rank in (0, 1):
        await eventually(lambda rank=rank: len(host.log(plan, rank).split()) == 4, "the tree stands")
    names = {int(pid) for rank in (0, 1) for pid in host.log(plan, rank).split()}
    processes = host.processes(plan.key)
    assert names <= set(processes)
    pids = list(processes.values())
    stopped = await host.stop(plan.key, grace_s=0.2)
    assert not any(map(is_running, pids))
    assert stopped.killed_processes >= len(names)
    assert [rank.exit_code for rank in stopped.exits] == [137, 137]
    assert host.worker.attempts() == []


async def test_grace_is_for_the_whole_tree_even_when_the_main_process_goes_first(host: HostRig) -> None:
    """A shell dies of SIGTERM at once; the program below it still writes its checkpoint."""
    saves = "trap 'sleep 0.3; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    plan = host.plan("sh", "-c", f'sh -c "{saves}"; true')
    host.launch(plan)
    await eventually(lambda: "ready" in host.log(plan), "ready")
    await host.stop(plan.key, grace_s=10)
    assert host.log(plan).splitlines()[-1] == "saved"


async def test_a_rank_that_obeys_sigterm_ends_the_grace(host: HostRig) -> None:
    plan = host.plan("sh", "-c", "trap 'exit 4' TERM; echo ready; while :; do sleep 0.05; done")
    host.launch(plan)
    await eventually(lambda: "ready" in host.log(plan), "ready")
    stopped = await host.stop(plan.key, grace_s=600, timeout_s=10)
    assert [rank.exit_code for rank in stopped.exits] == [4]


async def test_a_kill_overtakes_a_stop_that_waits_out_its_grace(host: HostRig) -> None:
    plan = host.plan("sh", "-c", "trap 'echo told' TERM; echo ready; while :; do sleep 0.05; done")
    host.launch(plan)
    await eventually(lambda: "ready" in host.log(plan), "ready")
    patient = asyncio.create_task(host.stop(plan.key, grace_s=600))
    await eventually(lambda: "told" in host.log(plan), "its grace to begin")
    kills = await asyncio.gather(*[host.stop(plan.key, grace_s=0) for _ in range(3)])
    assert {kill.exits[0].exit_code for kill in kills} == {137}
    assert (await patient).exits[0].exit_code == 137


async def test_an_attempt_stopped_before_its_launch_never_starts(host: HostRig) -> None:
    plan = host.plan("true")
    assert (await host.stop(plan.key)).exits == []
    for operation in (host.worker.prepare, host.launch):
        with pytest.raises(IllegalTransition, match="stopped"):
            operation(plan)
    host.restart()
    with pytest.raises(IllegalTransition):
        host.launch(plan)


async def test_every_operation_may_be_repeated(host: HostRig) -> None:
    plan = host.plan("sleep", "600", ranks=2)
    assert host.worker.prepare(plan) == host.worker.prepare(plan)
    launched = host.launch(plan)
    assert host.launch(plan) == launched
    assert host.worker.attempts() == [plan.key]
    first = await host.stop(plan.key)
    again = await host.stop(plan.key)
    assert again.exits == first.exits
    assert (await host.watch(plan)).first_failure is not None
    assert [rank.pid for rank in launched.ranks if is_running(rank.pid)] == []
    host.worker.forget(plan.key)
    assert host.log(plan) == ""
    with pytest.raises(IllegalTransition):
        host.launch(plan)


async def test_racing_launches_start_a_rank_once(host: HostRig) -> None:
    plan = host.plan("sh", "-c", "echo started; exec sleep 600", ranks=2)
    twin = HostRig(host.settings.state_dir)  # a second node worker that has not noticed the first
    racers = [asyncio.to_thread(rig.launch, plan) for rig in (host, twin) for _ in range(4)]
    answers = await asyncio.gather(*racers)
    assert all(answer == answers[0] for answer in answers)
    await eventually(lambda: host.log(plan, 1), "log")
    await host.stop(plan.key)
    twin.worker.close()
    assert [host.log(plan, rank) for rank in (0, 1)] == ["started\n", "started\n"]


async def test_a_stop_that_races_a_launch_leaves_nothing_running(host: HostRig) -> None:
    twin = HostRig(host.settings.state_dir)
    for _ in range(15):
        plan = host.plan("sleep", "600", ranks=2)
        launch = asyncio.to_thread(host.launch, plan)
        outcome, _ = await asyncio.gather(launch, twin.stop(plan.key), return_exceptions=True)
        pids = [rank.pid for rank in outcome.ranks] if not isinstance(outcome, BaseException) else []
        assert isinstance(outcome, IllegalTransition) or pids
        assert not any(map(is_running, pids))
        assert (await twin.stop(plan.key)).killed_processes == 0
    twin.worker.close()


async def test_attempts_of_one_job_on_two_hosts_of_one_machine_do_not_touch(host: HostRig) -> None:
    other = HostRig(host.settings.state_dir, name="other")
    plan = host.plan("sleep", "600")
    theirs = other.plan("sleep", "600", key=plan.key)
    mine, their = host.launch(plan), other.launch(theirs)
    await host.stop(plan.key)
    assert not is_running(mine.ranks[0].pid)
    assert is_running(their.ranks[0].pid)
    await other.aclose()


async def test_an_attempt_sees_the_newest_complete_checkpoint_of_earlier_ones(host: HostRig) -> None:
    job = host.key().job_id
    root = host.settings.state_dir / "checkpoints" / job
    for path in ("1/COMPLETE", "2/step-10/COMPLETE", "2/step-20/COMPLETE", "3/step-30/part"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    plan = host.plan("true", key=host.key(4, job), resume_from_attempt=3)
    assert host.worker.prepare(plan).resume_from == str(root / "2/step-20")
    plan = host.plan("true", key=host.key(5, job), resume_from_attempt=1)
    assert host.worker.prepare(plan).resume_from == str(root / "1")


async def test_the_processes_on_a_gpu_are_known_and_forbid_its_reset(host: HostRig) -> None:
    plan = host.plan("sh", "-c", "sleep 600 & wait")
    pid = host.launch(plan).ranks[0].pid
    gpu = plan.gpu_uuids[0]
    await eventually(lambda: len(host.worker.gpu_processes(gpu)) == 2, "the shell and its sleep")
    assert pid in host.worker.gpu_processes(gpu)
    with pytest.raises(PreflightFailed, match="hold it"):
        host.worker.reset_unused_gpu(gpu)
    with pytest.raises(PreflightFailed, match=f"attempt {plan.key} has it on box"):
        host.worker.reset_gpu(gpu)
    await host.stop(plan.key)
    assert host.worker.gpu_processes(gpu) == []
    host.strike(0, uncorrected_ecc=3, fail_resets=1)
    with pytest.raises(PreflightFailed, match="uncorrectable"):
        host.worker.verify_gpu(gpu)
    with pytest.raises(PreflightFailed, match="not successful"):
        host.worker.reset_gpu(gpu)
    host.worker.reset_gpu(gpu)
    host.worker.verify_gpu(gpu)


@pytest.mark.parametrize("repair", ["one", "all"])
async def test_a_reset_that_comes_late_hits_no_later_job(
    host: HostRig, repair: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its order was on its way for as long as the host did not answer. Nothing of the job runs yet."""
    plan = host.plan("sleep", "600")
    reset = {
        "one": lambda: host.worker.reset_gpu(plan.gpu_uuids[0]),
        "all": lambda: host.worker.reset_all_gpus(),
    }[repair]
    host.worker.prepare(plan)
    with pytest.raises(PreflightFailed, match="cannot be reset: attempt"):
        reset()
    host.restart()
    with pytest.raises(PreflightFailed, match="cannot be reset: attempt"):
        reset()
    await host.stop(plan.key)
    following = host.plan("sleep", "600")
    begun, may_end = threading.Event(), threading.Event()

    def takes_long(*_: object) -> None:
        begun.set()
        may_end.wait(20)

    for name in ("reset_gpu", "reset_all_gpus"):
        monkeypatch.setattr(type(host.nvml), name, takes_long)
    resetting = asyncio.create_task(asyncio.to_thread(reset))
    assert await asyncio.to_thread(begun.wait, 10)
    with pytest.raises(HostUnavailable, match="resets GPU"):
        await asyncio.to_thread(host.launch, following)
    assert following.key not in host.worker.attempts()
    may_end.set()
    await resetting
    host.launch(following)


async def test_a_job_id_cannot_leave_its_directory(host: HostRig) -> None:
    with pytest.raises(NotFound):
        host.worker.read_log(host.key(job_id=".."), 0)
    host.keys.clear()


async def test_a_rank_outlives_a_terminal(host: HostRig) -> None:
    plan = host.plan("sleep", "600")
    pid = host.launch(plan).ranks[0].pid
    assert os.getsid(pid) == pid
    os.kill(host.worker._launcher.spawner.pid, signal.SIGINT)
    assert is_running(host.worker._launcher.spawner.pid)

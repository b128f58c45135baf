"""The command line as a user runs it: a process, arguments, stdout, stderr, an exit code."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpu_platform.domain.hosts.lease import SavedCheckpoint
from gpu_platform.domain.jobs.attempt import FaultReport
from gpu_platform.domain.jobs.blame import FailureKind
from gpu_platform.domain.jobs.job import Failure, Job, StoppedBy
from gpu_platform.domain.jobs.placement import HostCount, Reason, ReasonCode, WaitCode
from gpu_platform.domain.jobs.usage import RankUsage
from gpu_platform.domain.states import JobState
from gpu_platform.node.nvml.fault_injection import events_dir
from gpu_platform.node.nvml.opening import open_nvml
from gpu_platform.node.system.paths import control_dir, node_dir
from gpu_platform.settings import NodeSettings
from gpu_platform.store import Store
from gpu_platform.store.hosts import gpu_states
from gpu_platform.store.jobs import jobs, queue
from gpu_platform.store.jobs.job_states import JobUpdate
from gpu_platform.store.reservations import attempts, reserving
from gpu_platform.store.reservations.attempts import AttemptResult
from tests.support.api_server import (
    LogFiles,
    application,
    recording,
    served,
    temporal_dev_server,
)
from tests.support.command_line import run, start
from tests.support.store_cluster import NOW, Cluster, key, placement, set_job_state, spec, uuid_of
from tests.support.waiting import eventually
from workers.local.forked.client import COMMAND


@pytest.fixture(scope="module")
def temporal() -> Iterator[str]:
    with temporal_dev_server() as address:
        yield address


@dataclass
class Platform:
    url: str
    store: Store
    logs: LogFiles

    def running(self, job_id: str) -> None:
        jobs.admit_job(self.store, job_id, NOW)
        reserving.reserve_gang(self.store, key(job_id), placement({"a": [0]}), now=NOW)
        attempts.mark_running(self.store, key(job_id), NOW)

    def failed(self, job_id: str, exit_code: int) -> None:
        failure = Failure(kind=FailureKind.USER, message=f"rank 0 exited with {exit_code}", exit_code=exit_code)
        set_job_state(
            self.store,
            job_id,
            JobState.FAILED,
            now=NOW,
            actor="control",
            update=JobUpdate(failure=failure, exit_code=exit_code),
        )

    async def submitted(self) -> Job:
        return await eventually(lambda: (jobs.list_jobs(self.store)[0] or [None])[0], "the job")


@pytest.fixture
async def platform(temporal: str, sqlite_template: Path, tmp_path: Path) -> AsyncIterator[Platform]:
    path = tmp_path / "platform.db"
    shutil.copy(sqlite_template, path)
    store = Store(f"sqlite:///{path}")
    logs = LogFiles()
    async with recording(temporal), logs.served() as worker, served(application(store, temporal)) as url:
        Cluster(store).host("a", gpus=2, url=worker)
        yield Platform(url, store, logs)
    store.close()


async def test_the_installed_script_is_the_command_line() -> None:
    """Without the fork server, as a shell starts it."""
    process = await asyncio.create_subprocess_exec(COMMAND, "--version", stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert (process.returncode, out) == (0, (await run("--version")).out.encode())


async def test_help_shows_every_command() -> None:
    ran = await run("--help")
    assert ran.code == 0
    for command in ("up", "submit", "jobs", "status", "health", "watch", "drain", "online", "offline"):
        assert f" {command} " in ran.out
    assert " inject " not in ran.out


async def test_version_and_typing_errors() -> None:
    assert (await run("--version")).out.startswith("gpu-platform 0.")
    ran = await run("jbos", "list")
    assert (ran.code, ran.out) == (2, "")
    assert "Did you mean 'jobs'?" in ran.err
    assert "Did you mean 'gpu-platform jobs logs'?" in (await run("logs", "j-1")).err
    assert "No such option: --gpu-memry" in (await run("submit", "--gpu-memry", "3")).err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpus", "3", "--hosts", "2", "--", "x"], "use 2 or 4 GPUs"),
        (["--gpu-memory", "lots", "--", "x"], "is not a size"),
        (["--time", "soon", "--", "x"], "is not a time"),
        (["--env", "NOT_SET_ANYWHERE", "--", "x"], "is not set here"),
        (["--gpus", "2"], "there is no program to run"),
        (["--strategy", "scatter", "--", "x"], "pack"),
        (["-f", "/none.yaml"], "cannot read /none.yaml"),
    ],
)
async def test_wrong_usage_is_2_and_says_what_would_be_right(arguments: list[str], words: str) -> None:
    ran = await run("submit", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert words in " ".join(ran.err.replace("\u2502", " ").split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpus", "2000"], "gpus.gpus_per_host: should be less than or equal to 64 (given 2000)"),
        (["--min-compute-capability", "hopper"], "gpus.min_compute_capability"),
    ],
)
async def test_what_the_service_refuses_is_wrong_usage_too(
    platform: Platform, arguments: list[str], words: str
) -> None:
    ran = await run("submit", *arguments, "--", "x", url=platform.url)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err


async def test_everything_typed_arrives(platform: Platform, tmp_path: Path) -> None:
    ran = await run(
        "submit", "--gpus", "2", "--gpu-memory", "16GiB", "--min-compute-capability", "8.0", "--gpu-model", "H100",
        "--time", "2h", "--name", "x", "--env", "A=1", "--env", "GPU_PLATFORM_USER", "--priority", "7",
        "--max-retries", "2", "--allow-cross-numa", "--strategy", "spread", "--rank-per", "gpu", "--grace", "30s",
        "--launcher", "torchrun", "--namespace", "lab", "--", "python", "train.py", "--gpus", "all",
        url=platform.url, cwd=tmp_path,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    job = jobs.get_job(platform.store, ran.out.strip())
    assert job.spec.model_dump(mode="json", exclude_defaults=True) == {
        "name": "x", "namespace": "lab", "user": "ada", "command": ["python", "train.py", "--gpus", "all"],
        "env": {"A": "1", "GPU_PLATFORM_USER": "ada"}, "workdir": str(tmp_path),
        "gpus": {
            "gpus_per_host": 2, "memory_mib": 16384, "min_compute_capability": "8.0", "model": "H100",
            "allow_cross_numa": True, "strategy": "spread",
        },
        "rank_per": "gpu", "launcher": "torchrun", "priority": 7, "time_limit_s": 7200, "max_retries": 2,
        "grace_s": 30.0,
    }  # fmt: skip


async def test_a_file_and_what_is_typed_over_it(platform: Platform, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        "name: from-file\ncommand: [python, train.py]\nenv: {A: file, B: file}\ngpus: {gpus_per_host: 2, model: H100}\n"
    )
    ran = await run("submit", "-f", "job.yaml", "--env", "A=typed", "--json", url=platform.url, cwd=tmp_path)
    job = json.loads(ran.out)
    assert job["spec"]["name"] == "from-file"
    assert job["spec"]["env"] == {"A": "***", "B": "***"}, "values are shown to nobody"
    assert jobs.get_job(platform.store, job["id"]).spec.env == {"A": "typed", "B": "file"}
    assert job["spec"]["gpus"]["model"] == "H100"
    (tmp_path / "job.yaml").write_text("comand: [x]\ncommand: [x]\n")
    ran = await run("submit", "-f", "job.yaml", url=platform.url, cwd=tmp_path)
    assert (ran.code, "comand: there is no such field" in ran.err) == (2, True)


async def test_submit_wait_returns_the_jobs_own_exit_code(platform: Platform) -> None:
    running = asyncio.create_task(run("submit", "--wait", "--", "x", url=platform.url))
    job = await platform.submitted()
    await asyncio.to_thread(platform.running, job.id)
    await asyncio.to_thread(platform.failed, job.id, 42)
    ran = await running
    assert (ran.code, ran.out) == (42, f"{job.id}\n")
    assert "rank 0 exited with 42" in ran.err
    assert (await run("jobs", "wait", job.id, url=platform.url)).code == 42
    assert (await run("jobs", "watch", job.id, url=platform.url)).code == 42


async def test_submit_follow_prints_only_the_jobs_output(platform: Platform) -> None:
    running = asyncio.create_task(run("submit", "--follow", "--", "x", url=platform.url))
    job = await platform.submitted()
    platform.logs.write(job.id, 1, 0, b"epoch 1\nepoch 2\n")
    await asyncio.to_thread(platform.running, job.id)
    await asyncio.to_thread(
        set_job_state,
        platform.store,
        job.id,
        JobState.COMPLETED,
        now=NOW,
        actor="control",
        update=JobUpdate(exit_code=0),
    )
    ran = await running
    assert (ran.code, ran.out) == (0, "epoch 1\nepoch 2\n")
    assert (await run("jobs", "logs", job.id, url=platform.url)).out == "epoch 1\nepoch 2\n"
    assert (await run("jobs", "logs", "-f", job.id, "--rank", "0", url=platform.url)).out == "epoch 1\nepoch 2\n"


async def test_interrupting_the_wait_leaves_the_job(platform: Platform) -> None:
    process = await start("submit", "--wait", "--", "x", url=platform.url)
    assert process.stdout is not None
    job_id = (await process.stdout.readline()).decode().strip()
    process.send_signal(signal.SIGINT)  # it may be anywhere after its first output
    _, err = await asyncio.wait_for(process.communicate(), 10)
    assert process.returncode == 130
    assert f"gpu-platform jobs cancel {job_id}" in err.decode()
    assert jobs.get_job(platform.store, job_id).state is JobState.PENDING


async def test_describe_tells_the_whole_story(platform: Platform) -> None:
    jobs.submit_job(
        platform.store, "j-1", spec(gpus_per_host=2, name="train"), actor="ada", now=NOW, idempotency_key=None
    )
    jobs.admit_job(platform.store, "j-1", NOW)
    queue.enqueue(platform.store, "j-1", 1, task_token=b"t", excluded_gpus=[], excluded_hosts=[], now=NOW)
    (row,) = queue.read_queue(platform.store)
    counts = [HostCount(code=ReasonCode.BUSY, hosts=1, asked="2 free", available="1 free")]
    reason = Reason(
        code=WaitCode.WAITING_FOR_GPUS,
        message="waits for 2 GPUs: 1 host, busy",
        counts=counts,
        next_step="wait for j-0 to end",
    )
    queue.set_reasons(platform.store, {row.class_key: reason}, NOW)
    out = (await run("jobs", "describe", "j-1", url=platform.url)).out
    for words in ("waits for 2 GPUs: 1 host, busy (place 1", "wait for j-0 to end", "2 free", "1 free", "busy"):
        assert words in out
    reserving.reserve_gang(platform.store, key("j-1"), placement({"a": [0, 1]}), now=NOW)
    ran = await run("jobs", "describe", "j-1", url=platform.url)
    for words in ("a: GPU 0-1", "for a test", "nvlink_numa, 450 GB/s", "placed on a", "submitted"):
        assert words in ran.out, ran.out
    story = json.loads((await run("jobs", "describe", "j-1", "--json", url=platform.url)).out)
    assert story["state"] == "ALLOCATED"
    assert story["events"][0]["kind"] == "job.submitted"
    assert story["checkpoint_at"] is None
    saved = SavedCheckpoint(key=key("j-1"), written_at=time.time() - 130)
    Cluster(platform.store).report("a", 2, checkpoints=[saved])
    assert re.search(r"checkpoint +2m[1-5]\ds ago", (await run("jobs", "describe", "j-1", url=platform.url)).out)
    assert "j-1" in (await run("jobs", "list", url=platform.url)).out
    assert json.loads((await run("jobs", "list", "--state", "running", "--json", url=platform.url)).out) == []


async def test_operating_hosts_and_gpus(platform: Platform) -> None:
    url = platform.url
    out = (await run("status", "--all", url=url)).out
    assert "1 READY" in out
    assert "2 AVAILABLE" in out
    assert "a:1" in out
    assert (await run("health", "--gpu-id", "a:1", url=url)).code == 0
    assert "a:1 is OFFLINE: noisy" in (await run("offline", "a:1", "--reason", "noisy", url=url)).err
    assert (await run("health", "--gpu-id", "a:1", url=url)).code == 1
    assert json.loads((await run("online", "a:1", "--json", url=url)).out)["state"] == "AVAILABLE"


async def test_a_drained_host_has_nothing_free(platform: Platform) -> None:
    url = platform.url
    assert "a is DRAINED" in (await run("drain", "a", url=url)).err
    told = (await run("status", "--all", url=url)).out
    assert "2 unavailable (host DRAINED)" in told
    assert re.search(r"^a +DRAINED .* 0 +2 ", told, re.MULTILINE)
    assert "AVAILABLE" not in told
    health = await run("health", url=url)
    assert (health.code, "AVAILABLE" in health.out, "unavailable" in health.out) == (1, False, True)
    one = await run("health", "--gpu-id", "a:0", url=url)
    assert (one.code, "unavailable" in one.out, "host DRAINED" in one.out) == (1, True, True)
    assert "a is READY" in (await run("online", "a", url=url)).err
    assert "a is DRAINED: taken offline by ada; no work until" in (await run("offline", "a", url=url)).err


async def test_hosts_are_listed_and_described(platform: Platform) -> None:
    listed = (await run("hosts", "list", url=platform.url)).out
    assert re.search(r"^a +READY .* 2 +2 ", listed, re.MULTILINE)
    assert [host["name"] for host in json.loads((await run("hosts", "list", "--json", url=platform.url)).out)] == ["a"]
    described = (await run("hosts", "describe", "a", url=platform.url)).out
    for words in ("2 of 2 free", "not guaranteed", "a:1"):
        assert words in described
    nobody = await run("hosts", "describe", "b", url=platform.url)
    assert (nobody.code, "no host 'b'" in nobody.err) == (3, True)


async def test_a_host_is_captured_as_a_machine_type_that_can_be_simulated(platform: Platform, tmp_path: Path) -> None:
    url = platform.url
    captured = await run("machines", "capture", "a", "--id", "mine", "-o", "mine.yaml", url=url, cwd=tmp_path)
    assert (captured.code, captured.err) == (0, "wrote mine.yaml\n")
    checked = await run("machines", "check", "mine.yaml", cwd=tmp_path)
    assert checked.code == 0
    assert checked.out.startswith("mine: ")
    (tmp_path / "wrong.yaml").write_text((tmp_path / "mine.yaml").read_text().replace("index: 1", "index: 0"))
    wrong = await run("machines", "check", "wrong.yaml", cwd=tmp_path)
    assert (wrong.code, "gpus has 0 twice" in wrong.err) == (2, True)
    nobody = await run("machines", "capture", "b", url=url)
    assert (nobody.code, "there is no host b; registered are: a" in nobody.err) == (3, True)


async def test_draining_one_gpu(platform: Platform) -> None:
    url = platform.url
    assert "a:1 is DRAINED: bad fan" in (await run("drain", "--gpu-id", "a:1", "--reason", "bad fan", url=url)).err
    out = (await run("health", "--gpu-id", "a:1", url=url)).out
    assert "DRAINED" in out
    assert "bad fan" in out
    again = await run("drain", "a:1", "--force", url=url)
    assert "a:1 is DRAINED: bad fan" in again.err, "asked again without a reason, the reason stays"
    assert "1 AVAILABLE, 1 DRAINED" in (await run("status", url=url)).out
    assert "a:1 is AVAILABLE" in (await run("online", "--gpu-id", "a:1", url=url)).err
    assert "a:0 is DRAINED" in (await run("drain", "a:0", "--wait", url=url)).err
    assert (await run("online", "a:0", url=url)).code == 0
    for arguments in (("drain",), ("offline", "a", "--gpu-id", "a:0")):
        ran = await run(*arguments, url=url)
        assert (ran.code, "name a HOST or a GPU" in ran.err) == (2, True)


async def test_the_owner_sees_who_stopped_a_job_and_why(platform: Platform) -> None:
    url = platform.url
    jobs.submit_job(platform.store, "j-1", spec(), actor="ada", now=NOW, idempotency_key=None)
    platform.running("j-1")
    by = StoppedBy(verb="kill", actor="root", reason="bad fan")
    attempts.end_attempt(
        platform.store, key("j-1"), [JobState.CANCELLED], now=NOW, actor="root", result=AttemptResult(stopped_by=by)
    )
    assert "killed by root: bad fan" in (await run("jobs", "list", url=url)).out
    out = (await run("jobs", "describe", "j-1", url=url)).out
    assert re.search(r"stopped +killed by root: bad fan", out)
    assert re.search(r"killed: bad fan +root", out)
    assert "j-1 CANCELLED: killed by root: bad fan" in (await run("jobs", "wait", "j-1", url=url)).err
    ran = await run("jobs", "kill", "j-1", url=url)
    assert (ran.code, "is CANCELLED" in ran.err) == (0, True)


@pytest.mark.parametrize("grace", ["0", "0s", "500ms"])
async def test_grace_may_be_nothing(platform: Platform, grace: str) -> None:
    ran = await run("submit", "--grace", grace, "--", "x", url=platform.url)
    assert ran.code == 0, ran.err
    assert (await platform.submitted()).spec.grace_s == (0.5 if grace == "500ms" else 0)


async def test_watch_goes_on_until_interrupted(platform: Platform) -> None:
    process = await start("watch", "--interval", "100ms", "--json", url=platform.url)
    assert process.stdout is not None
    for _ in range(2):
        assert json.loads(await process.stdout.readline())["hosts"][0]["name"] == "a"
    process.send_signal(signal.SIGINT)
    await asyncio.wait_for(process.communicate(), 10)
    assert process.returncode == 130


async def test_exit_codes_of_errors(platform: Platform) -> None:
    for arguments in (
        ("jobs", "describe", "j-0"),
        ("drain", "x"),
        ("health", "--gpu-id", "x:0"),
        ("jobs", "logs", "j-0"),
    ):
        ran = await run(*arguments, url=platform.url)
        assert (ran.code, ran.out) == (3, "")
        assert ran.err.startswith("Error: there is no ")
    job_id = (await run("submit", "--idempotency-key", "k", "--", "x", url=platform.url)).out.strip()
    assert (await run("submit", "--idempotency-key", "k", "--", "y", url=platform.url)).code == 4
    assert (await run("jobs", "preempt", job_id, url=platform.url)).code == 4
    assert (await run("submit", "--gpus", "3", "--", "x", url=platform.url)).code == 2
    assert "is being cancelled" in (await run("jobs", "cancel", job_id, url=platform.url)).err


async def test_the_record_of_a_gpu_is_exported_and_no_repair_is_no_repair(platform: Platform, tmp_path: Path) -> None:
    ran = await run("service-case", "a:0", "-o", str(tmp_path / "case.json"), url=platform.url)
    assert ran.code == 0
    case = json.loads((tmp_path / "case.json").read_text())
    assert (case["gpu"]["info"]["uuid"], case["open"]) == (uuid_of("a", 0), False)
    ran = await run("service-case", "a:0", "-o", str(tmp_path / "none" / "case.json"), url=platform.url)
    assert (ran.code, "cannot write" in ran.err, "No such file or directory" in ran.err) == (2, True, True)
    ran = await run("remediation", "show", "a:0", url=platform.url)
    assert (ran.code, "nothing is being done about GPU a:0" in ran.err) == (3, True)


async def test_inject_refuses_a_gpu_that_the_host_does_not_have(tmp_path: Path) -> None:
    open_nvml(NodeSettings(name="x", simulate="dgx-h100"), node_dir(tmp_path, "x"))
    inject = ("inject", "--host", "x", "--xid", "31", "--state-dir", str(tmp_path), "--gpu")
    ran = await run(*inject, "99")
    assert (ran.code, "it has 8, numbered 0 to 7" in ran.err) == (3, True)
    assert not list(events_dir(control_dir(node_dir(tmp_path, "x"))).iterdir())
    assert (await run(*inject, "7")).code == 0


async def test_inject_names_a_host_that_is_not_there(tmp_path: Path) -> None:
    ran = await run("inject", "--host", "x", "--gpu", "0", "--xid", "31", "--state-dir", str(tmp_path))
    assert ran.code == 3
    assert (await run("inject", "--host", "x", "--gpu", "0")).code == 2


async def test_nobody_answers_is_5() -> None:
    ran = await run("jobs", "list")
    assert (ran.code, ran.out) == (5, "")
    assert "gpu-platform up" in ran.err


async def test_usage_is_shown_for_a_job_and_summed_for_users(platform: Platform) -> None:
    jobs.submit_job(platform.store, "j-1", spec(), actor="ada", now=NOW, idempotency_key=None)
    jobs.admit_job(platform.store, "j-1", NOW)
    queue.enqueue(platform.store, "j-1", 1, task_token=b"t", excluded_gpus=[], excluded_hosts=[], now=NOW)
    reserving.reserve_gang(platform.store, key("j-1"), placement({"a": [0]}), now=NOW)
    assert "no attempt has ended yet" in (await run("usage", "j-1", url=platform.url)).out
    measured = RankUsage(
        rank=0, host="a", seconds=3600, gpu_seconds=3600, mean_utilization_percent=87, energy_j=1.8e6, cpu_s=12.5
    )
    later = NOW + timedelta(hours=1)
    attempts.end_attempt(
        platform.store,
        key("j-1"),
        [JobState.CANCELLED],
        now=later,
        actor="control",
        result=AttemptResult(usage=[measured]),
    )
    told = (await run("usage", "j-1", url=platform.url)).out
    for words in ("1.000", "87 %", "0.500 kWh", "12.5 s", "3600.0 s"):
        assert words in told, told
    assert "1.000 GPU-hours, 0.500 kWh" in (await run("jobs", "describe", "j-1", url=platform.url)).out
    story = json.loads((await run("jobs", "describe", "j-1", "--json", url=platform.url)).out)
    assert story["usage"]["attempts"][0]["ranks"][0]["energy_j"] == 1.8e6
    report = json.loads((await run("usage", "--user", "anonymous", "--json", url=platform.url)).out)
    assert report["total"]["gpu_seconds"] == 3600
    assert [user["user"] for user in report["users"]] == ["anonymous"]
    assert "all" in (await run("usage", "--namespace", "none", url=platform.url)).out
    assert json.loads((await run("usage", "--since", "1h", "--json", url=platform.url)).out)["users"] == []
    assert (await run("usage", "j-none", url=platform.url)).code == 3


async def test_the_report_is_shown_and_written_to_files(platform: Platform, tmp_path: Path) -> None:
    jobs.submit_job(platform.store, "j-1", spec(), actor="ada", now=datetime.now(UTC), idempotency_key=None)
    ran = await run("report", "--csv", "r.csv", "--html", "r.html", url=platform.url, cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert re.search(r"jobs submitted +1\b", ran.out)
    assert re.search(r"cluster,.*,submitted,1\n", (tmp_path / "r.csv").read_text())
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
    found = json.loads((await run("report", "--json", url=platform.url)).out)
    assert sum(part["submitted"] for part in found["parts"]) == found["jobs"]["submitted"] == 1
    refused = await run("report", "--since", "400d", url=platform.url)
    assert refused.code == 2
    assert "the period has 400 days; at most 366 are possible: give a later since" in refused.err


async def test_health_of_a_gpu_tells_what_happened_to_it(platform: Platform) -> None:
    report = FaultReport(
        fault_id="f1",
        host="a",
        gpu_uuid=uuid_of("a", 0),
        gpu_index=0,
        xid=31,
        action="reset",
        message="XID 31 (MMU page fault) on GPU 0 of a",
        at_ms=0,
    )
    gpu_states.record_fault(platform.store, report, NOW)
    gpu_states.begin_reset(platform.store, uuid_of("a", 0), report.message, NOW)
    gpu_states.record_fault(
        platform.store, report.model_copy(update={"fault_id": "f2", "gpu_uuid": uuid_of("a", 1)}), NOW
    )
    ran = await run("health", "--gpu-id", "a:0", url=platform.url)
    assert ran.code == 1
    assert "XID 31 (MMU page fault) on GPU 0 of a -> reset" in ran.out
    assert "is RESETTING" in ran.out
    story = json.loads((await run("health", "--gpu-id", "a:0", "--json", url=platform.url)).out)
    assert [event["kind"] for event in story["events"]][-2:] == ["gpu.fault", "gpu.state"]
    assert {event["gpu_uuid"] for event in story["events"]} == {uuid_of("a", 0)}

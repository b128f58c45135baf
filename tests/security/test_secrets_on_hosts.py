"""Secrets on a host: a rank gets them, commands beside it too, and no disk ever does."""

from __future__ import annotations

import base64
import os
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.domain.jobs.secret_uses import LaunchSecrets, SecretUse
from gpu_platform.node.isolation.orders import BadOrder, JailOrder
from gpu_platform.node.isolation.secret_files import SecretFiles
from gpu_platform.node.processes import secret_delivery
from gpu_platform.node.processes.secret_delivery import AWAY, NO_SECRETS
from tests.integration.test_hosts_exec import ExecRig
from tests.support.hosts_rig import HostRig, kill
from tests.support.waiting import eventually
from tests.unit.node.test_orders import JAIL, _sent

VALUE, CONTENT, TOKEN = "hunter2-rosebud", b"\xff\0hunter2-file", "gpj_hunter2-token"
USES = (SecretUse(name="key", env="KEY"), SecretUse(name="cert", file="cert.pem"))
SHOW = (
    'echo "$KEY" | md5sum; md5sum < $GPU_PLATFORM_SECRETS_DIR/cert.pem; md5sum < $GPU_PLATFORM_TOKEN_FILE; '
    "stat -c %a $GPU_PLATFORM_SECRETS_DIR/cert.pem $GPU_PLATFORM_TOKEN_FILE"
)
"""Shows that it has the secrets, without writing them into its log."""


class Service:
    """Gives secrets, or says that it is away."""

    def __init__(self) -> None:
        self.asked = 0
        self.is_away = False

    def __call__(self, plan: HostPlan) -> LaunchSecrets:
        self.asked += 1
        if self.is_away:
            raise HostUnavailable("no service gives them now", **{NO_SECRETS: AWAY})
        files = {"cert.pem": base64.b64encode(CONTENT).decode()}
        return LaunchSecrets(environ={"KEY": VALUE}, files=files, token=TOKEN)


def shown() -> str:
    from hashlib import md5

    sums = [md5(data).hexdigest() for data in (f"{VALUE}\n".encode(), CONTENT, TOKEN.encode())]
    return "".join(f"{one}  -\n" for one in sums) + "400\n400\n"


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where plain ranks find their secrets, apart from those of other tests."""
    directory = Path("/dev/shm") / f"test-{os.getpid()}-{tmp_path.name}"
    directory.mkdir(0o700)
    monkeypatch.setattr(secret_delivery, "_MEMORY", str(directory))
    yield directory
    for path in sorted(directory.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    directory.rmdir()


@pytest.fixture(params=["plain", "jailed"])
async def host(
    request: pytest.FixtureRequest, tmp_path: Path, memory: Path, service: Service
) -> AsyncIterator[ExecRig]:
    options: dict[str, Any] = {"isolation": "plain"}
    if request.param == "jailed":
        request.getfixturevalue("jails")
        options = {"isolation": "required"}
    rig = HostRig(tmp_path / "state", secrets=service, **options)
    found = ExecRig(rig)
    yield found
    await rig.aclose()
    found.sessions.close()


def plan_of(host: ExecRig, script: str, **changes: Any) -> HostPlan:
    return host.rig.plan("sh", "-c", script, secrets=USES, job_token=True, **changes)


def files_with(directory: Path, *needles: bytes) -> list[str]:
    """Files below the directory that hold one of the values, also in base64."""
    wanted = [*needles, *(base64.b64encode(needle)[:-4] for needle in needles)]
    files = [path for path in directory.rglob("*") if path.is_file() and not path.is_symlink()]
    return [path.name for path in files if any(needle in _content(path) for needle in wanted)]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:  # the host removed it meanwhile
        return b""


def on_disk(host: ExecRig) -> list[str]:
    return files_with(host.rig.settings.state_dir, VALUE.encode(), CONTENT, TOKEN.encode())


async def test_a_rank_and_commands_beside_it_get_the_secrets_and_no_disk_does(host: ExecRig, memory: Path) -> None:
    plan = plan_of(host, f"{SHOW}; sleep 600")
    host.rig.launch(plan)
    await eventually(lambda: host.rig.log(plan).count("\n") == 5, "its output")
    assert host.rig.log(plan) == shown()
    assert (await host.run(plan.key, "sh", "-c", SHOW)).out == shown()
    assert on_disk(host) == []
    (host.rig.settings.state_dir / "planted").write_bytes(b"... " + VALUE.encode())
    assert on_disk(host) == ["planted"], "this test would find it"
    (host.rig.settings.state_dir / "planted").unlink()
    await host.rig.stop(plan.key)
    assert on_disk(host) == []
    assert [path for path in memory.rglob("*") if path.is_file()] == []


async def test_a_node_worker_that_restarts_needs_no_secret_and_finds_none(
    host: ExecRig, service: Service, memory: Path
) -> None:
    plan = plan_of(host, f"{SHOW}; sleep 600")
    host.rig.launch(plan)
    service.is_away = True
    host.rig.restart()
    launched = host.rig.launch(plan)
    assert [rank.rank for rank in launched.ranks] == [0]
    assert service.asked == 1
    assert (await host.run(plan.key, "sh", "-c", SHOW)).out == shown()
    await host.rig.stop(plan.key)
    assert [path for path in memory.rglob("*") if path.is_file()] == []


async def test_nothing_is_left_after_a_supervisor_was_killed(host: ExecRig, memory: Path) -> None:
    plan = plan_of(host, "sleep 600")
    host.rig.launch(plan)
    supervisor = host.rig.worker.local.rank(plan.key, 0).supervisor
    assert supervisor is not None
    kill(supervisor.pid)
    await host.rig.stop(plan.key)
    assert on_disk(host) == []
    assert [path for path in memory.rglob("*") if path.is_file()] == []


async def test_a_rank_does_not_start_without_its_secrets(host: ExecRig, service: Service) -> None:
    service.is_away = True
    plan = plan_of(host, "true")
    with pytest.raises(HostUnavailable) as refused:
        host.rig.launch(plan)
    assert refused.value.details[NO_SECRETS] == AWAY
    assert host.rig.worker.local.rank(plan.key, 0).started is None
    service.is_away = False
    host.rig.launch(plan)
    assert (await host.rig.watch(plan)).first_failure is None


async def test_a_job_without_secrets_asks_nobody(host: ExecRig, service: Service) -> None:
    plan = host.rig.plan("sh", "-c", "env")
    host.rig.launch(plan)
    await host.rig.watch(plan)
    assert service.asked == 0
    assert "GPU_PLATFORM_SECRETS_DIR" not in host.rig.log(plan)


@pytest.mark.parametrize("host", ["jailed"], indirect=True)
async def test_in_a_jail_a_rank_reads_its_files_and_not_those_of_the_platform(host: ExecRig) -> None:
    script = (
        "cat /run/gpu-platform/environ; rm /run/secrets/cert.pem; touch /run/secrets/new; "
        "stat -c '%a %u' /run/gpu-platform/environ; stat -f -c %T /run/secrets"
    )
    plan = plan_of(host, script)
    host.rig.launch(plan)
    await host.rig.watch(plan)
    log = host.rig.log(plan)
    assert VALUE not in log
    assert log.count("Permission denied") == 3
    assert "400 0\ntmpfs" in log


@pytest.mark.parametrize("host", ["plain"], indirect=True)
async def test_in_plain_mode_files_are_in_memory_and_for_this_account_alone(host: ExecRig, memory: Path) -> None:
    plan = plan_of(host, "sleep 600")
    host.rig.launch(plan)
    [own] = memory.iterdir()
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in own.rglob("*") if path.is_file()} == {0o400}
    assert os.statvfs(own).f_fsid == os.statvfs("/dev/shm").f_fsid


@pytest.mark.parametrize("host", ["plain"], indirect=True)
async def test_a_directory_that_somebody_else_made_is_not_used(host: ExecRig, memory: Path) -> None:
    trap = memory / f"gpu-platform-{os.geteuid()}"
    trap.mkdir()
    trap.chmod(0o777)
    with pytest.raises(HostUnavailable, match="not this account's alone"):
        host.rig.launch(plan_of(host, "true"))
    assert list(trap.iterdir()) == []


@pytest.mark.parametrize(
    "wrong",
    [
        VALUE,
        [{"KEY": VALUE}, {}],
        [{"KEY": [VALUE]}, {}, None],
        [{"KEY": f"{VALUE}\0"}, {}, None],
        [{}, {f"../{VALUE}": ""}, None],
        [{}, {"name": f"{VALUE}!"}, None],
        [{}, {}, [VALUE]],
    ],
)
def test_an_order_with_wrong_secrets_is_refused_without_saying_them(wrong: Any) -> None:
    with pytest.raises(BadOrder) as refused:
        JailOrder.parse({**_sent(JAIL), "secrets": wrong})
    assert VALUE not in str(refused.value)


def test_an_order_with_secrets_arrives_and_does_not_show_them() -> None:
    order = JAIL._replace(secrets=SecretFiles({"KEY": VALUE}, {"cert.pem": CONTENT}, TOKEN))
    assert JailOrder.parse(_sent(order)) == order
    assert "hunter2" not in repr(order)
    assert "hunter2" not in repr(LaunchSecrets(environ={"KEY": VALUE}, token=TOKEN))

"""``jobs forward`` and the jail: it leads to what the job itself listens at, and to nothing else on the host."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pytest

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import PortClosed
from gpu_platform.domain.jobs.exec import ExecRequest
from gpu_platform.node.isolation.jail import Jail
from gpu_platform.node.network.choice import choose_network
from gpu_platform.node.processes.forwarding import ForwardWay
from gpu_platform.node.system.paths import attempt_dir
from gpu_platform.settings.node import NetworkSettings
from tests.integration.test_hosts_exec import ExecRig
from tests.security.attacks import attack
from tests.support.hosts_rig import HostRig
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("jails")

SERVER = """
listening = socket.create_server(("127.0.0.1", {port}))
print(listening.getsockname()[1], flush=True)
while True:
    link, where = listening.accept()
    link.sendall(b"of %d" % os.getuid())
    link.close()
"""


@pytest.fixture(params=["own", "host"])
async def host(request: pytest.FixtureRequest, tmp_path: Path, dev: Path) -> AsyncIterator[ExecRig]:
    mode: Literal["auto", "host"] = "host" if request.param == "host" else "auto"
    if mode == "auto" and not choose_network(NetworkSettings()).isolated:
        assert not os.environ.get("CI")
        pytest.skip("attempts have no network of their own here")
    options: dict[str, Any] = {"network": NetworkSettings(mode=mode)}
    rig = HostRig(tmp_path / "state", isolation="required", dev=dev, users={"bob": "nobody"}, **options)
    found = ExecRig(rig)
    yield found
    found.sessions.close()
    await rig.aclose()


async def serving(host: ExecRig, gpu: int, port: int = 0) -> tuple[AttemptKey, int]:
    plan = attack(host.rig, SERVER.format(port=port), gpu).model_copy(update={"user": "bob"})
    host.rig.launch(plan)
    return plan.key, int(await eventually(lambda: host.rig.log(plan), "its port"))


async def answer(host: ExecRig, key: AttemptKey, port: int) -> bytes:
    way = await host.sessions.start(key, ExecRequest(port=port))
    connection = host.sessions.get(key, 0, await host.sessions.connect(key, 0, way))
    await connection.write(0, b"", eof=True)
    async with asyncio.timeout(20):
        return b"".join([chunk.data async for chunk in connection.follow(0) if chunk.stream == "stdout"])


async def refused(host: ExecRig, key: AttemptKey, port: int) -> str:
    with pytest.raises(PortClosed) as found:
        await answer(host, key, port)
    return found.value.message


async def test_only_what_the_job_listens_at_is_reached(host: ExecRig) -> None:
    mine, port = await serving(host, 0)
    _, of_other = await serving(host, 1)
    assert await answer(host, mine, port) == b"of 65534"
    with socket.create_server(("127.0.0.1", 0)) as loopback, socket.create_server(("0.0.0.0", 0)) as everywhere:
        for one in (loopback, everywhere):
            one.setblocking(False)
            assert "start your server there" in await refused(host, mine, one.getsockname()[1])
            with pytest.raises(BlockingIOError):
                one.accept()
    if of_other != port:
        assert "start your server there" in await refused(host, mine, of_other)


async def test_the_connector_is_where_the_rank_is_and_nobody_more(host: ExecRig) -> None:
    """In its cgroup, as its account, without privileges, in no other network, and out of reach of the job."""
    mine, port = await serving(host, 0)
    way = host.sessions.get(mine, 0, await host.sessions.start(mine, ExecRequest(port=port)))
    assert isinstance(way, ForwardWay)
    jail = Jail.of(str(attempt_dir(host.rig.home, mine)))
    rank = host.rig.worker.local.rank(mine, 0).main_process
    assert jail is not None
    assert rank is not None
    [pid] = jail.cgroup.child("rank-0").processes() - {rank.pid}
    status = Path(f"/proc/{pid}/status").read_text()
    assert status.split("Uid:")[1].split()[:4] == ["65534"] * 4
    assert int(status.split("CapEff:")[1].split()[0], 16) == 0
    assert (status.split("NoNewPrivs:")[1].split()[0], status.split("Seccomp:")[1].split()[0]) == ("1", "2")
    for kind in ("net", "pid", "mnt"):
        assert os.readlink(f"/proc/{pid}/ns/{kind}") == os.readlink(f"/proc/{rank.pid}/ns/{kind}")
    assert len(os.listdir(f"/proc/{pid}/fd")) == 4, "stdin, stdout, stderr and its channel"
    spy = await host.run(mine, "sh", "-c", "for p in /proc/[0-9]*; do ls $p/fd >/dev/null 2>&1 || echo no; done")
    assert "no" in spy.out.split(), "the job cannot look into it"
    way.end("test")
    await eventually(lambda: jail.cgroup.child("rank-0").processes() == {rank.pid}, "its end")

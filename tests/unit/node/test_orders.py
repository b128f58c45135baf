"""Orders to the privileged side: what is built arrives as it was, and what is wrong is refused with a clear message."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_platform.node.isolation.cgroups.cgroup import Hierarchies
from gpu_platform.node.isolation.cgroups.cgroup_limits import Limits
from gpu_platform.node.isolation.filters.device_filter import Device
from gpu_platform.node.isolation.orders import (
    BadOrder,
    ExecOrder,
    JailOrder,
    LeaseTerms,
    RankJailOrder,
    RankOrder,
    parse_order,
)
from gpu_platform.node.isolation.passwd import Account
from gpu_platform.node.isolation.sandbox import Mounts
from gpu_platform.node.isolation.workdirs import Directory
from gpu_platform.node.processes.spawner_client import SpawnerClient

RANK = RankOrder(
    rank_dir="/state/jobs/j/1/rank-0",
    attempt_dir="/state/jobs/j/1",
    argv=["sleep", "1"],
    env={"PATH": "/bin"},
    workdir=None,
    host="box",
    log_file_bytes=1 << 20,
    log_files=3,
    lease=LeaseTerms("/state/lease.json", 4, ends_rank=True),
    jail=RankJailOrder(0, Limits(1 << 30, 100, "0-3", "0", 200), 1000, 1000, 1 << 20),
    cpus=[0, 1],
)
JAIL = JailOrder(
    attempt_dir="/state/jobs/j/1",
    hierarchies=Hierarchies("/sys/fs/cgroup", ["memory", "pids"], {"devices": "/sys/fs/cgroup/devices"}),
    cgroup="gpu-platform/abc.box.j.1",
    devices=[Device(195, 0), Device(195, None)],
    mounts=Mounts(["/scratch"], ["/state"], [], ["/dev/nvidia0"], 1024, None, 1000, 64),
    limits=Limits(),
    account=Account("job-70000", 70_000, 70_000, "/tmp/home", [70_000]),
    directories=[Directory("/home/ada/x", "/home", "account"), Directory("/state/c/j/1", "/state/c", "owned")],
)
EXEC = ExecOrder(
    "00ff",
    "/state/jobs/j/1/rank-0",
    "/state/jobs/j/1",
    ["sh"],
    tty=True,
    rows=24,
    columns=80,
    term="xterm",
    jailed=True,
)


def _sent(order: RankOrder | JailOrder | ExecOrder) -> Any:
    return json.loads(json.dumps(order.to_json()))


def test_an_order_arrives_as_it_was_built() -> None:
    plain = RANK._replace(lease=None, jail=None, cpus=None, workdir="/home/ada")
    container = JAIL._replace(root=Directory("/srv/rootfs", "/", "account"))
    for order in (RANK, plain, JAIL, container):
        assert parse_order(_sent(order)) == order
    for command in (EXEC, EXEC._replace(argv=[], port=8888)):
        assert ExecOrder.parse(_sent(command)) == command


@pytest.mark.parametrize(
    ("order", "change", "says"),
    [
        (RANK, {"argv": "rm -rf /"}, "argv of the order of a rank must be a list of texts, not str 'rm -rf /'"),
        (RANK, {"argv": []}, "argv .* must be a list of texts"),
        (RANK, {"argv": ["a\0b"]}, "argv .* must be a list of texts"),
        (RANK, {"env": {"A": 1}}, "env .* must be an object of texts"),
        (RANK, {"env": {"A=B": "c"}}, "env .* must be an object of texts"),
        (RANK, {"rank_dir": "rank-0"}, "rank_dir .* must be an absolute path"),
        (RANK, {"rank_dir": "/etc/cron.d"}, "rank_dir '/etc/cron.d' is not in the attempt's directory"),
        (RANK, {"rank_dir": "/state/jobs/j/1/../../rank-0"}, "is not in the attempt's directory"),
        (RANK, {"log_files": -1}, "log_files .* must be"),
        (RANK, {"log_file_bytes": True}, "log_file_bytes .* must be"),
        (RANK, {"cpus": ["0"]}, "cpus .* must be a list of numbers"),
        (RANK, {"host": None}, "host .* must be a text, not NoneType"),
        (RANK, {"lease": "none"}, "lease .* must be an object"),
        (
            RANK,
            {"lease": {"path": "/l", "term": "4", "ends_rank": True}},
            "term of the lease of a rank must be a number",
        ),
        (RANK, {"lease": {"path": "/l", "term": 4}}, "the lease of a rank has no field 'ends_rank'"),
        (RANK, {"jail": {"rank": 0, "limits": [None] * 7, "uid": -1, "gid": 0}}, "uid of the jail of a rank must be"),
        (
            RANK,
            {"jail": {"rank": 0, "limits": [None] * 3, "uid": 1, "gid": 0}},
            "limits of the jail of a rank must be",
        ),
        (RANK, {"root": True}, "the order of a rank has unknown fields: root"),
        (RANK, {"kind": "shell"}, "an order is of the kind 'rank' or 'jail', not 'shell'"),
        (JAIL, {"cgroup": "system.slice/sshd.service"}, "is not below 'gpu-platform'"),
        (JAIL, {"cgroup": "gpu-platform/../init.scope"}, "is not below 'gpu-platform'"),
        (JAIL, {"devices": [[8, "0"]]}, "devices .* must be a list of \\[major, minor\\]"),
        (JAIL, {"hierarchies": ["/sys", []]}, "hierarchies .* must be"),
        (JAIL, {"mounts": [["scratch"], [], [], [], 1, None]}, "mounts .* must be"),
        (JAIL, {"limits": ["1G", None, None, None]}, "limits of the order of a jail must be"),
        (JAIL, {"account": ["root", 0, 0, "/root", []]}, "account .* must be an account other than root's"),
        (JAIL, {"account": ["ada", 1000, 1000, "/home/ada", [0]]}, "account .* must be an account other than root's"),
        (JAIL, {"account": ["a:b", 1000, 1000, "/home/ada", []]}, "account .* must be an account other than root's"),
        (JAIL, {"root": ["/etc", "/", "account"]}, "root .* must be a directory outside the system's"),
        (JAIL, {"root": ["/", "/", "account"]}, "root .* must be a directory outside the system's"),
        (JAIL, {"root": ["/srv/../etc", "/", "account"]}, "root .* must be"),
        (JAIL, {"root": ["/srv/rootfs", "/", "owned"]}, "root .* must be"),
        (JAIL, {"root": ["/srv/rootfs", "/", "read"]}, "root .* must be"),
        (JAIL, {"root": "/srv/rootfs"}, "root .* must be"),
        (JAIL, {"directories": [["/etc", "/", "account"]]}, "directories .* must be a list of directories outside"),
        (JAIL, {"directories": [["/root/x", "/root", "account"]]}, "directories .* must be"),
        (JAIL, {"directories": [["/home/../etc", "/home", "account"]]}, "directories .* must be"),
        (JAIL, {"directories": [["/scratch/a", "/home", "account"]]}, "directories .* must be"),
        (JAIL, {"directories": [["/home/ada", "/home", "anyhow"]]}, "directories .* must be"),
        (
            RANK,
            {"jail": {"rank": 0, "limits": [None] * 7, "uid": None, "gid": None}},
            "a rank in a jail runs as an account other than root's",
        ),
        (RANK, {"jail": {"rank": 0, "limits": [None] * 7, "uid": 0, "gid": 5}}, "an account other than root's"),
    ],
)
def test_a_bad_order_is_refused_and_says_what_is_wrong(
    order: RankOrder | JailOrder, change: dict[str, Any], says: str
) -> None:
    with pytest.raises(BadOrder, match=says):
        parse_order(_sent(order) | change)


def test_a_field_that_is_missing_is_named() -> None:
    sent = _sent(RANK)
    for name in ("rank_dir", "attempt_dir", "argv", "env", "host", "log_files"):
        with pytest.raises(BadOrder, match=f"the order of a rank has no field '{name}'"):
            parse_order({key: value for key, value in sent.items() if key != name})
    with pytest.raises(BadOrder, match="not None"):
        parse_order([sent])


@pytest.mark.parametrize(
    "change",
    [
        {"id": "../claim"},
        {"tty": 1},
        {"rows": -1},
        {"argv": [1]},
        {"as": "root"},
        {"argv": []},
        {"port": 80},
        {"argv": [], "port": 0},
        {"argv": [], "port": 65_536},
        {"argv": [], "port": "80"},
    ],
)
def test_a_bad_order_of_a_command_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadOrder):
        ExecOrder.parse(_sent(EXEC) | change)


def test_the_record_of_an_order_may_be_of_another_release() -> None:
    sent = _sent(RANK)
    assert RankOrder.read(sent | {"number": 7, "of_a_later_release": 1}) == RANK
    earlier = {key: value for key, value in sent.items() if key not in ("kind", "lease", "cpus")}
    assert RankOrder.read(earlier) == RANK._replace(lease=None, cpus=None)


@pytest.fixture
def spawner() -> Iterator[SpawnerClient]:
    client = SpawnerClient()
    yield client
    client.close()


def test_the_spawner_answers_a_bad_order_and_goes_on(spawner: SpawnerClient, tmp_path: Path) -> None:
    attempt = tmp_path / "attempt"
    good = RANK._replace(
        rank_dir=str(attempt / "rank-0"), attempt_dir=str(attempt), argv=["true"], lease=None, jail=None, cpus=None
    )
    before = spawner.pid
    [refused, started] = spawner.start_ranks([good._replace(rank_dir="/etc/cron.d"), good])
    assert refused["status"] == "error"
    assert "the order was refused: rank_dir '/etc/cron.d' is not in the attempt's directory" in refused["message"]
    assert started["status"] == "started"
    assert spawner.pid == before

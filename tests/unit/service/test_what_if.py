"""What-ifs over REST: what they say, and that they take neither the service's time nor anything else from it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import httpx
import pytest

from gpu_platform.domain.errors import InvalidRequest, TooManyRequests
from gpu_platform.domain.placing.what_if import AddedHosts, WhatIf, WhatIfRequest
from gpu_platform.store import Store
from service.operations import dry_runs
from service.operations.what_if_process import with_hosts
from service.operations.what_ifs import WhatIfs
from tests.support.api_server import application, in_process
from tests.support.store_cluster import Cluster

PATH = "/v1/snapshot:what-if"


@pytest.fixture
async def http(sqlite_store: Store) -> AsyncIterator[httpx.AsyncClient]:
    """A host whose GPUs one job has, and two jobs that wait for one each."""
    cluster = Cluster(sqlite_store).host("a", gpus=2)
    for job in ("j-has", "j-next", "j-last"):
        cluster.queued(job)
    cluster.reserve("j-has", {"a": [0, 1]})
    async with in_process(application(sqlite_store, "127.0.0.1:1")) as http:
        yield http


async def test_more_hosts_let_a_waiting_job_start_at_once_and_nothing_is_changed(
    http: httpx.AsyncClient, sqlite_store: Store
) -> None:
    before = dry_runs.snapshot(sqlite_store)
    asked = {"hosts": [{"count": 1, "like": "a"}]}
    found = WhatIf.model_validate_json((await http.post(PATH, json=asked)).raise_for_status().content)
    assert (found.now.gpus, found.then.gpus) == (2, 4)
    # The job that runs has no time limit, so it runs for ever.
    assert [(one.now_s, one.then_s) for one in found.starts] == [(None, 0.0), (None, 0.0)]
    assert (found.now.started, found.then.started) == (0, 2)
    assert (found.now.waiting, found.then.waiting) == (2, 0)
    assert "run for ever" in " ".join(found.notes)
    assert len(found.then.series.at_s) == len(found.then.series.held_gpus)
    after = dry_runs.snapshot(sqlite_store)
    assert (after.hosts, after.queue, after.seq) == (before.hosts, before.queue, before.seq)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"settings": ["order=no-such-order"]}, "no-such-order"),
        ({"settings": ["no_such_setting=1"]}, "no_such_setting"),
        ({"hosts": [{"count": 1, "like": "nowhere"}]}, "nowhere"),
        ({"hosts": [{"count": 1, "machine": "../../etc/passwd"}]}, "machine"),
        ({"hosts": [{"count": 1}]}, "like"),
        ({"hosts": [{"count": 1001, "like": "a"}]}, "1000"),
        ({"hosts": [{"count": 600, "like": "a"}, {"count": 600, "like": "a"}]}, "1200"),
        ({"until_s": 1e9}, "until_s"),
        ({"until_s": 5e-324}, "until_s"),
        ({"lasting_s": 5e-324}, "lasting_s"),
    ],
)
async def test_what_cannot_be_answered_is_refused_with_the_reason(
    http: httpx.AsyncClient, asked: dict[str, object], said: str
) -> None:
    answer = await http.post(PATH, json=asked)
    assert answer.status_code == 422, answer.text
    assert said in answer.text


async def test_one_is_computed_at_a_time_and_one_that_takes_too_long_is_ended(
    http: httpx.AsyncClient, sqlite_store: Store
) -> None:
    state = dry_runs.snapshot(sqlite_store)
    slow = WhatIfs(longest_s=0.05)
    first = asyncio.create_task(slow.ask("ada", state, WhatIfRequest()))
    await asyncio.sleep(0)
    with pytest.raises(TooManyRequests, match="one at a time"):
        await slow.ask("eve", state, WhatIfRequest())
    with pytest.raises(InvalidRequest, match="longer than"):
        await first
    assert not processes(), "it is ended, and not left behind"
    with pytest.raises(InvalidRequest, match="longer than"):
        await slow.ask("eve", state, WhatIfRequest())


def test_added_hosts_have_gpus_of_their_own(http: httpx.AsyncClient, sqlite_store: Store) -> None:
    state = dry_runs.snapshot(sqlite_store)
    added = [AddedHosts(count=3, like="a"), AddedHosts(count=2, machine="dgx-1v"), AddedHosts(count=1, like="a")]
    larger = with_hosts(state, added)
    names, uuids = [host.name for host in larger.hosts], [gpu.uuid for gpu in larger.gpus]
    assert len(names) == len(set(names)) == 7
    assert len(uuids) == len(set(uuids)) == 2 + 3 * 2 + 2 * 8 + 2
    assert {gpu.uuid for host in larger.hosts for gpu in host.inventory.gpus} == set(uuids)


def processes() -> list[str]:
    """The what-ifs that this process has started and that still run."""
    found: list[str] = []
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        for child in file.read().split():
            with open(f"/proc/{child}/cmdline") as line:
                found += [child for _ in [0] if "what_if_process" in line.read()]
    return found

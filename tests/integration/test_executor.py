"""Functions as jobs, on a running platform: results, exceptions, cancelling, and what must lose or double no result."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import time
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gpu_platform.client import Client
from gpu_platform.client.credentials import Token
from gpu_platform.domain.errors import InvalidRequest, NoResult, NotSignedIn
from gpu_platform.executor import Executor
from gpu_platform.executor.futures import RemoteTraceback
from tests.integration.notebook import CELLS
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    config = ClusterConfig(state_dir=tmp_path_factory.mktemp("cluster"), nodes=(NodeSpec("a", "dgx-h100"),), ui=False)
    async with LocalCluster(config) as cluster:
        yield cluster


@pytest.fixture
def executor(cluster: LocalCluster, tmp_path: Path) -> Iterator[Executor]:
    with Client(cluster.api_url, retry_for_s=30) as client:
        executor = Executor(directory=tmp_path / "calls", workdir=tmp_path, client=client)
        yield executor
        executor.shutdown(cancel_futures=True)


async def off_loop(function: Any, *arguments: Any) -> Any:
    return await asyncio.to_thread(function, *arguments)


@pytest.mark.long
async def test_a_map_is_one_array_with_a_future_for_each_call(executor: Executor, tmp_path: Path) -> None:
    factor = 7  # a closure, as a notebook's functions have

    def multiply(x: int, y: int) -> tuple[int, str | None]:
        return factor * x * y, os.environ.get("GPU_PLATFORM_ARRAY_INDEX")

    futures = executor.map(multiply, range(3), [1, 10, 100])
    assert len({future.job_id.partition(".")[0] for future in futures}) == 1
    done, _ = await off_loop(concurrent.futures.wait, futures, 60)
    assert done == set(futures)
    assert [future.result() for future in futures] == [(0, "0"), (70, "1"), (1400, "2")]
    await off_loop(executor.shutdown)
    assert not list((tmp_path / "calls").iterdir()), "what is done leaves no files"
    with pytest.raises(RuntimeError, match="shut down"):
        executor.submit(multiply, 1, 1)


async def test_one_call_gets_its_gpu_and_can_be_awaited(executor: Executor, cluster: LocalCluster) -> None:
    with Client(cluster.api_url) as client:
        one = Executor(directory=executor._directory, workdir=executor._workdir, client=client, gpus=1)
        future = one.submit(lambda *, name: os.environ[name], name="CUDA_VISIBLE_DEVICES")
        assert (await future).startswith("GPU-")
        assert client.get(future.job_id).spec.gpus.gpus == 1
        one.shutdown()


async def test_an_exception_comes_back_with_the_place_where_it_was_raised(executor: Executor) -> None:
    class Odd(Exception):
        def __init__(self, a: int, b: int) -> None:
            super().__init__("made of two")

    def divide(x: int) -> float:
        if x == 2:
            raise Odd(1, 2)  # cannot be rebuilt from its message
        return 1 / x

    futures = executor.map(divide, [1, 0, 2])
    assert await futures[0] == 1.0
    error = await off_loop(futures[1].exception, 60)
    assert isinstance(error, ZeroDivisionError)
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "in divide" in str(error.__cause__)
    with pytest.raises(NoResult, match="made of two"):
        await futures[2]


async def test_a_job_that_is_killed_has_no_result_and_says_why(executor: Executor) -> None:
    future = executor.submit(os.kill, 0, signal.SIGKILL)
    with pytest.raises(NoResult, match=f"FAILED without a result.*jobs logs {future.job_id}"):
        await future


async def test_a_call_that_runs_is_cancelled_and_others_go_on(executor: Executor, cluster: LocalCluster) -> None:
    slow, quick = executor.map(time.sleep, [600, 0.01])
    assert await quick is None
    await eventually(slow.running, "the call to run")
    with pytest.raises(concurrent.futures.TimeoutError):
        slow.result(timeout=0.01)
    assert slow.cancel()
    assert slow.cancelled()
    assert not quick.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        slow.result()
    with Client(cluster.api_url) as client:
        ended = await off_loop(client.wait_for_array, slow.job_id.partition(".")[0], 30)
        assert ended.counts == {"CANCELLED": 1, "COMPLETED": 1}


async def test_a_retried_call_runs_until_it_has_one_result(cluster: LocalCluster, tmp_path: Path) -> None:
    def count(path: str) -> int:
        with open(path, "a") as file:
            file.write("x")
        if os.path.getsize(path) < 2:
            raise OSError("not yet")
        return os.path.getsize(path)

    with Client(cluster.api_url) as client:
        executor = Executor(
            directory=tmp_path / "c", workdir=tmp_path, client=client, keep=True, max_retries=3, retry_wait_s=1
        )
        future = executor.submit(count, str(tmp_path / "tries"))
        assert await future == 2
        executor.shutdown()
        assert client.get(future.job_id).attempt == 2
        # An attempt that starts although a result is there (its host was lost before it could say so) changes nothing.
        [folder] = (tmp_path / "c").iterdir()
        process = await asyncio.create_subprocess_exec(executor._python, folder / "run_call.py", folder)
        assert await process.wait() == 0
        assert (tmp_path / "tries").read_text() == "xx"


async def test_results_are_there_after_the_process_that_submitted_ended(cluster: LocalCluster, tmp_path: Path) -> None:
    with Client(cluster.api_url) as client:
        first = Executor(directory=tmp_path / "calls", workdir=tmp_path, client=client)
        ids = [future.job_id for future in first.map(pow, [2, 3], [5, 2])]
        first.shutdown(wait=False)  # as a notebook's kernel that ends
        second = Executor(directory=tmp_path / "calls", workdir=tmp_path, client=client)
        futures = second.attach(ids[0].partition(".")[0])
        assert [await future for future in futures] == [32, 9]
        second.shutdown()
        with pytest.raises(InvalidRequest, match="has no files of a-none"):
            second.attach("a-none")


async def test_what_is_refused_leaves_no_files_and_what_is_only_hidden_keeps_them(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    where = {"directory": tmp_path / "calls", "workdir": tmp_path}
    with Client(cluster.api_url) as client:
        for wrong in ({"gpus": 9}, {"name": "no name"}):
            executor = Executor(**where, client=client, **wrong)
            with pytest.raises((InvalidRequest, ValueError)):
                executor.submit(len, "x")
        assert not list((tmp_path / "calls").iterdir())
        executor = Executor(**where, client=client)
        future = executor.submit(time.sleep, 1)
        client._connection.token = Token(cluster.api_url, "gpt_revoked-meanwhile")
        with pytest.raises(NotSignedIn):
            await future
        executor.shutdown()
    with Client(cluster.api_url) as client:
        executor = Executor(**where, client=client)
        assert await executor.attach(future.job_id)[0] is None
        executor.shutdown()


async def test_a_service_that_is_away_for_a_while_loses_no_result(cluster: LocalCluster, tmp_path: Path) -> None:
    with Client(cluster.api_url, retry_for_s=0.2) as client:
        executor = Executor(directory=tmp_path / "calls", workdir=tmp_path, client=client)
        future = executor.submit(time.sleep, 0.5)
        os.kill(cluster.service.pid, signal.SIGKILL)  # type: ignore[arg-type]
        assert await future is None
        executor.shutdown()


@pytest.mark.long
async def test_a_real_notebook_shows_tables_and_a_bar_and_runs_its_own_functions(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbformat, nbclient and ipykernel run notebooks")
    nbclient = pytest.importorskip("nbclient", reason="nbformat, nbclient and ipykernel run notebooks")
    pytest.importorskip("ipykernel", reason="nbformat, nbclient and ipykernel run notebooks")
    monkeypatch.setenv("GPU_PLATFORM_API_URL", cluster.api_url)
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS])
    runner = nbclient.NotebookClient(book, timeout=60, resources={"metadata": {"path": str(tmp_path)}})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of Jupyter's own packages
        await runner.async_execute()
    outputs = [cell.outputs for cell in book.cells]
    html = [[part["data"]["text/html"] for part in parts if "text/html" in part.get("data", {})] for parts in outputs]
    assert "from-a-notebook" in html[0][0]
    assert "COMPLETED" in html[1][0]
    assert "width:100.0%" in html[1][0]
    assert [html[2][0].count("<tr>"), html[3][0].count("<tr>"), html[4][0].count("<tr>")] == [2, 2, 9]
    assert outputs[5][0]["text"] == "[3, 6] 15\n"
    assert outputs[6][-1]["text"] == "COMPLETED\n"
    if (kept := os.environ.get("KEEP_NOTEBOOK")) is not None:
        nbformat.write(book, kept)

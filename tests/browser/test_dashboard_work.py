"""The dashboard's pages of arrays, pipelines and schedules, the what-if, and where starts are promised."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import httpx
import pytest
from playwright.async_api import Page, Request, expect

from gpu_platform.domain.access.roles import Role
from gpu_platform.domain.jobs.array import ArraySpec
from gpu_platform.domain.jobs.schedule import ScheduleRequest
from gpu_platform.domain.pipelines.pipeline import PipelineRequest
from tests.support.api_server import bearer
from tests.support.dashboard_rig import WHY_NOT, Dashboard, job, panel, running
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(120),
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
]

PIPELINE = """
name: train-all
steps:
  prepare: {command: ["true"], gpus: {gpus_per_host: 0}}
  train: {after: prepare, for_each: [1, 2], command: ["true"], gpus: {gpus_per_host: 0}}
  check: {after: prepare, command: [sh, -c, exit 4], gpus: {gpus_per_host: 0}}
  report: {after: [train, check], command: ["true"], gpus: {gpus_per_host: 0}}
"""


async def test_an_array_is_shown_as_a_grid_with_its_failures_and_those_run_again(board: Dashboard) -> None:
    spec = job("sh", "-c", "test {index} -lt 4 || exit 3", name="sweep", gpus=0, gpu_model="")
    array = await board.client.submit_array(spec.model_copy(update={"gpus": spec.gpus}), ArraySpec(indices="0-5"))
    async with board.page("/arrays") as page:
        await page.get_by_role("link", name="sweep").wait_for()
        await board.findings(page, "/arrays")
        await page.get_by_role("link", name="sweep").click()
        await page.locator(".lead .state", has_text="failed").wait_for(timeout=40_000)
        cells = page.get_by_role("list", name="Elements", exact=True).get_by_role("link")
        await expect(cells).to_have_text(["C"] * 4 + ["F"] * 2)
        row = panel(page, "Failures by reason").get_by_role("row", name="Exit code 3")
        await row.get_by_text("4-5", exact=True).wait_for()
        await board.findings(page, "/arrays/ID")
        await panel(page, "Elements").get_by_label("State").select_option("FAILED")
        await expect(cells).to_have_count(2)
        await cells.first.click()
        await page.get_by_role("link", name=array.id).click()
        await page.get_by_role("button", name="Retry failed").click()
        await page.get_by_role("dialog").get_by_role("button", name="Retry failed").click()
        await page.get_by_text("runs elements of").wait_for()
        again = await board.client.array(page.url.rsplit("/", 1)[1])
        assert again.size == 2


async def test_a_pipeline_is_shown_as_a_graph_with_the_jobs_of_each_step(board: Dashboard) -> None:
    await board.client.pipelines.submit(PipelineRequest(file=PIPELINE, workdir="/tmp"))
    async with board.page("/pipelines") as page:
        await page.get_by_role("link", name="train-all").wait_for()
        await board.findings(page, "/pipelines")
        await page.get_by_role("link", name="train-all").click()
        await page.locator(".lead .state", has_text="failed").wait_for(timeout=40_000)
        graph = page.locator("svg.steps")
        await expect(graph.locator(".edge")).to_have_count(4)
        said = await graph.get_attribute("aria-label") or ""
        assert "train: completed, after prepare; " in said
        assert "report: skipped, after train and check" in said
        steps = panel(page, "Steps")
        await steps.get_by_role("row", name="report").get_by_text("check").last.wait_for()
        await steps.get_by_role("row", name="train").get_by_role("link", name="Array").wait_for()
        await board.findings(page, "/pipelines/ID")
        await page.get_by_role("button", name="Retry").click()
        await page.get_by_role("dialog").get_by_role("button", name="Retry").click()
        await page.locator(".lead .state", has_text="running").wait_for()


async def test_a_schedule_shows_when_it_fires_next_and_what_became_of_its_jobs(board: Dashboard) -> None:
    often = job("true", name="nightly", gpus=0, gpu_model="")
    await board.client.schedules.create(ScheduleRequest(cron="0 2 * * *", job=often))
    async with board.page("/schedules") as page:
        await page.get_by_role("link", name="nightly").wait_for()
        await board.findings(page, "/schedules")
        await page.get_by_role("link", name="nightly").click()
        await expect(panel(page, "Next firings").get_by_role("listitem")).to_have_count(10)
        await panel(page, "Last results").get_by_text("has not fired yet").wait_for()
        await page.get_by_role("button", name="Fire now").click()
        await page.get_by_role("dialog").get_by_role("button", name="Fire now").click()
        await panel(page, "Last results").locator(".state", has_text="completed").wait_for(timeout=40_000)
        await board.findings(page, "/schedules/ID")
        await page.get_by_role("button", name="Pause").click()
        await page.get_by_label("Reason").fill("holidays")
        await page.get_by_role("dialog").get_by_role("button", name="Pause").click()
        await page.get_by_text("Holidays.").wait_for()
        await panel(page, "Next firings").get_by_text("It is paused").wait_for()
        await page.get_by_role("button", name="Delete").click()
        await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        await page.get_by_text("No schedule fits").wait_for()


async def test_the_plan_shows_where_a_start_is_promised_and_a_what_if_says_what_more_hosts_change(
    board: Dashboard,
) -> None:
    # Each socket of this host has two GPUs.
    holds = job("sleep", "600", name="holds", time_limit_s=1800, gpu_model="L40S")
    holders = [await running(board, holds), await running(board, holds)]
    waiting = await board.client.submit(job("true", name="waits", time_limit_s=600, gpu_model="L40S"))

    async def promised() -> bool:
        found = [entry.reason async for entry in board.client.queue() if entry.job_id == waiting.id]
        return any(reason and reason.promised_hosts for reason in found)

    await eventually(promised, "a promised start")
    async with board.page("/queue") as page:
        row = page.locator(".gantt-row", has=page.get_by_role("link", name="pcie-d", exact=True))
        await row.locator(".gantt-bar.promised[title^='waits, root: promised 2 GPUs']").wait_for()
    async with board.page("/what-if") as page:
        await page.get_by_label("How many").fill("2")
        await page.get_by_label("Like").select_option("pcie-d")
        await page.get_by_role("button", name="Compare").click()
        start = panel(page, "Start of each waiting job").get_by_role("row", name="waits")
        await start.get_by_text("earlier").wait_for(timeout=60_000)
        await page.locator(".chart canvas").nth(1).wait_for()
        await board.findings(page, "/what-if")
        await page.get_by_label("How many").fill("many")
        await page.get_by_role("button", name="Compare").click()
        await page.get_by_role("alert").get_by_text("how many hosts").wait_for()
    for one in (*holders, waiting):
        await board.client.kill(one.id)
    async with board.page("/what-if", token=board.token_of("vera", default=Role.VIEWER)) as page:
        await page.get_by_text("It needs the role operator in the cluster").wait_for()
        assert await page.get_by_role("button", name="Compare").is_disabled()


async def test_a_maintenance_window_is_in_the_plan(board: Dashboard) -> None:
    begins = datetime.now(UTC) + timedelta(minutes=10)
    window = {
        "name": "fans",
        "maintenance": True,
        "start_at": begins.isoformat(),
        "duration_s": 600,
        "hosts": ["pcie-d"],
    }
    async with httpx.AsyncClient(base_url=board.cluster.api_url, headers=bearer(board.token), trust_env=False) as http:
        made = await http.post("/v1/reservations", json=window)
        if made.status_code == 404:
            pytest.skip("the service has no maintenance windows yet")
        made.raise_for_status()
        async with board.page("/queue") as page:
            row = page.locator(".gantt-row", has=page.get_by_role("link", name="pcie-d", exact=True))
            await row.locator(".gantt-bar.maintenance", has_text="fans").wait_for()
        (await http.delete("/v1/reservations/fans")).raise_for_status()


HIDE = "hidden => { Object.defineProperty(document, 'hidden', { configurable: true, get: () => hidden }); \
document.dispatchEvent(new Event('visibilitychange')); }"


async def test_a_hidden_tab_holds_no_stream_and_goes_on_where_it_was_when_it_is_seen(board: Dashboard) -> None:
    """Browsers open six connections to a service at most, for all tabs together: more tabs than that must work."""
    asked: list[Request] = []
    ended: list[Request] = []

    async def hidden(page: Page, value: bool) -> None:
        await page.evaluate(HIDE, value)

    found = await running(board, job("sh", "-c", "n=0; while true; do n=$((n+1)); echo step $n; sleep 0.2; done"))
    async with board.page(f"/jobs/{found.id}") as page:
        page.on("request", lambda one: asked.append(one) if is_stream(one) else None)
        page.on("requestfailed", lambda one: ended.append(one) if is_stream(one) else None)
        await page.clock.install()
        await page.reload()
        steps = page.get_by_role("log").get_by_text("step ")
        await steps.nth(2).wait_for()
        before = len(ended)
        await hidden(page, True)
        await page.clock.fast_forward(6000)
        await eventually(lambda: len(ended) - before == 2, "the streams of events and of output to end")
        shown, begun = await steps.count(), len(asked)
        await hidden(page, False)
        await steps.nth(shown + 2).wait_for()
        assert len(asked) == begun + 2
        assert all("last-event-id" in one.headers for one in asked[begun:] if "logs" in one.url)
        numbers = [int(text.split()[1]) for text in await steps.all_inner_texts()]
        assert numbers == [*range(1, len(numbers) + 1)], "nothing twice, nothing left out"
    await board.client.kill(found.id)


def is_stream(request: Request) -> bool:
    return request.url.endswith("/v1/events") or "follow=true" in request.url

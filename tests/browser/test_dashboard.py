"""The dashboard in a real browser: its pages of the cluster, jobs, queue, submission and usage."""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from playwright.async_api import expect

from gpu_platform.domain.access.roles import Role
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from tests.support import command_line
from tests.support.dashboard_rig import BUSY, WHY_NOT, Dashboard, job, no_findings, panel, running, strike

pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(120),
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
]


# ---- sign in ----


async def test_one_signs_in_with_a_token_and_a_wrong_one_is_refused(
    board: Dashboard,
) -> None:
    async with board.page("/hosts/dgx-a", token=None) as page:
        await page.get_by_label("API token").fill("gpt_wrong")
        await page.get_by_role("button", name="Sign in", exact=True).click()
        await page.get_by_text("This token is not known here").wait_for()
        await no_findings(page, "sign in")
        await page.get_by_label("API token").fill(board.token)
        await page.keyboard.press("Enter")
        # The address that was asked for is shown, and the token survives a reload.
        await page.get_by_role("heading", name="Host dgx-a").wait_for()
        await page.reload()
        await page.get_by_role("heading", name="Host dgx-a").wait_for()
        another = await page.context.new_page()
        await another.goto("/")
        await another.locator("article.host").first.wait_for()
        await page.get_by_role("button", name="Sign out").click()
        await another.get_by_label("API token").wait_for()
        assert (
            await page.evaluate(
                "Object.keys(localStorage).concat(Object.keys(sessionStorage)).join() + document.cookie"
            )
            == "theme,gpu-platform-left-root"
        )


async def test_who_may_not_operate_sees_the_cluster_and_is_told_what_is_missing(board: Dashboard) -> None:
    async with board.page("/hosts/dgx-a", token=board.token_of("vera", default=Role.VIEWER)) as page:
        drain = page.get_by_role("button", name="Drain").first
        await drain.wait_for()
        assert await drain.is_disabled()
        assert await drain.get_attribute("title") == "Needs the role operator in the cluster"


async def test_a_page_loads_nothing_from_elsewhere_and_its_policy_forbids_it(board: Dashboard) -> None:
    async with board.page() as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        answer = await page.reload()
        await page.locator("article.host").first.wait_for()
        assert answer is not None
        policy = answer.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert len(asked) > 20
        assert all(url.startswith(board.cluster.api_url + "/") for url in asked)


# ---- the cluster ----


async def test_the_cluster_shows_who_holds_a_gpu_and_a_fault_as_it_happens(board: Dashboard) -> None:
    found = await running(board, job("sleep", "600", name="held"))
    assert found.placement is not None
    [part] = found.placement.slices
    async with board.page() as page:
        card = page.locator("article.host", has=page.get_by_role("link", name=part.host, exact=True))
        await card.get_by_role("link", name="held").wait_for()
        await page.get_by_role("heading", name="Leaf leaf-1").wait_for()
        # The job goes elsewhere, and remediation resets the GPU at the second try, after 2 s.
        strike(board.state_dir, part.host, part.gpu_indices[0], xid=48, fail_resets=1)
        await card.locator(".gpu-DEGRADED, .gpu-RESETTING").first.wait_for()
        await card.locator(".gpu-DEGRADED, .gpu-RESETTING").first.wait_for(state="detached", timeout=30_000)
    await board.client.kill(found.id)
    await board.client.wait(found.id, timeout_s=30)


async def test_an_operator_drains_a_host_with_a_reason_by_keyboard(board: Dashboard) -> None:
    async with board.page("/") as page:
        await page.get_by_role("link", name="pcie-d").focus()
        await page.keyboard.press("Enter")
        await page.get_by_role("heading", name="Host pcie-d").wait_for()
        assert await page.evaluate("document.activeElement.id") == "main", "a screen reader begins to read there"
        await page.get_by_role("button", name="Drain").first.focus()
        await page.keyboard.press("Enter")
        await page.get_by_role("dialog").get_by_label("Reason").fill("new fan")
        await page.keyboard.press("Enter")
        await page.locator(".lead", has_text="new fan").wait_for()
        assert (await board.client.host("pcie-d")).reason == "new fan"
        await page.go_back()
        await page.locator("article.host", has_text="new fan").wait_for()
        await page.go_forward()
        await page.get_by_role("button", name="Online").first.click()
        await page.get_by_role("dialog").get_by_role("button", name="Online").click()
        await page.locator(".lead .state", has_text="ready").wait_for()


async def test_the_pages_of_the_cluster_are_accessible(
    board: Dashboard,
) -> None:
    await board.see("/", needs="article.host a")
    await board.see("/?show=temperature", needs="article.host a")
    await board.see("/hosts/dgx1-c", needs=".topology svg")


# ---- jobs ----

COUNTING = "echo '<b>no markup</b>'; n=0; while true; do n=$((n+1)); echo step $n; sleep 0.2; done"


async def test_a_job_is_followed_through_an_xid_and_killed_with_a_reason(board: Dashboard) -> None:
    found = await running(board, job("sh", "-c", COUNTING, name="counting"))
    assert found.placement is not None
    [part] = found.placement.slices
    async with board.page(f"/jobs/{found.id}") as page:
        output = page.get_by_role("log")
        await output.get_by_text("step 2", exact=True).wait_for()
        await output.get_by_text("<b>no markup</b>", exact=True).wait_for()
        await page.locator(".spans .RUNNING").wait_for()
        await page.locator(".topology .stressed").nth(1).wait_for()
        assert await page.locator(".topology .stressed").count() == 2
        await page.get_by_role("row", name=f"{part.host} chosen").wait_for()

        strike(board.state_dir, part.host, part.gpu_indices[0], xid=48)
        await output.get_by_text("— attempt 2 —").wait_for()
        await page.get_by_role("cell", name="job.retrying").first.wait_for()
        await page.get_by_text("XID 48").first.wait_for()
        await expect(page.locator(".spans .RUNNING")).to_have_count(2)

        await page.get_by_label("Search in the output").fill("step 1")
        await page.locator("mark").first.wait_for()
        assert all("step 1" in line for line in await output.locator("div:not(.log-note)").all_inner_texts())

        await page.get_by_label("Search in the output").fill("")
        await page.get_by_label("Attempt").select_option("1")
        await output.get_by_text("— attempt 2 —").wait_for(state="detached")
        await output.get_by_text("step 1", exact=True).wait_for()
        async with page.expect_download() as download:
            await page.get_by_role("button", name="Download").click()
        file = await (await download.value).path()
        assert file.read_text().startswith("<b>no markup</b>\nstep 1\nstep 2\n")
        assert (await download.value).suggested_filename == f"{found.id}-attempt-1-rank-0.log"

        await page.get_by_role("button", name="Kill").click()
        await page.get_by_label("Reason").fill("seen enough")
        await page.get_by_role("dialog").get_by_role("button", name="Kill").click()
        await page.locator(".lead .state", has_text="cancelled").wait_for()
        await page.locator(".note", has_text="seen enough").wait_for()

        await page.get_by_role("button", name="Retry").click()
        await page.get_by_role("dialog").get_by_role("button", name="Retry").click()
        await page.wait_for_url(lambda url: found.id not in url)
        again = await board.client.get(page.url.rsplit("/", 1)[1])
        assert again.spec == found.spec
        await board.client.kill(again.id)
        await page.locator(".lead .state", has_text="cancelled").wait_for()


async def test_the_list_of_jobs_is_filtered_and_paged_and_back_works(board: Dashboard) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    for number in range(3):
        await board.client.submit(job("true", name=f"later-{number}", namespace="paged", begin_at=later))
    async with board.page("/jobs?namespace=paged&limit=2") as page:
        names = page.locator("tbody th a")
        await names.nth(1).wait_for()
        assert await names.all_inner_texts() == ["later-2", "later-1"]
        await page.get_by_role("button", name="Older").click()
        await page.get_by_role("link", name="later-0").wait_for()
        assert await page.get_by_role("button", name="Older").is_disabled()
        await page.go_back()
        await page.get_by_role("link", name="later-2").wait_for()
        await page.get_by_label("Show").select_option("running")
        await page.get_by_text("No jobs fit").wait_for()
        await page.get_by_label("Show").select_option("waiting")
        await page.get_by_role("link", name="later-2").wait_for()
        await board.client.cancel((await board.client.list(namespace="paged").__anext__()).id)
        await page.get_by_role("link", name="later-2").wait_for(state="detached")


async def test_what_one_may_not_read_is_said(board: Dashboard) -> None:
    found = await running(board, job("sleep", "600"))
    async with board.page(f"/jobs/{found.id}", token=board.token_of("vera", default=Role.VIEWER)) as page:
        for name, what in (("Output", "logs"), ("Checkpoints", "checkpoints")):
            box = page.get_by_role("region", name=name)
            await box.get_by_text("You may not see or do this").wait_for()
            await box.get_by_text(f"/{what}: it needs to be the job's user").wait_for()
        assert await page.get_by_role("button", name="Kill").is_disabled()
    async with board.page(f"/jobs/{found.id}", token=board.token_of("sten", elsewhere=Role.ADMIN)) as page:
        await page.get_by_text("It is not here").wait_for()
    await board.client.kill(found.id)


async def test_the_pages_of_jobs_are_accessible(board: Dashboard) -> None:
    newest = await board.client.list().__anext__()
    await board.see("/jobs", needs="tbody th a")
    await board.see(f"/jobs/{newest.id}", needs=".spans li")


# ---- queue ----


async def test_the_queue_says_why_a_job_waits_and_the_plan_shows_when_it_starts(board: Dashboard) -> None:
    holder = await running(board, job("sleep", "600", name="holder", gpus=8, time_limit_s=1800, gpu_model="V100"))
    waiting = await board.client.submit(job("true", name="waiter", gpus=8, time_limit_s=600, gpu_model="V100"))
    async with board.page("/queue") as page:
        row = page.get_by_role("row", name="waiter")
        await row.get_by_role("link", name="holder").wait_for()
        await row.get_by_text("promised").wait_for()
        await page.locator(".gantt-bar.promised", has_text="waiter").first.wait_for()
        bar = page.locator(".gantt-bar.runs", has_text="holder")
        assert "until" in (await bar.get_attribute("title") or "")
        await row.get_by_role("button", name="Mark below").click()
        await page.locator(".gantt-bar.blocks", has_text="holder").wait_for()
        await page.reload()
        await page.locator(".gantt-bar.blocks", has_text="holder").wait_for()
        await board.see(page.url.removeprefix(board.cluster.api_url), needs=".gantt-bar.blocks")
        await board.client.kill(holder.id)
        await page.get_by_text("No job waits").wait_for()
    assert (await board.client.wait(waiting.id, timeout_s=30)).state is JobState.COMPLETED


# ---- submit ----


async def test_a_job_is_submitted_and_its_texts_submit_the_same(board: Dashboard) -> None:
    async with board.page("/submit") as page:
        await page.get_by_role("textbox", name="Command").fill(shlex.join(["sh", "-c", 'echo "$GREETING" "it\'s"']))
        await page.get_by_label("Environment").fill("GREETING=good day")
        await page.get_by_label("Working directory").fill("/tmp")
        await page.get_by_label("Namespace").fill("texts")
        await page.get_by_label("GPUs on each host").fill("9")
        await page.get_by_text("It would be refused").wait_for()
        await page.get_by_label("GPUs on each host").fill("2")
        await page.get_by_label("Model").fill("H100")
        await page.get_by_label("Time limit").fill("1h30m")
        await page.get_by_text("It would start now").wait_for()
        await page.get_by_role("link", name="dgx-a").wait_for()
        await page.get_by_text("2, no limit").wait_for()
        line, text = [await panel(page, name).locator("pre").inner_text() for name in ("Command line", "YAML")]
        await no_findings(page, "submit")
        await page.get_by_role("button", name="Submit").click()
        await page.get_by_role("log").get_by_text("good day it's").wait_for()
        first = await board.client.get(page.url.rsplit("/", 1)[1])
        await page.get_by_role("link", name="Clone and edit").click()
        await expect(page.get_by_label("Environment")).to_have_value("GREETING=")
        await page.get_by_role("button", name="Submit").click()
        await page.get_by_text("values are shown to nobody: fill in GREETING").wait_for()
        await page.get_by_label("Environment").fill("GREETING=hello")
        await page.get_by_role("button", name="Submit").click()
        await page.get_by_role("log").get_by_text("hello it's").wait_for()
    assert first.spec.time_limit_s == 5400
    ran = await command_line.run("submit", "--json", *shlex.split(line)[2:], url=board.cluster.api_url)
    assert ran.code == 0, ran.err
    same = await board.client.get(json.loads(ran.out)["id"])
    assert same.spec.model_copy(update={"user": first.spec.user}) == first.spec
    sent = JobSpec.model_validate(yaml.safe_load(text))
    assert sent.env == {"GREETING": "good day"}
    shown = sent.model_copy(update={"env": first.spec.env, "user": first.spec.user})
    assert shown == first.spec


async def test_the_page_to_submit_is_accessible(board: Dashboard) -> None:
    await board.see("/submit", needs="#f-command")


# ---- usage and health ----


async def test_usage_and_health_show_quotas_figures_and_the_faults(board: Dashboard) -> None:
    strike(board.state_dir, "dgx1-c", 7, xid=48)
    ended = await board.client.submit(job("true"))
    await board.client.wait(ended.id, timeout_s=30)
    async with board.page("/usage?days=1") as page:
        quotas = panel(page, "Quotas, and what is held now")
        row = quotas.get_by_role("row", name="default")
        await row.get_by_role("cell", name="64", exact=True).first.wait_for()
        await expect(row.get_by_role("img")).to_have_attribute("aria-label", "2 of 64 GPUs")
        await page.locator(".chart canvas").nth(1).wait_for()
        await panel(page, "Faults by host").get_by_role("row").nth(1).wait_for()
        await panel(page, "Faults by GPU").get_by_role("row").nth(1).wait_for()
        await panel(page, "By namespace and user").get_by_role("link").first.wait_for()
        await page.get_by_label("Period").select_option("30")
        await page.wait_for_url("**/usage?days=30")
    async with board.page("/usage", token=board.token_of("vera", default=Role.VIEWER)) as page:
        await page.get_by_text("Only your namespaces").wait_for()
        await panel(page, "By namespace and user").get_by_role("cell", name="default").first.wait_for()
    await board.see("/usage", needs=".chart canvas")


async def test_the_measurements_of_a_job_are_drawn(board: Dashboard) -> None:
    found = await anext(board.client.list(name=BUSY))
    async with board.page(f"/jobs/{found.id}") as page:
        # A sample is as long as 15 s, and the page asks every 15 s.
        await page.locator(".chart canvas").nth(3).wait_for(timeout=40_000)
        said = await page.get_by_role("img", name="Utilisation over time").get_attribute("aria-label")
        assert said is not None
        assert "last 97 %" in said
        await page.get_by_role("row", name="1 (so far)").wait_for()
        await no_findings(page, "job")


# ---- without a connection: the last, since it stops the service ----


async def test_a_page_without_a_connection_says_since_when_and_goes_on_where_it_was(board: Dashboard) -> None:
    found = await running(board, job("sh", "-c", COUNTING))
    async with board.page(f"/jobs/{found.id}") as page:
        steps = page.get_by_role("log").get_by_text("step ")
        await steps.nth(3).wait_for()
        await page.locator(".live:not(.is-stale)").wait_for()
        await board.cluster.service.stop()
        await page.get_by_text("Stale since").wait_for()
        before = await steps.count()
        await board.cluster.service.start()
        await page.get_by_text("Stale since").wait_for(state="detached", timeout=30_000)
        await steps.nth(before + 3).wait_for(timeout=30_000)
        numbers = [int(text.split()[1]) for text in await steps.all_inner_texts()]
        assert numbers == [*range(1, len(numbers) + 1)], "nothing twice, nothing left out"
    await board.client.kill(found.id)

"""What the dashboard says is true: with a wrong clock, after a sleep, of a long output, and of texts that pretend."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import pytest
from playwright.async_api import expect

from gpu_platform.domain.hosts.share import Share
from tests.support.dashboard_rig import WHY_NOT, Dashboard, job, running

pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(120),
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
]

AHEAD = """
const Real = Date;
Date = class extends Real {
  constructor(...given) { given.length ? super(...given) : super(Real.now() + 7_200_000); }
  static now() { return Real.now() + 7_200_000; }
};
"""


@contextmanager
def stopped(board: Dashboard) -> Iterator[None]:
    """The service is connected, and answers nothing: as a computer finds it that wakes up without a network."""
    pid = board.cluster.service.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_times_are_those_of_the_service_if_the_clock_of_the_browser_is_wrong(board: Dashboard) -> None:
    found = await running(board, job("sleep", "600", name="timed"))
    async with board.page("/jobs?name=timed") as page:
        await page.add_init_script(AHEAD)
        await page.reload()
        await page.get_by_text("The clock of this computer is 2 h ahead of the service's").wait_for()
        submitted = page.get_by_role("row", name="timed").locator('[data-name="Submitted"]')
        await expect(submitted).to_have_text(re.compile(r"^(now|in [\d.]+ m?s|[^h]+ ago)$"))
    await board.client.kill(found.id)


async def test_a_computer_that_slept_says_since_when_the_page_is_stale(board: Dashboard) -> None:
    async with board.page("/queue") as page:
        await page.clock.install()
        begun = datetime.now()
        await page.reload()
        await page.locator(".live:not(.is-stale)").wait_for()
        await page.get_by_role("heading", name="Plan").wait_for()
        with stopped(board):
            slept = datetime.now()
            await page.clock.fast_forward(3_600_000)
            said = await page.get_by_text("Stale since").inner_text()
        shown = re.search(r"(\d\d):(\d\d):(\d\d)", said)
        assert shown is not None, said
        at = begun.replace(hour=int(shown[1]), minute=int(shown[2]), second=int(shown[3]), microsecond=0)
        if at < begun - timedelta(hours=12):  # midnight was between
            at += timedelta(days=1)
        assert begun - timedelta(seconds=1) <= at <= slept, said
        await page.get_by_text("Stale since").wait_for(state="detached", timeout=30_000)


async def test_a_service_that_is_connected_but_does_not_answer_is_not_called_live(board: Dashboard) -> None:
    async with board.page("/hosts/dgx-a") as page:
        await page.clock.install()
        await page.reload()
        await page.locator(".topology svg").wait_for()
        with stopped(board):
            await page.clock.fast_forward(5_000)
            await page.clock.fast_forward(10_000)
            await page.get_by_text("the service takes long to answer").wait_for()
            await page.locator(".live.is-stale").wait_for()
        await page.locator(".live:not(.is-stale)").wait_for(timeout=30_000)


async def test_a_link_leads_to_a_line_of_a_rank_however_long_the_output_is(board: Dashboard) -> None:
    text = "printf '\\033[31mred\\033[0m\\n10%%\\r100%%\\n'; seq -f \"rank $RANK line %g\" 12000; sleep 600"
    found = await running(board, job("sh", "-c", text, "\u202egpj.exe", name="long", rank_per="gpu"))
    async with board.page(f"/jobs/{found.id}?rank=1&find=line+4321") as page:
        output = page.get_by_role("log")
        await output.get_by_text("rank 1 line 4321", exact=True).wait_for()
        await page.get_by_text("1 of 12,002 lines fit").wait_for()
        await expect(page.get_by_role("combobox", name="Rank")).to_have_value("1")
        await page.get_by_label("Search in the output").fill("100%")
        await output.get_by_text("100%", exact=True).wait_for()
        await page.get_by_label("Search in the output").fill("red")
        await output.get_by_text("red", exact=True).wait_for()
        await page.get_by_role("combobox", name="Rank").select_option("0")
        await page.get_by_label("Search in the output").fill("")
        await output.get_by_text("rank 0 line 12000", exact=True).wait_for()
        await output.get_by_text("7,002 earlier lines are not shown here").wait_for()
        assert page.url.endswith(f"/jobs/{found.id}")
        await page.locator("summary").click()
        await expect(page.locator("details pre")).to_contain_text("\\u202egpj.exe")
    await board.client.kill(found.id)


async def test_no_text_that_a_page_shows_hides_a_character_or_turns_others_round(board: Dashboard) -> None:
    """Soft hyphen, joiner, override and tag, in a reason and in the message of a page that is not there."""
    await board.client.drain("dgx-a", reason="a\u00adb\u200dc\u202ed\U000e0041e")
    shown = "a\\u00adb\\u200dc\\u202ed\\ue0041e"
    try:
        async with board.page("/hosts/dgx-a") as page:
            await page.get_by_text(shown).first.wait_for()
            await page.goto("/")
            await page.get_by_text(shown).first.wait_for()
            await page.goto("/jobs/j-\u00ad1")
            await page.get_by_text("j-\\u00ad1").first.wait_for()
    finally:
        await board.client.online("dgx-a")


async def test_a_job_with_a_share_of_a_gpu_does_not_seem_to_have_all_of_it(board: Dashboard) -> None:
    share = Share(percent=30, memory_mib=10240)
    spec = job("sleep", "600", name="part", gpu_model="L40S", gpus=1)
    found = await running(board, spec.model_copy(update={"gpus": spec.gpus.model_copy(update={"share": share})}))
    assert found.placement is not None
    async with board.page(f"/jobs/{found.id}") as page:
        await page.get_by_text("30 % of 1 GPU", exact=True).wait_for()
        await page.goto("/jobs?name=part")
        await page.get_by_role("row", name="part").get_by_text("1 × 30 %").wait_for()
        await page.goto(f"/hosts/{found.placement.slices[0].host}")
        await page.get_by_role("cell", name="part attempt 1 (30 %)").wait_for()
    await board.client.kill(found.id)


async def test_an_address_that_is_no_text_says_that_there_is_no_such_thing(board: Dashboard) -> None:
    async with board.page("/hosts/%E0%A4%A") as page:
        await page.get_by_text("It is not here").wait_for()

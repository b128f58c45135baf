"""The dashboard for somebody who types: nothing is lost, the keyboard is enough, and what one may not do says why."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from playwright.async_api import expect

from gpu_platform.domain.access.roles import Role
from tests.support.dashboard_rig import BUSY, KEY, PHONE, WHY_NOT, Dashboard, job, no_findings
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(120),
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
]


async def test_a_filter_that_is_half_typed_stays_while_the_list_changes(board: Dashboard) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    async with board.page("/jobs?namespace=typed") as page:
        await page.get_by_text("No jobs fit").wait_for()
        await page.get_by_label("Name", exact=True).press_sequentially("nothing-li")
        found = await board.client.submit(job("true", name="something", namespace="typed", begin_at=later))
        await page.get_by_role("link", name="something").wait_for()
        await expect(page.get_by_label("Name", exact=True)).to_have_value("nothing-li")
        await page.keyboard.press("Enter")
        await page.get_by_text("No jobs fit").wait_for()
        await page.get_by_role("link", name="Show all").click()
        await expect(page.get_by_label("Name", exact=True)).to_have_value("")
    await board.client.cancel(found.id)


async def test_a_form_survives_a_link_a_reload_and_a_service_that_is_away_until_it_is_sent(board: Dashboard) -> None:
    async with board.page("/submit") as page:
        command = page.get_by_role("textbox", name="Command")
        await command.fill("sleep 600")
        await page.get_by_label("Model").fill("H100")
        await page.locator(".preview").get_by_role("link", name="dgx-a").click()
        await page.get_by_role("heading", name="Host dgx-a").wait_for()
        await page.go_back()
        await expect(command).to_have_value("sleep 600")
        await page.reload()
        await expect(command).to_have_value("sleep 600")
        await page.get_by_text("What you typed before is still here").wait_for()
        await page.get_by_text("It would start now").wait_for()

        await page.context.set_offline(True)
        await command.fill("sleep 601")
        await page.locator(".preview").get_by_text("The page tries again by itself").wait_for()
        await page.get_by_role("button", name="Submit").click()
        await page.get_by_text("a second try makes no second job").wait_for()
        await page.context.set_offline(False)
        await page.get_by_text("It would start now").wait_for()
        await page.get_by_role("button", name="Submit").click()
        await page.get_by_role("heading", name="sleep").wait_for()
        sent = await board.client.get(page.url.rsplit("/", 1)[1])
        assert sent.spec.command == ["sleep", "601"]
        await page.get_by_role("link", name="Submit", exact=True).click()
        await expect(command).to_have_value("")
    await board.client.kill(sent.id)


async def test_a_dialog_gives_the_focus_back_however_it_is_closed(board: Dashboard) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    found = await board.client.submit(job("true", name="to-hold", begin_at=later))
    async with board.page(f"/jobs/{found.id}") as page:
        hold = page.get_by_role("button", name="Hold")
        dialog = page.get_by_role("dialog")
        await hold.focus()
        await page.keyboard.press("Enter")
        await dialog.wait_for()
        await page.keyboard.press("Escape")
        await dialog.wait_for(state="detached")
        await expect(hold).to_be_focused()
        await page.keyboard.press("Enter")
        await dialog.get_by_role("button", name="Back").click()
        await dialog.wait_for(state="detached")
        await expect(hold).to_be_focused()
        await page.keyboard.press("Enter")
        await dialog.get_by_label("Reason").fill("until the data is there")
        await page.keyboard.press("Enter")
        await page.get_by_role("button", name="Release").wait_for()
        await expect(page.locator("#main")).to_be_focused()
    await board.client.cancel(found.id)


async def test_back_leads_to_where_one_was_on_a_long_page(board: Dashboard) -> None:
    async with board.page("/hosts/dgx-a", size=PHONE) as page:
        await page.locator(".topology svg").wait_for()
        await page.evaluate("scrollTo(0, 200)")
        await page.get_by_role("link", name=BUSY).first.click()
        await page.get_by_role("heading", name=BUSY).wait_for()
        await page.evaluate("scrollTo(0, 99999)")
        await page.go_back()
        await page.get_by_role("heading", name="Host dgx-a").wait_for()
        there = "scrollY > 0 && scrollY === history.state.y"
        await eventually(lambda: page.evaluate(there), "the place on the page")


async def test_a_button_that_one_may_not_use_says_why_to_the_keyboard_too(board: Dashboard) -> None:
    async with board.page("/hosts/dgx-a", token=board.token_of("vera", default=Role.VIEWER)) as page:
        await page.get_by_role("button", name="Drain").first.focus()
        await page.keyboard.press("Enter")
        await page.get_by_role("dialog").get_by_text("Needs the role operator in the cluster").wait_for()
        await no_findings(page, "a refused button")
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("button", name="Drain").first).to_be_focused()
    assert (await board.client.host("dgx-a")).state == "READY"


async def test_who_signs_out_takes_no_other_person_along(board: Dashboard) -> None:
    first, second = board.token_of("ann", default=Role.USER), board.token_of("ben", default=Role.USER)
    async with board.page("/submit", token=first) as page:
        theirs, mine = await page.context.new_page(), await page.context.new_page()
        await theirs.add_init_script(f"sessionStorage.getItem('{KEY}') ?? sessionStorage.setItem('{KEY}', '{second}')")
        await mine.add_init_script(f"sessionStorage.getItem('{KEY}') ?? sessionStorage.setItem('{KEY}', '{first}')")
        for tab, name in ((theirs, "ben"), (mine, "ann")):
            await tab.goto("/submit")
            await tab.get_by_role("button", name=name).wait_for()
        await theirs.get_by_role("textbox", name="Command").fill("python mine.py")
        await page.get_by_role("button", name="Sign out").click()
        await mine.get_by_label("API token").wait_for()
        await expect(theirs.get_by_role("textbox", name="Command")).to_have_value("python mine.py")
        await theirs.get_by_role("button", name="ben").wait_for()

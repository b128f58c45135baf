"""Sign-in at an identity provider in the page: there and back, renewed in time, and again without losing the page."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
from playwright.async_api import Error, Page, expect

from gpu_platform.domain.access.roles import Role
from tests.support.api_server import bearer
from tests.support.dashboard_rig import WHY_NOT, Dashboard, no_findings
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(120),
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
]


@pytest.fixture(autouse=True)
def _provider_as_it_was(board: Dashboard) -> Iterator[None]:
    yield
    provider = board.provider
    provider.claims, provider.lives_s = {"sub": "ada", "groups": ["ml"]}, 300.0
    provider.away, provider.refuses = False, ""


async def signed_in(page: Page, sub: str = "ada") -> None:
    await page.get_by_role("button", name="Sign in at").click()
    await page.get_by_role("link", name=f"Go on as {sub}").click()


async def kept(page: Page) -> dict[str, Any]:
    """What the tab keeps of the provider."""
    return json.loads(await page.evaluate("sessionStorage['gpu-platform-grant']"))


async def test_one_signs_in_at_the_provider_comes_back_to_the_page_and_signs_out_there(board: Dashboard) -> None:
    async with board.page("/jobs?show=running", token=None) as page:
        await no_findings(page, "sign in")
        await signed_in(page)
        await page.get_by_role("heading", name="Jobs", exact=True).wait_for()
        await page.get_by_role("button", name="ada").click()
        await page.get_by_role("dialog").get_by_text("user in the namespace default").wait_for()
        await page.get_by_role("dialog").get_by_role("button", name="Close").click()
        assert page.url.endswith("/jobs?show=running"), "the code stays in no address"
        await page.go_back()
        assert "code=" not in page.url
        await page.goto("/")
        await page.locator("article.host").first.wait_for()
        another = await page.context.new_page()
        await another.goto("/queue")
        await another.get_by_role("button", name="ada").wait_for()
        refresh_token = (await kept(page))["refreshToken"]
        await page.get_by_role("button", name="Sign out").click()
        await page.get_by_role("link", name="Sign out there, too").wait_for()
        await another.get_by_role("button", name="Sign in at").wait_for()
        assert board.provider.revoked[-1] == refresh_token
        assert await page.evaluate("Object.keys(sessionStorage).join() + document.cookie") == ""


async def test_who_signs_out_is_signed_out_in_a_tab_that_was_elsewhere(board: Dashboard) -> None:
    """On another site a tab hears nothing, and its sessionStorage stays."""
    async with board.page("/queue", token=None) as page:
        await signed_in(page)
        await page.get_by_role("button", name="ada").wait_for()
        another = await page.context.new_page()
        await another.goto("/queue")
        await another.get_by_role("button", name="ada").wait_for()
        await another.goto("about:blank")
        await page.get_by_role("button", name="Sign out").click()
        await page.get_by_role("button", name="Sign in at").wait_for()
        await another.go_back()
        await another.get_by_role("button", name="Sign in at").wait_for()
        assert await another.evaluate("Object.keys(sessionStorage).join()") == ""
        await signed_in(another)
        await another.get_by_role("button", name="ada").wait_for()
        await another.reload()
        await another.get_by_role("button", name="ada").wait_for()


async def test_a_token_is_renewed_before_it_ends_by_one_tab_for_all(board: Dashboard) -> None:
    board.provider.lives_s = 30.5  # It is renewed 30 s before its end.
    async with board.page("/hosts/dgx-a", token=None) as page:
        await signed_in(page)
        await page.locator(".topology svg").wait_for()
        another = await page.context.new_page()
        await another.goto("/hosts/dgx-a")
        await another.locator(".topology svg").wait_for()
        first = (await kept(page))["token"]

        async def both_have_the_same_new_one() -> bool:
            found = [(await kept(tab))["token"] for tab in (page, another)]
            return found[0] == found[1] != first

        await eventually(both_have_the_same_new_one, "a renewed token in both tabs")
        await page.locator(".live:not(.is-stale)").wait_for()
        assert await page.get_by_role("dialog").count() == 0


async def test_who_must_sign_in_again_does_so_over_the_page_and_what_was_typed_stays(board: Dashboard) -> None:
    # The service accepts a token for 30 s after its end, since clocks differ.
    board.provider.claims["exp"] = int(time.time()) - 24
    async with board.page("/submit", token=None) as page:
        await signed_in(page)
        await page.get_by_role("textbox", name="Command").fill("python train.py")
        await page.get_by_text("It would start now").wait_for()
        del board.provider.claims["exp"]
        board.provider.refresh_tokens.clear()  # The provider has ended the session.
        dialog = page.get_by_role("dialog")
        await dialog.get_by_text("Sign in again, ada").wait_for(timeout=30_000)
        await no_findings(page, "sign in again")
        await page.keyboard.press("Escape")
        async with page.context.expect_page() as opened:
            await dialog.get_by_role("button", name="Sign in at").click()
        window = await opened.value
        with suppress(Error):  # It closes itself.
            await window.get_by_role("link", name="Go on as ada").click()
        await dialog.wait_for(state="detached")
        await expect(page.get_by_role("textbox", name="Command")).to_have_value("python train.py")
        await page.get_by_label("Name", exact=True).fill("typed-on")
        await page.get_by_text("It would start now").wait_for()


async def test_another_person_who_signs_in_there_gets_a_page_without_what_the_first_one_saw(board: Dashboard) -> None:
    first, second = board.token_of("first", default=Role.USER), board.token_of("second", default=Role.VIEWER)
    async with board.page("/submit", token=first) as page:
        await page.get_by_role("textbox", name="Command").fill("secret-plan")
        await page.get_by_text("It would start now").wait_for()
        async with httpx.AsyncClient(
            base_url=board.cluster.api_url, headers=bearer(board.token), trust_env=False
        ) as http:
            [token] = [one for one in (await http.get("/v1/tokens")).json()["items"] if one["user"] == "first"]
            (await http.delete(f"/v1/tokens/{token['id']}")).raise_for_status()
        await page.get_by_role("textbox", name="Command").fill("secret-plan --more")
        dialog = page.get_by_role("dialog")
        await dialog.get_by_text("Sign in again, first").wait_for()
        await dialog.get_by_label("API token").fill(second)
        await dialog.get_by_role("button", name="Sign in", exact=True).click()
        await page.get_by_role("button", name="second").wait_for()
        await expect(page.get_by_role("textbox", name="Command")).to_have_value("")
        await page.get_by_text("You may not submit").wait_for()


async def test_a_refusal_of_the_provider_is_said_and_an_answer_to_another_tab_is_not_taken(board: Dashboard) -> None:
    board.provider.refuses = "access_denied"
    async with board.page("/queue", token=None) as page:
        await signed_in(page)
        await page.get_by_text("The provider refuses: access_denied").wait_for()
        board.provider.refuses = ""
        await page.goto("/sign-in?code=stolen&state=somebody-elses")
        await page.get_by_text("not the answer to a sign-in of this tab").wait_for()
        assert await page.evaluate("'gpu-platform-token' in sessionStorage") is False


async def test_who_has_no_role_is_told_so(board: Dashboard) -> None:
    board.provider.claims = {"sub": "nobody", "groups": []}
    async with board.page("/jobs", token=None) as page:
        await signed_in(page, "nobody")
        await page.get_by_text("nobody has no role here").wait_for()
        await page.get_by_text("You may not see or do this").wait_for()
        await page.get_by_role("button", name="nobody").click()
        await board.findings(page, "who am I")

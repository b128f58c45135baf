"""The dashboard with 1,000 hosts and 10,000 jobs: how soon it is there, and how long the browser is busy with news."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import Page, async_playwright

from gpu_platform.domain.states import GpuState
from gpu_platform.store import Store
from gpu_platform.store.hosts import gpu_states
from tests.support.api_server import ADMIN, application, served
from tests.support.dashboard_rig import CHROMIUM, KEY, WHY_NOT
from tests.support.store_cluster import NOW, Cluster

pytestmark = [
    pytest.mark.browser,
    pytest.mark.scale,
    pytest.mark.timeout(900),
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
]

HOSTS, GPUS_EACH, JOBS, RUNNING = 1000, 8, 10_000, 800
FIRST_PAINT_MS, LONGEST_TASK_MS = 1000, 100
WATCH = """
window.tasks = [];
new PerformanceObserver((list) => tasks.push(...list.getEntries().map((one) => [one.startTime, one.duration])))
  .observe({ type: "longtask", buffered: true });
"""


def fill(store: Store) -> None:
    cluster = Cluster(store)
    for number in range(HOSTS):
        leaf = number // 32
        cluster.host(f"rack{number:04}", GPUS_EACH, leaf=f"leaf-{leaf:02}", spine=f"spine-{leaf // 8}")
    for number in range(JOBS):
        cluster.queued(f"j-{number:015}", name=f"train-{number}", user=f"user-{number % 50}")
        if number < RUNNING:
            cluster.reserve(f"j-{number:015}", {f"rack{number:04}": [*range(GPUS_EACH)]})


async def longest_ms(page: Page, since: float) -> float:
    tasks: list[tuple[float, float]] = await page.evaluate("window.tasks")
    return max((took for began, took in tasks if began >= since), default=0.0)


async def test_a_large_cluster_is_there_at_once_and_stays_smooth(sqlite_store: Store, tmp_path: Path) -> None:
    await asyncio.to_thread(fill, sqlite_store)
    async with served(application(sqlite_store, "127.0.0.1:1")) as url, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await browser.new_page(base_url=url)
        page.set_default_timeout(120_000)
        await page.add_init_script(f"sessionStorage['{KEY}'] = '{ADMIN}';" + WATCH)
        await page.goto("/")
        await page.locator("article.host").nth(HOSTS - 1).wait_for(state="attached")
        painted = await page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        shown = await page.evaluate("performance.now()")
        loading = await longest_ms(page, 0)

        await page.locator("dd", has_text="1000").first.wait_for()
        began = await page.evaluate("performance.now()")
        for number in range(200):
            gpu = f"rack{900 + number % 100:04}:{number % 8}"
            gpu_states.set_gpu_state(sqlite_store, gpu, GpuState.OFFLINE, reason="a fan", actor="ada", now=NOW)
            await asyncio.sleep(0.02)
        await page.locator(".cell.gpu-OFFLINE").nth(190).wait_for(state="attached")
        news = await longest_ms(page, began)

        began = await page.evaluate("performance.now()")
        for path, there in (("/jobs", "tbody tr"), ("/queue", ".gantt-row"), ("/", "article.host")):
            await page.locator(f'nav a[href="{path}"]').click()
            await page.locator(there).nth(90).wait_for(state="attached")
        pages = await longest_ms(page, began)
        await browser.close()
    print(
        f"\nfirst paint {painted:.0f} ms, all {HOSTS} hosts after {shown:.0f} ms; "
        f"longest task: {loading:.0f} ms while loading, {news:.0f} ms for news, {pages:.0f} ms between pages"
    )
    assert painted < FIRST_PAINT_MS
    assert news < LONGEST_TASK_MS

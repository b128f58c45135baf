"""The documentation as a site: each page has its place, nothing is fetched from elsewhere, search works offline."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt

from tests.support.pages import DOCS, HOW_TOS, ROOT

pytestmark = pytest.mark.processes

CONFIG: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}
"""Elements that fetch what an attribute names. A link of the head does, too; one in the text does not."""
SAME_BLOCKS = ("h1", "h2", "h3", "li", "table", "pre", "img")


def pages_of(nav: Any) -> Iterator[str]:
    if isinstance(nav, list):
        for item in nav:
            yield from pages_of(item)
    elif isinstance(nav, dict):
        for item in nav.values():
            yield from pages_of(item)
    else:
        yield nav


def test_each_how_to_has_its_place_in_the_navigation() -> None:
    placed = list(pages_of(CONFIG["nav"]))
    wanted = [path.relative_to(DOCS).as_posix() for path in HOW_TOS]
    assert [page for page in wanted if page not in placed] == [], (
        "write these pages into `nav` of mkdocs.yml, below How-to guides: Use it (who submits jobs), Run it (who "
        "operates a cluster) or Plan; in the group that answers the reader's question, after the pages that come first"
    )
    assert [page for page in placed if page.startswith("how-to/") and page not in wanted] == [], "there is no such page"
    assert len(placed) == len(set(placed)), "a page stands twice in `nav` of mkdocs.yml"


def test_each_page_of_every_part_has_its_place() -> None:
    placed = list(pages_of(CONFIG["nav"]))
    folders = tuple(page for page in placed if page.endswith("/"))
    there = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    assert [page for page in there if page not in placed and not page.startswith(folders)] == [], "`nav` of mkdocs.yml"


def test_the_first_page_says_what_it_is_in_one_screen() -> None:
    text = (DOCS / "index.md").read_text()
    assert len(text.splitlines()) < 70
    readme = (ROOT / "README.md").read_text()
    first = " ".join(readme.split("\n\n")[1].split()[:20])
    assert first in " ".join(text.split()), "README and the first page of the site begin with the same sentence"


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_code_in_a_list_is_indented_by_four(page: Path) -> None:
    """GitHub takes what stands below the first letter of the item; the site only what is indented by four."""
    lines = page.read_text().splitlines()
    for token in MarkdownIt().parse(page.read_text()):
        if token.type == "fence" and token.level and page.parent.name != "contributing":
            assert token.map
            indent = len(lines[token.map[0]]) - len(lines[token.map[0]].lstrip())
            assert indent % 4 == 0, f"line {token.map[0] + 1} is indented by {indent}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make site` does."""
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed (the extra `docs`)")
    built = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(built)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return built


class Elements(HTMLParser):
    """What a page loads, and how many elements of each kind its article has."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.counts = dict.fromkeys(SAME_BLOCKS, 0)
        self.code: list[str] = []
        """The texts of inline code."""
        self._in_article = self._in_code = self._in_pre = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "link" and values.get("rel") not in ("next", "prev", "canonical"):
            self.loaded.append(values.get("href") or "")
        if tag in LOADS and values.get(LOADS[tag]):
            self.loaded.append(values[LOADS[tag]] or "")
        self._in_article = self._in_article or tag == "article"
        if self._in_article and tag in self.counts:
            self.counts[tag] += 1

        self._in_pre = self._in_pre or tag == "pre"
        if self._in_article and tag == "code" and not self._in_pre:
            self._in_code = True
            self.code.append("")

    def handle_data(self, data: str) -> None:
        if self._in_code:
            self.code[-1] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "article":
            self._in_article = False
        if tag == "pre":
            self._in_pre = False
        if tag == "code":
            self._in_code = False


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 100
    for page in pages:
        text = page.read_text()
        foreign = [one for one in Elements(text).loaded if re.match(r"(https?:)?//", one)]
        assert foreign == [], page
        assert 'class="mermaid"' not in text, f"{page}: the theme would fetch a library to draw this"
    for sheet in site.rglob("*.css"):
        assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", sheet.read_text()) == [], sheet


def test_links_lead_to_pages_of_the_site_and_to_sources(site: Path) -> None:
    checkpoints = (site / "how-to" / "checkpoints.html").read_text()
    assert 'href="../source/examples/train_torch.py.html"' in checkpoints
    shown = (site / "source" / "examples" / "train_torch.py.html").read_text()
    assert "torch.distributed" in re.sub(r"<[^>]+>", "", shown)
    assert list(site.rglob("*.html")), "mkdocs itself fails for a link or an anchor that leads nowhere"


@pytest.mark.parametrize(
    "page",
    [page for page in sorted(DOCS.rglob("*.md")) if page.name not in ("architecture.md", "README.md")],
    ids=lambda page: str(page.relative_to(DOCS)),
)
def test_the_site_shows_what_the_markdown_says(site: Path, page: Path) -> None:
    """Its reader of Markdown knows fewer forms than GitHub's: a list right below a paragraph is no list there."""
    shown = Elements((site / page.relative_to(DOCS).with_suffix(".html")).read_text())
    meant = Elements(f"<article>{MarkdownIt().enable('table').render(page.read_text())}</article>")
    assert shown.counts == meant.counts
    assert [" ".join(one.split()) for one in shown.code] == [" ".join(one.split()) for one in meant.code]


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (Debian: apt-get install chromium)")
async def test_search_works_from_a_folder_without_a_network(site: Path) -> None:
    playwright = pytest.importorskip("playwright.async_api")
    asked: list[str] = []
    async with playwright.async_playwright() as started:
        browser = await started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = await browser.new_context(offline=True)
        page = await context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        await page.goto((site / "index.html").as_uri())
        await page.locator(".md-search__input").fill("why a job waits")
        first = page.locator(".md-search-result__link").first
        await first.wait_for(state="visible", timeout=20_000)
        assert "why-a-job-waits" in str(await first.get_attribute("href"))
        colours = [await page.evaluate("getComputedStyle(document.body).backgroundColor")]
        await page.emulate_media(color_scheme="dark")
        await page.reload()
        colours.append(await page.evaluate("getComputedStyle(document.body).backgroundColor"))
        await browser.close()
    assert colours[0] != colours[1], "light and dark"
    assert [url for url in asked if not url.startswith(("file:", "blob:", "data:", "about:"))] == []

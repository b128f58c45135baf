"""The dashboard's files: where they come from, what the page says about them, and how browsers may keep them."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import httpx

from gpu_platform.store import Store
from service.routers.dashboard import PAGES, site
from tests.support.api_server import application, in_process

FOLDER = Path(__file__).parents[3] / "service" / "dashboard"
VENDOR = FOLDER / "vendor"
NOWHERE = "127.0.0.1:1"
IMPORT = re.compile(r"""^(?:import|export)\b[^;]*?from\s*"([^"]+)";""", re.MULTILINE)


def test_each_library_is_as_its_package_has_it() -> None:
    manifest = json.loads((VENDOR / "manifest.json").read_text())
    said = {path: digest for package in manifest for path, digest in package["sha256"].items()}
    there = {str(path.relative_to(VENDOR)) for path in VENDOR.rglob("*") if path.is_file()} - {"manifest.json"}
    assert there == set(said)
    assert {path: hashlib.sha256((VENDOR / path).read_bytes()).hexdigest() for path in said} == said
    assert all(package["version"] and package["licence"] in ("MIT", "Apache-2.0") for package in manifest)


def test_the_libraries_that_run_are_smaller_than_100_kb() -> None:
    assert sum(len(content) for name, content in site().files.items() if name.startswith("vendor/")) < 100_000


def test_each_import_is_a_file_or_a_library_of_the_page() -> None:
    mapped = json.loads(re.findall(r'<script type="importmap">(.*?)</script>', site().page)[0])["imports"]
    for name, content in site().files.items():
        if not name.endswith(".js") or name.startswith("vendor/"):
            continue
        for target in IMPORT.findall(content.decode()):
            if target.startswith("."):
                assert str((Path("/") / name).parent.joinpath(target).resolve())[1:] in site().files, (name, target)
            else:
                assert target in mapped, (name, target)


def test_the_page_has_no_script_and_no_style_in_it_but_the_one_that_its_policy_names() -> None:
    inside = re.findall(r"<script(?![^>]*\bsrc=)[^>]*>", site().page)
    assert inside == ['<script type="importmap">']
    assert "<style" not in site().page
    assert " style=" not in site().page
    assert "unsafe" not in site().policy


async def test_files_are_kept_by_browsers_and_other_releases_get_todays(sqlite_store: Store) -> None:
    async with in_process(application(sqlite_store, NOWHERE)) as http:
        http.headers.pop("Authorization")
        for page in PAGES:
            path = page.format(name="a", job="j", array="a-1", pipeline="p-1", schedule="s-1")
            assert (await http.get(path)).text == site().page
        assert (await asset(http, site().release, "app.js")).headers["cache-control"].endswith("immutable")
        assert (await asset(http, "0" * 16, "app.js")).headers["cache-control"] == "no-store"
        for path in ("index.html", "README.md", "../routers/docs.py", "vendor/manifest.json", "nothing.js"):
            assert (await asset(http, site().release, path)).status_code == 404


async def asset(http: httpx.AsyncClient, release: str, path: str) -> httpx.Response:
    return await http.get(f"/dashboard/{release}/{path}")

"""Generated files are up to date, and documents link to files that exist."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
READMES = [
    path
    for folder in ("activities", "gpu_platform", "service", "workers", "workflows")
    for path in (ROOT / folder).rglob("README.md")
]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"), *READMES])


def script(name: str) -> ModuleType:
    sys.path.insert(0, str(ROOT / "scripts"))  # as `python scripts/NAME.py` does
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "scripts"))


@pytest.fixture(scope="module")
def generated() -> Mapping[str, str]:
    """Page -> its text."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "200")
        return script("gen_reference").pages()


@pytest.mark.parametrize("page", ["configuration.md", "cli.md", "rest.md", "grpc.md", "logs.md"])
def test_reference_is_up_to_date(generated: Mapping[str, str], page: str) -> None:
    assert (ROOT / "docs" / "reference" / page).read_text() == generated[page], "run: make docs"


def test_the_client_without_asyncio_is_up_to_date() -> None:
    gen_client = script("gen_client")
    for source, target in gen_client.TARGETS.items():
        assert target.read_text() == gen_client.sync_source(source), "run: make client"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text()):
        assert (document.parent / target).exists(), target

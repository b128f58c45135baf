"""Settings, variables, metrics and pages that the docs or the program name: each is there today."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from gpu_platform.scheduling.policy import Policy
from gpu_platform.settings import Settings
from tests.support import pages
from tests.support.pages import EXPLAINING, FOLLOWED, ROOT

PACKAGES = ("activities", "gpu_platform", "service", "workers", "workflows")
TOP = (*PACKAGES, "deploy", "docs", "examples", "scripts")
SOURCES = "\n".join(path.read_text() for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
FILES = {path.stem for folder in TOP for path in (ROOT / folder).rglob("gpu_platform_*")} | {"gpu_platform"}
METRICS = (ROOT / "docs" / "reference" / "metrics.md").read_text()


def model_of(annotation: Any) -> type[Any] | None:
    """The section that a field holds, also where it may be None."""
    for one in (annotation, *get_args(annotation)):
        if isinstance(one, type) and (issubclass(one, BaseModel) or is_dataclass(one)):
            return one
    return None


def is_setting(path: str) -> bool:
    model: type[Any] | None = Settings
    for name in path.split("."):
        if model is None:
            return True  # below a mapping stands what people name themselves
        known: dict[str, Any] = (
            {one: field.annotation for one, field in model.model_fields.items()}
            if issubclass(model, BaseModel)
            else {one.name: one.type for one in fields(model)}
        )
        if name not in known:
            return False
        if (model, name) == (Settings, "scheduler"):
            policy_path = path.removeprefix("scheduler.policy.")
            if policy_path != path:
                return policy_path.split(".")[0] in {one.name for one in fields(Policy)}
        model = model_of(known[name])
    return True


SECTIONS = [name for name, field in Settings.model_fields.items() if model_of(field.annotation) is not None]
SETTING = re.compile(rf"^(?:{'|'.join(SECTIONS)})(?:\.[a-z_0-9]+)+$")
ALL_PAGES = [pytest.param(page, id=str(page.relative_to(ROOT))) for page in [*FOLLOWED, *EXPLAINING]]


@pytest.mark.parametrize("page", ALL_PAGES)
def test_settings_that_a_page_names_exist(page: Path) -> None:
    named = [text.partition(":")[0] for text in pages.inline_code(page)]
    named = [
        name for name in named if SETTING.match(name) and not name.endswith((".py", ".yaml", ".md", ".service", ".db"))
    ]
    # Events have names of the same form.
    assert [name for name in named if not is_setting(name) and f'"{name}"' not in SOURCES] == []


@pytest.mark.parametrize("page", ALL_PAGES)
def test_variables_that_a_page_names_are_read(page: Path) -> None:
    for name in re.findall(r"\bGPU_PLATFORM_[A-Z_0-9]*[A-Z0-9]\b", page.read_text()):
        setting = name.removeprefix("GPU_PLATFORM_").lower().replace("__", ".")
        tests = page.name == "faults.md" and name.startswith("GPU_PLATFORM_CHAOS_")
        prefix = name.startswith(("GPU_PLATFORM_PARAM_", "GPU_PLATFORM_INPUT_"))
        assert is_setting(setting) or name in SOURCES or prefix or tests, name


@pytest.mark.parametrize("page", ALL_PAGES)
def test_metrics_that_a_page_names_exist(page: Path) -> None:
    named = {text for text in pages.inline_code(page) if re.fullmatch(r"(gpu_platform|topology)_\w+", text)}
    assert [name for name in named if name not in METRICS and name not in SOURCES and name not in FILES] == []


def test_pages_that_the_program_names_exist() -> None:
    named = set(re.findall(r"docs/[\w/-]+\.md", SOURCES))
    assert len(named) > 3
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_a_word_stands_once_in_the_glossary() -> None:
    terms = re.findall(
        r"^\| \*\*(.+?)\*\*(?: \((.+?)\))? \|", (ROOT / "docs/explanation/glossary.md").read_text(), re.MULTILINE
    )
    words = [(word.strip(), of) for term, of in terms for word in term.split(",")]
    assert len(words) > 100
    assert [word for word in words if words.count(word) > 1] == []
    without = {"upload", "outputs", "script", "session", "executor", "what-if", "launcher"} - {
        word for word, _ in words
    }
    assert not without


def test_decisions_are_numbered_without_gaps_and_each_is_in_the_index() -> None:
    folder = ROOT / "docs" / "adr"
    names = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))
    assert re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", (folder / "README.md").read_text()) == names
    named = {int(number) for number in re.findall(r"\bADR (\d+)", SOURCES)}
    assert named
    assert max(named) <= len(names)

"""The recipes of ``docs/contributing``: what they name, and a copy of the tree in which they are followed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "contributing"
RECIPES = sorted(path.stem for path in FOLDER.glob("*.md"))
PATCHES = sorted(path.stem for path in FOLDER.glob("patches/*.patch"))
_COPIED = (
    *("activities", "docs", "examples", "gpu_platform", "proto", "scripts", "service", "tests", "workers", "workflows"),
    *("requirements", "CONTRIBUTING.md", "Makefile", "pyproject.toml"),
)
_WRITTEN_BY_TOOLS = re.compile(
    r"\.pyc$|\.egg-info$|^build$|^site-packages$|^\.venv$|^\.(ruff|pytest)_cache$|^\.hypothesis$"
)

RENEW = """
{patch} does not apply any more, because the code below it changed. Renew it, and the recipe if its files changed:
    git apply --3way {patch}      # or -C1; mend what conflicts, then `git add` it
    git diff --cached --full-index > {patch}
    git restore --staged --worktree $(git apply --numstat {patch} | cut -f3)
{error}"""


def text(recipe: str) -> str:
    """The page of a recipe."""
    return (FOLDER / f"{recipe}.md").read_text()


def steps(recipe: str) -> list[str]:
    """Its numbered steps."""
    return re.findall(r"^\d+\. (.*(?:\n   .*|\n(?=\n   ))*)", text(recipe), re.MULTILINE)


def files(recipe: str) -> list[str]:
    """The files that its steps write by hand, in order: each step begins with one."""
    return [found[1] for step in steps(recipe) if (found := re.match(r"`([^`]+)`:", step))]


def made(recipe: str) -> dict[str, list[str]]:
    """The files that its steps generate, by the target of ``make``."""
    found = [re.match(r"`make (\w+)` writes (.*)", step, re.DOTALL) for step in steps(recipe)]
    return {step[1]: re.findall(r"`(\w[^`]*/[^`]+)`", step[2]) for step in found if step}


def commands(recipe: str) -> list[str]:
    """What a reader of the recipe types to have all of it, in order. The last one is the check."""
    return re.findall(r"^    ((?:git apply|make|\.venv/bin/python) .*)$", text(recipe), re.MULTILINE)


def block(page: str, language: str) -> str:
    """The first block of code in this language, without its indentation."""
    return blocks(page, language)[0]


def blocks(page: str, language: str) -> list[str]:
    """All blocks of code in this language, without their indentation."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", page, re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{indent}", "", code, flags=re.MULTILINE) for indent, code in found]


def migration(newest: str) -> tuple[str, str, str]:
    """What the recipe adds: the line of the model, the migration's file name, and its code, next after ``newest``."""
    column, code = blocks(text("migration"), "python")
    number = f"{int(newest) + 1:04}"
    return column.strip(), f"v{number}_notes.py", code.replace("NNNN", number).replace("MMMM", newest)


def newest_migration() -> str:
    """The number of the newest migration, e.g. ``0019``."""
    return max(path.name[1:5] for path in (ROOT / "gpu_platform/store/migrations/versions").glob("v*.py"))


def patch_of(recipe: str) -> Path:
    """The patch that follows the recipe."""
    return FOLDER / "patches" / f"{recipe}.patch"


def patched_files(recipe: str) -> list[str]:
    """The files that the patch touches."""
    return re.findall(r"^\+\+\+ b/(.*)$", patch_of(recipe).read_text(), re.MULTILINE)


class Tree:
    """A copy of the tree, in which recipes are followed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        for name in _COPIED:
            source = ROOT / name
            # Compiled modules go with their sources: a process of the copy then starts as fast as one of ours.
            shutil.copytree(source, root / name) if source.is_dir() else shutil.copy2(source, root / name)
        self.packages = root / "site-packages"
        self.wrong: dict[str, str] = {}
        """For each recipe that was followed: what its check found. Empty: nothing."""
        self._make_environment()

    def _make_environment(self) -> None:
        """A .venv with the packages of the one that runs the tests, as ``scripts/setup`` would make it."""
        environment, ours = self.root / ".venv", Path(sys.prefix)
        environment.mkdir()
        shutil.copy2(ours / "pyvenv.cfg", environment)
        for name in ("bin", "lib"):
            (environment / name).symlink_to(ours / name)
        for lock in ("dev", "runtime"):
            # As in scripts/setup, which makes the environment anew if this differs.
            stamp = f"{{ cat requirements/{lock}.lock pyproject.toml && pwd -P; }} | sha256sum > .venv/stamp-{lock}"
            self.run("bash", "-c", stamp)

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which Python imports the copy, and the packages that were installed for it.

        Compiled modules are written: a dozen processes import the patched ones.
        """
        return {"PYTHONPATH": os.pathsep.join([str(self.root), str(self.packages)]), "PYTHONDONTWRITEBYTECODE": ""}

    def follow(self, recipe: str) -> None:
        """Type what the page says. Fails with how to renew a patch that does not apply. What its check says is in
        ``wrong``: another recipe would make files that this one forgot."""
        *steps, check = commands(recipe)
        for command in steps:
            try:
                self.type(command)
            except AssertionError as error:
                if not command.startswith("git apply"):
                    raise
                raise AssertionError(RENEW.format(patch=patch_of(recipe).relative_to(ROOT), error=error)) from None
        try:
            self.type(check)
            self.wrong[recipe] = ""
        except AssertionError as error:
            self.wrong[recipe] = str(error)

    def type(self, command: str) -> str:
        """The output of a line that somebody types in the tree."""
        return self.run("bash", "-c", command, GIT_CEILING_DIRECTORIES=str(self.root.parent))

    def install(self, *packages: str) -> None:
        """Install packages of the tree where only the copy finds them."""
        install = ("uv", "pip", "install", "--quiet", "--python", sys.executable, "--target", str(self.packages))
        self.python("-m", *install, "--no-deps", "--no-index", "--no-cache", "--no-build-isolation", *packages)

    def python(self, *arguments: str, **variables: str) -> str:
        return self.run(sys.executable, *arguments, **variables)

    def run(self, *command: str, **variables: str) -> str:
        """The output of a command in the tree. Fails with all it said, if it fails."""
        environment = {**os.environ, **self.environment, **variables}
        done = subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def changed(self) -> set[str]:
        """The files that are not as in our own tree, without what packages and compilers wrote."""
        found = set[str]()
        for path in self.root.rglob("*"):
            name = path.relative_to(self.root)
            if not path.is_file() or any(_WRITTEN_BY_TOOLS.search(part) for part in name.parts):
                continue
            original = ROOT / name
            if not original.exists() or original.read_bytes() != path.read_bytes():
                found.add(str(name))
        return found

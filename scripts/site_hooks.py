"""What mkdocs.yml needs beside mkdocs: files of the repository as pages, and folders in the navigation.

Pages under ``docs`` link to files elsewhere in the repository, such as examples. The site must be whole without it, so
each such file becomes a page below ``source/``, and the link leads there.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

ROOT = Path(__file__).parents[1]
DOCS = "docs"
SOURCE = "source"
_FENCED = re.compile(r"^( *)(```+|~~~+).*?^\1\2`*$\n?", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?P<code>(?P<ticks>`+)(?:(?!\n\n).)+?(?P=ticks))|\]\((?P<target>[^)\s]+)\)", re.DOTALL)
_ITEM = re.compile(r"(?:[-*]|\d+\.) ")
_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_CODE = re.compile(r"<code>[^<]*</code>")
_FOR_TESTS = re.compile(r"^ *<!-- (?:not run here|exit code)\b.*?-->\n", re.MULTILINE | re.DOTALL)
_BOOST = {"how-to": 2, "tutorial.md": 2, "adr": 0.3, "contributing": 0.5}
"""By how much search prefers pages of a folder: who searches wants to do something, more often than to know why."""
_LANGUAGES = {".py": "python", ".sh": "sh", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".json": "json"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Anchors are those that GitHub makes of headings. A folder in the navigation stands for its pages."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    config.nav = _expanded(config.nav)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file outside ``docs`` that a page, or a page that was added, links to."""
    waiting = [_path_of(file.src_uri) for file in files.documentation_pages()]
    waiting += [_path_of(uri) for uri in _pages_of(config.nav) if uri.startswith(f"{SOURCE}/")]
    seen: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        if not path.startswith(f"{DOCS}/"):
            files.append(File.generated(config, _uri_of(path), content=_source_page(path)))
        if path.endswith(".md"):
            waiting += [other for other in _links(path) if not other.startswith(f"{DOCS}/")]
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let links to files of the repository lead to their pages, and leave out what only tests read."""
    here = _path_of(page.file.src_uri)
    page.meta.setdefault("search", {"boost": _BOOST.get(page.file.src_uri.split("/")[0], 1)})
    markdown = _FOR_TESTS.sub("", markdown)
    # A drawing by Mermaid needs a library of 3 MB. The text below it shows the same.
    markdown = re.sub(r"^```mermaid\n.*?^```\n\nThe same as text:\n\n", "", markdown, flags=re.MULTILINE | re.DOTALL)

    def lead(target: str) -> str:
        path, hash_, anchor = target.partition("#")
        repository_path = _resolved(here, path)
        if repository_path is None:
            return target
        uri = _uri_of(repository_path)
        return posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or ".") + hash_ + anchor

    return _lists_apart(_with_links(markdown, lead)) if here.endswith(".md") else markdown


def on_page_content(html: str, **_: Any) -> str:
    """A bar in the code of a table is written with a backslash, which GitHub does not show."""
    return _TABLE.sub(lambda table: _CODE.sub(lambda code: code[0].replace("\\|", "|"), table[0]), html)


def _expanded(nav: Any) -> Any:
    if isinstance(nav, list):
        return [_expanded(item) for item in nav]
    if isinstance(nav, dict):
        return {title: _expanded(item) for title, item in nav.items()}
    if isinstance(nav, str) and nav.endswith("/"):
        names = sorted(path.name for path in (ROOT / DOCS / nav).glob("*.md"))
        return [nav + name for name in sorted(names, key=lambda name: (name != "README.md", name))]
    return nav


def _pages_of(nav: Any) -> list[str]:
    if isinstance(nav, dict):
        nav = list(nav.values())
    return [page for item in nav for page in _pages_of(item)] if isinstance(nav, list) else [nav]


def _source_page(path: str) -> str:
    file = ROOT / path
    hidden = "---\nsearch:\n  exclude: true\n---\n"
    if file.is_dir():
        names = sorted(name.name + "/" * name.is_dir() for name in file.iterdir())
        return f"{hidden}# {path}/\n\n" + "".join(f"- `{name}`\n" for name in names)
    text = file.read_text()
    if file.suffix == ".md":
        return text if path == "CONTRIBUTING.md" else hidden + text
    return f"{hidden}# {path}\n\n`````{_LANGUAGES.get(file.suffix, 'text')}\n{text}\n`````\n"


def _links(path: str) -> list[str]:
    """The files of the repository to which a page links, as paths from its root."""
    found: list[str] = []

    def note(target: str) -> str:
        if (other := _resolved(path, target.partition("#")[0])) is not None:
            found.append(other)
        return target

    _with_links((ROOT / path).read_text(), note)
    return found


def _resolved(page: str, target: str) -> str | None:
    """The file of the repository that a link in a page names. None: an address, an anchor, or nothing of ours."""
    if not target or ":" in target or target.startswith("/"):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
    return path if not path.startswith("..") and os.path.exists(ROOT / path) else None


def _with_links(markdown: str, change: Callable[[str], str]) -> str:
    """The page with each target of a link changed."""

    def in_text(text: str) -> str:
        return _LINK.sub(lambda found: found["code"] or f"]({change(found['target'])})", text)

    return _outside_of_code(markdown, in_text)


def _lists_apart(markdown: str) -> str:
    """The page with an empty line before each list. GitHub needs none after a paragraph, and mkdocs does."""

    def in_text(text: str) -> str:
        lines: list[str] = []
        paragraph: list[str] = []
        for line in text.split("\n"):
            if _ITEM.match(line) and paragraph and not any(_ITEM.match(before) for before in paragraph):
                lines.append("")
            paragraph = [*paragraph, line] if line.strip() else []
            lines.append(line)
        return "\n".join(lines)

    return _outside_of_code(markdown, in_text)


def _outside_of_code(markdown: str, change: Callable[[str], str]) -> str:
    parts: list[str] = []
    end = 0
    for fenced in _FENCED.finditer(markdown):
        parts += [change(markdown[end : fenced.start()]), fenced[0]]
        end = fenced.end()
    return "".join([*parts, change(markdown[end:])])


def _path_of(uri: str) -> str:
    """The path in the repository of a page of the site."""
    if not uri.startswith(f"{SOURCE}/"):
        return f"{DOCS}/{uri}"
    path = uri.removeprefix(f"{SOURCE}/")
    for written in (path, path.removesuffix(".md"), path.removesuffix("/index.md")):
        if (ROOT / written).exists():
            return written
    raise FileNotFoundError(f"no file of the repository is {uri}")


def _uri_of(path: str) -> str:
    """The page of the site that shows a file of the repository."""
    if path.startswith(f"{DOCS}/"):
        return path.removeprefix(f"{DOCS}/")
    if (ROOT / path).is_dir():
        return f"{SOURCE}/{path}/index.md"
    return f"{SOURCE}/{path}" if path.endswith(".md") else f"{SOURCE}/{path}.md"

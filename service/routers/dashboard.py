"""The dashboard: one page with every script from this service. What it shows it asks of the public API, with the token
of who uses it. So the files are for everybody, and the data is not (ADR 91)."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import APIRouter, Response

from gpu_platform.domain.errors import NotFound

router = APIRouter(include_in_schema=False)

PAGES = (
    "/",
    "/hosts/{name}",
    "/jobs",
    "/jobs/{job}",
    "/arrays",
    "/arrays/{array}",
    "/pipelines",
    "/pipelines/{pipeline}",
    "/schedules",
    "/schedules/{schedule}",
    "/queue",
    "/submit",
    "/usage",
    "/what-if",
    "/sign-in",
)
"""The addresses of its pages. All get the same document: the script in it shows the page of the address."""
_TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_IMPORTS = {
    "preact": "vendor/preact/preact.mjs",
    "preact/hooks": "vendor/preact/hooks.mjs",
    "@preact/signals-core": "vendor/signals-core/signals-core.mjs",
    "@preact/signals": "vendor/signals/signals.mjs",
    "htm": "vendor/htm/htm.mjs",
    "htm/preact": "vendor/htm/preact.mjs",
}
"""What the libraries call each other, and the files of it."""
_FOR_EVER = "public, max-age=31536000, immutable"
_NOT_MODULES = ("uPlot.iife.min.js", "theme.js")


@dataclass(frozen=True)
class Site:
    """The files of the dashboard. ``release`` is a hash of all of them, and is part of their address: so a browser may
    keep each file for ever, and a new release is fetched at once."""

    files: dict[str, bytes]
    release: str
    page: str
    policy: str


@cache
def site() -> Site:
    """Read the files once."""
    folder = files("service") / "dashboard"
    found = dict(sorted(_read(folder, "")))
    digest = hashlib.sha256()
    for name, content in found.items():
        digest.update(name.encode() + b"\0" + hashlib.sha256(content).digest())
    release = digest.hexdigest()[:16]
    base = f"/dashboard/{release}"
    imports = json.dumps({"imports": {name: f"{base}/{path}" for name, path in _IMPORTS.items()}})
    modules = [name for name in found if name.endswith(("js",)) and not name.endswith(_NOT_MODULES)]
    preloads = "\n".join(f'<link rel="modulepreload" href="{base}/{name}">' for name in modules)
    template = (folder / "index.html").read_text("utf-8")
    values = {"base": base, "imports": imports, "preloads": preloads}
    page = re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], template)
    allowed = base64.b64encode(hashlib.sha256(imports.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'self' 'sha256-{allowed}'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    return Site(found, release, page, policy)


def _read(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _read(entry, f"{prefix}{entry.name}/")
        elif _type_of(entry.name) is not None:
            found.append((prefix + entry.name, entry.read_bytes()))
    return found


def _type_of(name: str) -> str | None:
    return next((kind for suffix, kind in _TYPES.items() if name.endswith(suffix)), None)


def _show_page() -> Response:
    """The document of every page."""
    headers = {"Content-Security-Policy": site().policy, "Cache-Control": "no-cache"}
    return Response(site().page, media_type="text/html", headers=headers)


for _path in PAGES:
    router.add_api_route(_path, _show_page, methods=["GET"])


@router.get("/dashboard/{release}/{path:path}")
def show_file(release: str, path: str) -> Response:
    """A file of the dashboard. A page of another release gets the file of this one, and does not keep it."""
    content = site().files.get(path)
    if content is None:
        raise NotFound(f"the dashboard has no file {path[:200]!r}")
    caching = _FOR_EVER if release == site().release else "no-store"
    return Response(content, media_type=_type_of(path), headers={"Cache-Control": caching})

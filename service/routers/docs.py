"""The page /docs: the API in a browser, with every script from this service."""

from __future__ import annotations

from importlib.resources import files
from typing import Literal

from fastapi import APIRouter, Response

router = APIRouter(include_in_schema=False)

_STATIC = files("fastapi_offline") / "static"
_ASSETS = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css", "favicon.png": "image/png"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>gpu-platform</title>
<link rel="stylesheet" href="docs/swagger-ui.css">
<link rel="icon" href="docs/favicon.png">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
_START = """SwaggerUIBundle({
  url: "openapi.json", dom_id: "#swagger-ui", deepLinking: true, showExtensions: true, showCommonExtensions: true,
  presets: [SwaggerUIBundle.presets.apis, SwaggerUIBundle.SwaggerUIStandalonePreset],
});
"""


@router.get("/docs")
async def show_docs() -> Response:
    """The API with its schemas, to read and to try."""
    return Response(_PAGE, media_type="text/html", headers={"Content-Security-Policy": _POLICY})


@router.get("/docs/start.js")
async def start_script() -> Response:
    """The script that shows the description on the page. It is a file, because the page allows no script inside it."""
    return Response(_START, media_type="text/javascript")


@router.get("/docs/{asset}")
def show_asset(asset: Literal["swagger-ui-bundle.js", "swagger-ui.css", "favicon.png"]) -> Response:
    """A file of Swagger UI."""
    content = (_STATIC / asset).read_bytes()
    return Response(content, media_type=_ASSETS[asset], headers={"Cache-Control": "max-age=3600"})

"""The manifest and the service worker (`/sw.js`) of the progressive web app; they hold nothing of the site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.responses import FileResponse, JSONResponse

from appliance.web.route_list import RouteList

router = RouteList(include_in_schema=False)
WORKER = Path(__file__).parent / "static" / "sw.js"
MANIFEST: dict[str, Any] = {
    "name": "Vedette",
    "short_name": "Vedette",
    "id": "/",
    "start_url": "/",
    "scope": "/",
    "display": "standalone",
    "background_color": "#f6f5f1",
    "theme_color": "#0d6b58",
    "icons": [
        {"src": "/static/icons/192.png", "sizes": "192x192", "type": "image/png", "purpose": "any"},
        {"src": "/static/icons/512.png", "sizes": "512x512", "type": "image/png", "purpose": "any"},
        {"src": "/static/icons/512.png", "sizes": "512x512", "type": "image/png", "purpose": "maskable"},
    ],
}


@router.get("/manifest.webmanifest")
def manifest() -> JSONResponse:
    """Names and icons; browsers fetch it without signing in."""
    return JSONResponse(MANIFEST, media_type="application/manifest+json")


@router.get("/sw.js")
def service_worker() -> FileResponse:
    """From the root, since a service worker sees only what lies below it."""
    return FileResponse(WORKER, media_type="text/javascript", headers={"Cache-Control": "no-cache"})

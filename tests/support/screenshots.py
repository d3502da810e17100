"""Pictures of pages that browser tests look at, kept for a person."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page


def shot(page: Page, name: str) -> None:
    """Keeps a picture of the page as NAME-WIDTH.png where VEDETTE_SHOTS names a folder; does nothing elsewhere."""
    if folder := os.environ.get("VEDETTE_SHOTS"):
        width = page.viewport_size["width"] if page.viewport_size else 0
        page.screenshot(path=str(Path(folder) / f"{name}-{width}.png"), full_page=True)

"""axe-core looks at every page, narrow and wide, light and dark: what it calls serious or worse must not be there."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package (dev extra)")
pytest.importorskip("axe_playwright_python", reason="axe-core comes with axe-playwright-python (dev extra)")
from conftest import House
from playwright.sync_api import Page

pytestmark = pytest.mark.browser
PAGES = (
    "/", "/?camera=nowhere", "/live", "/timeline", "/cameras", "/cameras/gate", "/cameras/gate/timeline",
    "/alerts/walker", "/savings", "/scenarios", "/storage", "/users", "/system", "/login",
)  # fmt: skip
SERIOUS = {"serious", "critical"}


def found_by_axe(page: Page) -> list[str]:
    """Each serious fault with the first elements that have it."""
    page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text())
    outcome: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['id']} ({each['impact']}): {each['help']}: {[node['html'][:120] for node in each['nodes'][:3]]}"
        for each in outcome["violations"]
        if each["impact"] in SERIOUS
    ]


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (1440, "light"),
        (390, "dark"),
        pytest.param(390, "light", marks=pytest.mark.slow),
        pytest.param(1440, "dark", marks=pytest.mark.slow),
    ],
)
def test_axe_finds_nothing_serious(visit: Callable[..., Page], house: House, width: int, scheme: str) -> None:
    page = visit("/", width=width, scheme=scheme)
    faults = {}
    for path in PAGES:
        page.goto(house.url + path)
        page.wait_for_load_state("load")
        if found := found_by_axe(page):
            faults[path] = found
    assert not faults


def test_axe_finds_what_is_wrong(visit: Callable[..., Page]) -> None:
    page = visit("/cameras")
    page.evaluate("document.querySelector('h1').innerHTML = '<img src=\"/static/vedette.svg\">'")
    assert any(fault.startswith("image-alt") for fault in found_by_axe(page))

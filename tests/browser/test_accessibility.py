"""axe-core looks at every page, narrow and wide, light and dark: what it calls serious or worse must not be there."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from typing import Any, Literal

import pytest

pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package (dev extra)")
pytest.importorskip("axe_playwright_python", reason="axe-core comes with axe-playwright-python (dev extra)")
from conftest import House
from playwright.sync_api import Browser, Page

from appliance.dashboard.trials_api import (
    LeftOut,
    TrialHead,
    TrialResult,
    TrialStore,
    TriedAlert,
    TriedAlertPair,
    TriedEvent,
    TriedTotals,
)
from tests.support.dashboard_site import PASSWORD, furnished

pytestmark = pytest.mark.browser
TRIAL = "0" * 16
PAGES = (
    "/", "/?camera=nowhere", "/live", "/timeline", "/cameras", "/cameras/gate", "/cameras/gate/timeline",
    "/alerts/walker", "/savings", "/scenarios", "/storage", "/models", "/users", "/access", "/system", "/login",
    "/cameras/gate/trials", f"/cameras/gate/trials/{TRIAL}",
)  # fmt: skip
CHANGING = (
    "/settings", "/settings/storage", "/settings/escalation", "/cameras/gate/settings", "/notify", "/account", "/users",
    "/cameras/new", "/cameras/gate/edit", "/cameras/gate/why", "/nowhere",
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


def tried(house: House) -> None:
    """Keep a trial that lost the alert."""
    t0, totals = house.t0, TriedTotals(looks=40, tracks=1, events=1, alerts=1, questions=0)
    alert = TriedAlert(
        t_start=t0 + 3, t_end=t0 + 5, rules=("intruder",), labels=("person",), severity="alert", tracks=1, best_t=t0 + 4
    )
    event = TriedEvent(change="missing", rule="intruder", label="person", track=1, t=t0 + 3, moved_s=0)
    result = TrialResult(
        same=False, settings=(), models=("a", "b"), totals=(totals, totals), events=[event], tracks=[], missing=[],
        alerts=[TriedAlertPair(change="missing", before=alert, after=None)], unread=["a segment could not be read"],
        left_out=LeftOut(alerts=0, events=0, tracks=0), replayed=1,
    )  # fmt: skip
    diff = "--- before\n+++ after\n-a: 1\n+a: 2"
    head = TrialHead(
        id=TRIAL, camera="gate", began_t=t0, who="anna", why="", spans=[(t0, t0 + 8)], diff=diff, state="done"
    )
    TrialStore(house.site.root).put(head, result)


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
    tried(house)
    for path in PAGES:
        page.goto(house.url + path)
        page.wait_for_load_state("load")
        if found := found_by_axe(page):
            faults[path] = found
    assert not faults


def test_axe_finds_nothing_serious_where_things_are_changed(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What an admin alone sees, what a signed-in person sees, and what there is not; each in one theme and width."""
    faults = {}
    with furnished(tmp_path_factory.mktemp("site") / "a", {"anna": ("admin", None)}) as url:
        for n, path in enumerate(CHANGING):
            size = [{"width": 390, "height": 844}, {"width": 1440, "height": 900}][n % 2]
            scheme: Literal["light", "dark"] = "dark" if n % 4 > 1 else "light"
            context = browser.new_context(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
            login = {"name": "anna", "password": PASSWORD}
            assert context.request.post(f"{url}/login", data=login, headers={"Origin": url}).ok
            page = context.new_page()
            page.goto(url + path)
            page.wait_for_load_state("load")
            if found := found_by_axe(page):
                faults[path] = found
            context.close()
    assert not faults


def test_axe_finds_what_is_wrong(visit: Callable[..., Page]) -> None:
    page = visit("/cameras")
    page.evaluate("document.querySelector('h1').innerHTML = '<img src=\"/static/vedette.svg\">'")
    assert any(fault.startswith("image-alt") for fault in found_by_axe(page))

"""The page Why in a real browser: words on top, the strip under the video, a span decided again, wide and narrow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import House

pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package (dev extra)")
from playwright.sync_api import Page, expect

from tests.support.screenshots import shot

pytestmark = pytest.mark.browser

CLIP = Path(__file__).parents[2] / "fixtures" / "clips" / "gate.mp4"
JOB_MS = 200_000  # the job has the lowest priority
DESK, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844, "scheme": "dark"}


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_a_span_is_explained_and_decided_again(house: House, visit: Callable[..., Page], size: dict[str, int]) -> None:
    t0 = round(house.t0) - 100.0
    house.site.record_clip("gate", CLIP, t0, 10)  # a person comes in by the gate, and nobody looked
    page = visit(f"/cameras/gate/why?t={t0 + 6:.1f}&span=7", **size)
    expect(page.locator("#sentence")).to_contain_text("nothing was examined")
    page.wait_for_function("() => document.getElementById('video').readyState >= 2")
    page.get_by_role("button", name="Decide again").click()
    page.wait_for_url("**job=*")
    page.reload()  # a job survives that
    expect(page.locator("#why")).to_have_attribute("data-state", "done", timeout=JOB_MS)
    expect(page.locator("#sentence")).to_contain_text("this would be reported: person (intruder)")
    page.wait_for_load_state()  # its script has run, which listens to the clicks
    assert page.locator(".rows circle.confirmed").count() > 3
    page.get_by_role("button", name="person 1").click()
    expect(page.locator(".spanned rect").first).to_be_attached()
    left = page.locator(".needle").first.get_attribute("x1")
    assert left is not None
    assert float(left.rstrip("%")) > 5
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing is wider than the page"
    shot(page, "why-again")


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_what_is_stored_explains_at_once_and_is_linked(
    house: House, visit: Callable[..., Page], size: dict[str, int]
) -> None:
    page = visit("/alerts/walker", **size)
    page.get_by_role("link", name="Why?").click()
    expect(page.locator("#sentence")).to_contain_text("Reported: person (intruder).")
    track = page.locator(".one").first
    expect(track).to_contain_text("loiterer it stayed")
    expect(track).to_contain_text("of the 20 s that the rule wants in zone yard")
    expect(page.get_by_role("link", name="alert", exact=True)).to_have_attribute("href", "/alerts/walker")
    page.get_by_role("link", name="Earlier").click()
    expect(page.locator("#sentence")).not_to_contain_text("Reported")
    page.go_back()
    shot(page, "why-stored")
    page.get_by_role("link", name="Timeline").last.click()
    page.locator("#timeline[data-loaded]").wait_for()
    page.get_by_role("link", name="Why? Why not?").click()
    expect(page.locator("#why")).to_be_visible()

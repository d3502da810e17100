"""Health events beside alerts in a real browser: told apart, filtered, live, and answered by a person."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from appliance.store.health_events import HealthEventStore
from appliance.types import HealthEvent
from tests.browser.conftest import House
from tests.support.screenshots import shot

pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package (dev extra)")
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser

Visit = Callable[..., Page]
SIZES = {"phone": (390, 844), "desk": (1280, 800)}


@pytest.fixture
def faults(house: House) -> HealthEventStore:
    """One camera was turned, the other stood still for a while, and the detector is slow to come back."""
    events, t0 = HealthEventStore(house.site.db), house.t0
    events.put(
        HealthEvent(
            camera="gate", id="moved1", kind="moved", t=t0 + 14, t_start=t0 + 8,
            reason="what the camera sees has moved by 8% of the picture's width to the right: its zones no longer fit",
        )
    )  # fmt: skip
    events.put(
        HealthEvent(
            camera="dock", id="frozen1", kind="frozen", t=t0 - 290, t_start=t0 - 300, t_end=t0 - 262, attempts=2,
            reason="pictures come, but not even the noise in them changes: the camera shows an old picture",
            recovery="connecting to the camera again",
        )
    )  # fmt: skip
    return events


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("device", SIZES)
def test_the_timeline_and_the_cameras_page_show_it_on_a_phone_and_on_a_desk(
    visit: Visit, faults: HealthEventStore, device: str, scheme: str
) -> None:
    width, height = SIZES[device]
    for path, name in (("/", "timeline"), ("/cameras/gate", "camera"), ("/cameras", "cameras")):
        page = visit(path, width=width, height=height, scheme=scheme)
        expect(page.locator("#pulse")).to_have_attribute("data-state", "live")
        expect(page.get_by_text("Camera moved").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "scrolls sideways"
        shot(page, f"health-{name}-{device}-{scheme}")


def test_an_event_appears_beside_the_alerts_is_passed_by_keys_changes_in_place_and_can_be_filtered(
    visit: Visit, house: House, faults: HealthEventStore
) -> None:
    page = visit("/")
    expect(page.locator("#pulse")).to_have_attribute("data-state", "live")
    black = HealthEvent(camera="dock", id="black1", kind="black", t=house.t0 + 15, t_start=house.t0 + 10, reason="dark")
    faults.put(black)
    line = page.locator("#h-black1")
    expect(line).to_contain_text("Black picture")
    order = page.evaluate("[...document.querySelectorAll('#cards > [data-t]')].map((each) => +each.dataset.t)")
    assert order == sorted(order, reverse=True)
    page.keyboard.press("j")  # walks over alerts alone
    page.keyboard.press("r")
    expect(page.locator("#a-walker")).to_contain_text("Reviewed")
    faults.put(replace(black, t=house.t0 + 40, t_end=house.t0 + 30))
    expect(line).to_contain_text("20 s")
    page.locator("select[name=show]").select_option("health")
    expect(page.locator(".card")).to_have_count(0)
    expect(page.locator(".fault")).to_have_count(3)
    expect(page.locator("#pulse")).to_have_attribute("data-state", "live")
    page.locator("select[name=show]").select_option("alerts")
    expect(page.locator(".fault")).to_have_count(0)
    expect(page.locator(".card")).to_have_count(1)


def test_a_person_confirms_the_view(visit: Visit, faults: HealthEventStore) -> None:
    page = visit("/cameras/gate")
    expect(page.locator("#pulse")).to_have_attribute("data-state", "live")
    page.get_by_role("button", name="This view is right").click()
    expect(page.locator("#h-moved1 .review")).to_have_text("Seen")
    row = faults.get("moved1")
    assert row is not None
    assert row.seen_t is not None

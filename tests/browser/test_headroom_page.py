"""What the pages show of an overloaded detector in a real browser, on a desk and on a phone, in both schemes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from appliance.store.health_events import HealthEventStore
from appliance.store.meter import Metric, MetricName
from appliance.types import DecodeStatus, HealthEvent
from tests.browser.conftest import House
from tests.support.screenshots import shot

pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package (dev extra)")
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser

Visit = Callable[..., Page]
SIZES = {"phone": (390, 844), "desk": (1440, 900)}
REASON = (
    "it gets 0.7 of 5.0 inferences a second: the detector is at work 97% of the time; lower detect.fps, take a quicker "
    "network, or fewer cameras"
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("device", SIZES)
def test_an_overload_is_on_the_cameras_page_with_what_is_left(
    visit: Visit, house: House, device: str, scheme: str
) -> None:
    width, height = SIZES[device]
    site, now = house.site, house.site.clock.now()
    site.health = replace(site.health, detector_ms=61.0, load=0.97)
    site.meter.note("gate", DecodeStatus("active", "", 0.0, promised_fps=5.0, examined_fps=0.7))
    site.meter.note("dock", DecodeStatus("idle", "", 0.0, promised_fps=0.3, examined_fps=0.3))
    site.meter.add("gate", Metric(MetricName.HELD_BACK, "intruder"), 3)
    event = HealthEvent(camera="gate", id="o1", kind="overloaded", t=now, t_start=now - 12, reason=REASON)
    HealthEventStore(site.db).put(event)
    try:
        page = visit("/cameras", width=width, height=height, scheme=scheme)
        panel = page.get_by_role("region", name="Detector")
        expect(panel).to_contain_text("97 % in use")
        expect(panel).to_contain_text("Too little for gate")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "scrolls sideways"
        shot(page, f"headroom-{device}-{scheme}")
        page = visit("/cameras/gate", width=width, height=height, scheme=scheme)
        expect(page.locator(".lasting")).to_contain_text("Too few inferences")
        expect(page.locator(".facts")).to_contain_text("held back today by its cooldown")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "scrolls sideways"
        shot(page, f"overloaded-camera-{device}-{scheme}")
        page = visit("/", width=width, height=height, scheme=scheme)
        shot(page, f"overloaded-home-{device}-{scheme}")
    finally:
        HealthEventStore(site.db).end_open(now, "the test is over")

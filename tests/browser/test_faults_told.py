"""Twenty kinds of faults on a first page that is open: each is told in words, with a button to a page that is there."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package (dev extra)")
from playwright.sync_api import Page, expect

from appliance.types import HEALTH_TITLES, HealthEvent
from appliance.types.literals import OF_NEIGHBOURS, HealthKind
from tests.browser.conftest import House
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.browser
TOLD_S = 10.0
OF_THE_SITE = OF_NEIGHBOURS | {"clock", "detector", "database", "fallback", "hot", "memory", "service", "disk", "model"}
FAULTS: tuple[HealthKind, ...] = (
    "stalled", "frozen", "black", "covered", "moved", "clock", "detector", "decoder", "overloaded", "database",
    "hot", "memory", "service", "disk", "unrecorded", "uplink", "mqtt", "notify", "certificate", "model",
)  # fmt: skip


def fault(kind: HealthKind, t: float, t_end: float | None = None) -> HealthEvent:
    return HealthEvent(
        id=f"f-{kind}", camera="" if kind in OF_THE_SITE else "gate", kind=kind, t_start=t, t_end=t_end, t=t,
        reason="it does not answer", recovery="", attempts=0, times=1,
    )  # fmt: skip


@pytest.mark.timeout(900)
def test_twenty_faults_are_told_with_what_helps(visit: Callable[..., Page], house: House) -> None:
    page = visit("/")
    expect(page.locator("#pulse")).to_have_attribute("data-state", "live")
    slowest = 0.0
    for kind in FAULTS:
        t = house.site.clock.now()
        began = time.monotonic()
        house.site.faults.put(fault(kind, t))
        line = page.locator(f"#troubles li[data-kind={kind}]")
        expect(line).to_be_visible()
        slowest = max(slowest, time.monotonic() - began)
        expect(line).to_contain_text(HEALTH_TITLES[kind])
        expect(line).to_contain_text("It does not answer.")
        button = line.locator("a.button")
        if button.count():  # none leads to the settings of this dashboard, which has no site file
            address = button.get_attribute("href")
            assert page.request.get(f"{house.url}{address}", headers={"Accept": "text/html"}).ok, (kind, address)
        house.site.faults.put(fault(kind, t, house.site.clock.now()))
        expect(line).to_have_count(0)
    assert slowest < TOLD_S * PATIENCE
    print(f"{len(FAULTS)} of {len(FAULTS)} faults told within {slowest:.1f} s; that the button ends them is unmeasured")

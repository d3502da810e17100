"""The storage page in a real browser, on a desk and on a phone, in both schemes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from appliance.store.deletions import DeletionLedger, DeletionReason, StorageClass
from appliance.types import SegmentKind, SegmentRow
from tests.browser.conftest import House
from tests.support.dashboard_site import Site
from tests.support.screenshots import shot

pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package (dev extra)")
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser

Visit = Callable[..., Page]
SIZES = {"phone": (360, 780), "desk": (1280, 800)}
HOUR_S = 3600.0


def a_day(site: Site, camera: str, megabytes_an_hour: int, kind: SegmentKind = "continuous") -> None:
    """What 20 hours of recording leave in the index."""
    now = site.clock.now()
    with site.db.transaction():
        for n in range(20 * 10):
            t = now - 20 * HOUR_S + n * 360 - 60
            site.segments.put(
                SegmentRow(
                    camera=camera, path=f"segments/{camera}/day/{n:04}.mp4", t_start=t, t_end=t + 360, complete=True,
                    kind=kind, bytes=megabytes_an_hour * 100_000, frames=1800, codec="h264", size=(1280, 720),
                )
            )  # fmt: skip


def deleted(site: Site, camera: str, what: StorageClass, reason: DeletionReason, files: int) -> None:
    deletions = DeletionLedger(site.db)
    for _ in range(files):
        deletions.add(camera, what, reason, 2_500_000, site.clock.now() - 24 * HOUR_S)
    with site.db.transaction() as connection:
        deletions.write(connection)
    deletions.written()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("device", SIZES)
def test_the_page_says_what_is_taken_how_long_it_lasts_and_what_went(
    visit: Visit, house: House, device: str, scheme: str
) -> None:
    width, height = SIZES[device]
    site = house.site
    a_day(site, "gate", 900)
    a_day(site, "shed", 300, "pre_roll")
    (site.root / "scenarios/kept").mkdir(parents=True)
    (site.root / "scenarios/kept/clip.mp4").write_bytes(b"x" * 1_234_567)
    deleted(site, "gate", "continuous", "age", 42)
    deleted(site, "dock", "evidence", "quota", 3)
    page = visit("/storage", width=width, height=height, scheme=scheme)
    expect(page.get_by_role("region", name="Per camera")).to_contain_text("21.6 GB")
    expect(page.locator("main")).to_contain_text("Kept scenarios")
    expect(page.locator("main")).to_contain_text("its time was up")
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "scrolls sideways"
    heights = "[...document.querySelectorAll('.top nav a')].map((each) => each.getBoundingClientRect().height)"
    assert max(page.evaluate(heights)) < 45, "a word of the navigation is broken over two lines"
    shot(page, f"storage-{device}-{scheme}")


def test_a_young_appliance_says_so_in_words(visit: Visit, house: House) -> None:
    page = visit("/storage", width=360, height=780, scheme="light")
    expect(page.locator("main")).to_contain_text("Not yet known: it takes an hour of recorded video to measure.")
    expect(page.locator("main")).to_contain_text("Nothing was deleted yet.")
    shot(page, "storage-young-phone")

"""Users in a real browser: the first is added, signs in, gives out a token and takes it back; desk and phone."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.base.clock import SystemClock
from tests.support.dashboard_site import Site, running
from tests.support.screenshots import shot

pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package (dev extra)")
from playwright.sync_api import BrowserContext, expect

pytestmark = pytest.mark.browser
PASSWORD = "four words to remember"


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")], ids=["desk", "phone"])
def test_the_first_user_is_added_signs_in_and_gives_out_a_token(
    window: BrowserContext, tmp_path: Path, width: int, scheme: str
) -> None:
    site = Site(tmp_path, SystemClock())
    with running(site.serve()) as url:
        page = window.new_page()
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.goto(f"{url}/users")
        adding = page.locator("#add")
        adding.get_by_label("Name").fill("anna")
        adding.get_by_label("Password").fill(PASSWORD)
        expect(adding.get_by_label("Role")).to_have_value("admin")
        adding.get_by_role("button", name="Add").click()
        page.wait_for_url("**/login?**")
        page.get_by_label("Name").fill("anna")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/users")
        page.get_by_text("Add a user").click()
        adding.get_by_label("Name").fill("gatehouse")
        adding.get_by_label("Password").fill(PASSWORD)
        adding.get_by_label("dock").uncheck()
        adding.get_by_role("button", name="Add").click()
        expect(page.locator("[data-user=gatehouse]")).to_contain_text("gate")
        expect(page.locator(".log")).to_contain_text("anna added a user gatehouse")
        token = page.locator("#add-token")
        token.get_by_label("Name").fill("ha")
        token.get_by_role("button", name="Make a token").click()
        expect(page.locator("#fresh code")).to_contain_text("vdt_")
        page.locator("[data-user=gatehouse] summary").click()
        shot(page, f"users-{width}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.get_by_role("button", name="Revoke").click()
        expect(page.get_by_role("button", name="Revoke")).to_have_count(0)
        user = page.locator("[data-user=gatehouse]")
        user.locator("summary").click()
        user.get_by_role("button", name="Remove").click()
        user.get_by_role("button", name="Really remove?").click()
        expect(user).to_have_count(0)
        page.close()
    site.close()

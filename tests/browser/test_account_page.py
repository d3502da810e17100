"""One's own account in a real browser: a second factor is set up and asked for, a password changed; desk and phone."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from appliance.base.clock import SystemClock
from appliance.base.credentials import STEP_S, code_at
from appliance.store.users import UserStore
from appliance.types.accounts import UserRow
from tests.support.dashboard_site import Site, password_hash, running
from tests.support.screenshots import shot
from tests.support.waiting import until

pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package (dev extra)")
from playwright.sync_api import BrowserContext, Page, expect

pytestmark = pytest.mark.browser
PASSWORD = "four words to remember"


def sign_in(page: Page) -> None:
    page.wait_for_url("**/login*")  # and until its script has run, which listens to the clicks
    page.get_by_label("Name").fill("rita")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")], ids=["desk", "phone"])
def test_a_second_factor_is_set_up_and_asked_for(
    window: BrowserContext, tmp_path: Path, width: int, scheme: str
) -> None:
    site = Site(tmp_path, SystemClock())
    for name, role in (("anna", "admin"), ("rita", "reviewer")):
        UserStore(site.db).add(UserRow(name=name, role=role, cameras=None, password=password_hash(PASSWORD)))  # type: ignore[arg-type]
    with running(site.serve()) as url:
        page = window.new_page()
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.goto(f"{url}/login")
        sign_in(page)
        page.get_by_role("link", name="Signed in as rita").click()
        page.wait_for_url("**/account")
        factor = page.locator("section", has=page.get_by_role("heading", name="Second factor"))
        factor.get_by_label("Your password").fill(PASSWORD)
        factor.get_by_role("button", name="Set it up").click()
        until(lambda: page.evaluate("document.getElementById('qr').naturalWidth") > 0, what="the picture is there")
        shot(page, f"account-begun-{width}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        secret = page.locator("#secret").text_content() or ""
        step = int(time.time()) // STEP_S
        page.get_by_label("The code that it shows").fill(code_at(secret, step))
        page.get_by_role("button", name="Use it from now on").click()
        expect(page.locator("#codes pre")).to_contain_text("-")
        recovery = (page.locator("#codes pre").text_content() or "").split()
        assert len(recovery) == 10
        shot(page, f"account-codes-{width}")
        with page.expect_navigation():
            page.get_by_role("link", name="I have kept the codes").click()
        expect(page.get_by_text("10 recovery codes are left")).to_be_visible()
        shot(page, f"account-on-{width}")
        page.get_by_role("button", name="Sign out").last.click()
        page.wait_for_url("**/login")
        sign_in(page)
        page.get_by_label("Code from your app").fill(recovery[0])
        shot(page, f"login-code-{width}")
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"{url}/")
        page.goto(f"{url}/account")
        expect(page.get_by_text("9 recovery codes are left")).to_be_visible()
        password = page.locator("section", has=page.get_by_role("heading", name="Password", exact=True))
        password.get_by_label("Current password").fill(PASSWORD)
        password.get_by_label("New password").fill("another one, longer")
        password.get_by_role("button", name="Change the password").click()
        page.wait_for_url("**/login**")
        page.close()
    site.close()

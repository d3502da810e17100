"""HTTPS in a real browser: it warns of a certificate that the box made; past that all works, and Settings shows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.base.clock import SystemClock
from appliance.settings.settings_service import SettingsService
from appliance.store.users import UserStore
from appliance.types.accounts import UserRow
from tests.support.dashboard_site import Site, config_of, password_hash, running

pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package (dev extra)")
from playwright.sync_api import Browser, Error, expect

pytestmark = pytest.mark.browser
PASSWORD = "four words to remember"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Address and fingerprint of a box with its own certificate and the admin anna."""
    site_file = tmp_path / "site.yaml"
    site_file.write_text("site: {name: depot-7}\ncameras: {}\n")
    site = Site(tmp_path, SystemClock(), config=config_of(protocol="https"))
    UserStore(site.db).add(UserRow(name="anna", role="admin", cameras=None, password=password_hash(PASSWORD)))
    settings = SettingsService(site_file, tmp_path, site.clock, lambda config: ())
    server = site.serve(settings=settings)
    with running(server) as url:
        yield url, server.fingerprint
    site.close()


def test_a_browser_warns_and_past_that_the_fingerprint_can_be_compared(
    browser: Browser, served: tuple[str, str]
) -> None:
    url, fingerprint = served
    context = browser.new_context()
    with pytest.raises(Error, match="ERR_CERT_AUTHORITY_INVALID"):
        context.new_page().goto(url)
    context.close()
    context = browser.new_context(ignore_https_errors=True)  # as the person does who has compared
    page = context.new_page()
    page.goto(f"{url.replace('https://', 'http://')}/settings")
    assert page.url.startswith(f"{url}/login")
    page.get_by_label("Name").fill("anna")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/settings")
    expect(page.get_by_text(fingerprint)).to_be_visible()
    cookie = context.cookies()[0]
    assert cookie["secure"]
    assert cookie["httpOnly"]
    expect(page.locator("#pulse")).to_have_attribute("data-state", "live")
    context.close()

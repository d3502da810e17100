"""The page of models in a real browser: a signed one is looked for, pulled, put in force and left again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from appliance.base.clock import SystemClock
from appliance.bundle.bundle_store import InForce
from appliance.bundle.manifest import BundleRef
from appliance.config import SiteConfig
from appliance.detect.model_files import bundle_store
from appliance.settings.settings_service import SettingsService
from tests.support.dashboard_site import Site, running
from tests.support.model_publisher import NAME, ModelPublisher, TrustingSite
from tests.support.screenshots import shot

pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package (dev extra)")
from playwright.sync_api import Browser, Page, expect

pytestmark = pytest.mark.browser

FILE = """\
site: {{name: depot-7, language: {language}}}
cameras:
  gate: {{url: rtsp://192.168.1.20/main}}
"""
SIZES = {"desk-en": (1440, 900, "en"), "phone-de": (390, 844, "de")}
SOON_MS = 20_000  # the page is fresh every five seconds


@pytest.fixture
def publisher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelPublisher:
    """One whom the appliance trusts, with one bundle that the appliance has not heard of."""
    monkeypatch.setenv("VEDETTE_MODELS", str(tmp_path / "models"))
    made = ModelPublisher(tmp_path / "publisher")
    TrustingSite(bundle_store().root).trust(made)
    made.publish("2")
    return made


@pytest.fixture(params=SIZES)
def page(request: pytest.FixtureRequest, browser: Browser, tmp_path: Path, publisher: ModelPublisher) -> Iterator[Page]:
    width, height, language = SIZES[request.param]
    path = tmp_path / "site.yaml"
    path.write_text(FILE.format(language=language))
    (tmp_path / "data").mkdir()
    site = Site(tmp_path / "data", SystemClock(), SiteConfig.model_validate(yaml.safe_load(path.read_text())))
    service = SettingsService(path, tmp_path / "data", site.clock, lambda _: ())
    context = browser.new_context(viewport={"width": width, "height": height}, locale=language)
    with running(site.serve(settings=service)) as url:
        opened = context.new_page()
        faults: list[str] = []
        opened.on("pageerror", lambda error: faults.append(str(error)))
        opened.goto(f"{url}/models")
        yield opened
        assert faults == []
        assert opened.evaluate("document.documentElement.scrollWidth") <= width, "scrolls sideways"
    context.close()
    site.close()


def test_a_signed_model_is_found_pulled_put_in_force_and_left_again(page: Page, publisher: ModelPublisher) -> None:
    ref, german = BundleRef(NAME, "2"), page.locator("html").get_attribute("lang") == "de"
    own = page.get_by_role("listitem").filter(has_text="vedette-nano").first
    expect(own).to_contain_text("Gilt" if german else "In force")
    page.get_by_role("button", name="Nach neuen suchen" if german else "Look for new ones").click()
    row = page.get_by_role("listitem").filter(has_text=str(ref))
    row.get_by_role("button", name="Laden" if german else "Pull").click()
    use = row.get_by_role("button", name="In Kraft setzen" if german else "Put in force")
    expect(use).to_be_visible(timeout=SOON_MS)
    shot(page, f"models-{'de' if german else 'en'}")
    use.click()
    row.get_by_role("button", name="Jetzt in Kraft setzen" if german else "Put in force now").click()
    expect(row).to_contain_text("Gilt" if german else "In force", timeout=SOON_MS)
    assert bundle_store().in_force().of("gate") == InForce(ref, state="probation")
    back = page.get_by_role("button", name="Dahin zurück" if german else "Go back to it")
    back.click()
    page.get_by_role("button", name="Jetzt zurück" if german else "Go back now").click()
    expect(own).to_contain_text("Gilt" if german else "In force", timeout=SOON_MS)
    assert bundle_store().in_force().of("gate") is None


def test_why_a_pull_failed_stands_in_its_row(page: Page, publisher: ModelPublisher) -> None:
    german = page.locator("html").get_attribute("lang") == "de"
    page.get_by_role("button", name="Nach neuen suchen" if german else "Look for new ones").click()
    row = page.get_by_role("listitem").filter(has_text=f"{NAME}@2")
    expect(row).to_be_visible()
    for blob in (publisher.repository / "blobs" / "sha256").iterdir():
        blob.write_bytes(bytes(len(blob.read_bytes())))
    row.get_by_role("button", name="Laden" if german else "Pull").click()
    expect(row.get_by_role("alert").first).to_contain_text(
        "nicht der, der unterschrieben wurde" if german else "is not what was signed", timeout=SOON_MS
    )
    assert not bundle_store().installed()

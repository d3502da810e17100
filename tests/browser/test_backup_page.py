"""Backup, restore and diagnostics in a real browser: made, downloaded, brought back, ready for the next start."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.backup.restore import apply_ready
from appliance.base.clock import SystemClock
from appliance.config import load
from appliance.settings.settings_service import SettingsService
from tests.support.dashboard_site import Site, running
from tests.support.screenshots import shot

pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package (dev extra)")
from playwright.sync_api import BrowserContext, expect

pytestmark = pytest.mark.browser

SIZES = {"phone": (390, 844), "desk": (1440, 900)}


@pytest.fixture
def box(tmp_path: Path) -> Iterator[tuple[Site, Path]]:
    path, root = tmp_path / "site.yaml", tmp_path / "data"
    root.mkdir()
    path.write_text(
        f"site: {{name: depot-7}}\nstorage: {{dir: {root}}}\n"
        "cameras: {gate: {url: 'rtsp://viewer:hunter2@192.168.1.20/main'}}\n"
    )
    site = Site(root, SystemClock(), load(path))
    site.raise_alert("a1", site.clock.now() - 60)
    yield site, path
    site.close()


@pytest.mark.parametrize(("device", "scheme"), [("phone", "light"), ("desk", "dark")])
def test_a_site_is_saved_and_brought_back(
    window: BrowserContext, box: tuple[Site, Path], tmp_path: Path, device: str, scheme: str
) -> None:
    site, path = box
    width, height = SIZES[device]
    server = site.serve(settings=SettingsService(path, site.root, site.clock, lambda config: ()))
    with running(server) as url:
        page = window.new_page()
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(f"{url}/system")
        with page.expect_download() as bundle:
            page.get_by_role("link", name="Download diagnostics").click()
        assert "site.yaml" in zipfile.ZipFile(bundle.value.path()).namelist()
        making, bringing = page.locator("#make"), page.locator("#bring")
        making.get_by_label("Passphrase").fill("correct horse battery")
        making.get_by_role("button", name="Make a backup").click()
        made = page.locator("[data-swap=backups] a")
        expect(made).to_have_count(1)
        with page.expect_download() as got:
            made.click()
        kept = tmp_path / "kept.vedette.zip"
        got.value.save_as(kept)
        site.raise_alert("a2", site.clock.now())
        bringing.get_by_label("Backup file").set_input_files(kept)
        bringing.get_by_label("Passphrase").fill("the passphrase of another")
        bringing.get_by_role("button", name="Check it").click()
        expect(page.locator("#wrong")).to_contain_text("not the passphrase")
        bringing.get_by_label("Passphrase").fill("correct horse battery")
        bringing.get_by_role("button", name="Check it").click()
        expect(page.locator("[data-swap=ready]")).to_contain_text("1 alerts, 0 users")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "scrolls sideways"
        shot(page, f"backup-{device}-{scheme}")
        page.locator("[data-swap=backups]").get_by_role("button", name="Delete").click()
        expect(made).to_have_count(0)
        assert not faults
        page.close()
    site.close()
    assert apply_ready(path, site.root) is not None
    again = Site(site.root, site.clock, load(path))
    assert again.alerts.get("a1") is not None
    assert again.alerts.get("a2") is None
    again.close()

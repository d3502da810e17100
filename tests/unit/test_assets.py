"""Scripts and styles: kept by browsers for a year, and never older than the page that asks for them."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from appliance.base.clock import ManualClock
from appliance.web import assets
from tests.support.dashboard_site import Site


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    site = Site(tmp_path_factory.mktemp("site"), ManualClock(1_700_000_000.0))
    yield TestClient(site.app(None), base_url="http://127.0.0.1:8080")
    site.close()


def test_what_a_page_loads_is_kept_for_a_year_at_an_address_of_its_content(client: TestClient) -> None:
    found = re.findall(r'(?:src|href)="(/static/[^"]*)"', client.get("/timeline").text)
    assert len(found) > 8
    for address in found:
        answer = client.get(address)
        assert answer.status_code == 200, address
        assert answer.headers["cache-control"] == "max-age=31536000, immutable", address


def test_scripts_and_styles_are_compressed_for_browsers_that_accept_it_and_pages_never(client: TestClient) -> None:
    found = re.findall(r'(?:src|href)="(/static/[^"]*\.(?:js|css)[^"]*)"', client.get("/timeline?language=de").text)
    for address in (*found, "/static/texts/de.js"):
        plain, packed = (client.get(address, headers={"Accept-Encoding": each}) for each in ("identity", "gzip"))
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.headers["vary"] == "Accept-Encoding"
        assert packed.content == plain.content
        assert "content-encoding" not in plain.headers
    again = client.get(assets.asset("page.js"), headers={"If-None-Match": packed_tag(client, assets.asset("page.js"))})
    assert again.status_code == 304
    assert "content-encoding" not in client.get("/timeline", headers={"Accept-Encoding": "gzip"}).headers


def packed_tag(client: TestClient, address: str) -> str:
    return client.get(address, headers={"Accept-Encoding": "gzip"}).headers["etag"]


def test_another_version_is_answered_with_what_there_is_and_not_kept(client: TestClient) -> None:
    for address in ("/static/v-0123456789ab/page.js", "/static/page.js"):
        answer = client.get(address)
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-cache"), address
        assert answer.content == assets.without_comments("page.js")
    assert client.get("/static/v-0123456789ab/nowhere.js").status_code == 404


def test_a_browser_gets_every_line_of_code_at_its_number_and_no_line_of_comment(client: TestClient) -> None:
    for file in (*assets.files("static", "*.js"), *assets.files("static", "*.css")):
        written = file.read_text(encoding="utf-8").split("\n")
        got = client.get(assets.asset(file.name))
        assert got.headers["content-type"].startswith(("text/javascript", "text/css"))
        lines = got.text.split("\n")
        assert len(lines) == len(written), file.name
        for line, shown in zip(written, lines, strict=True):
            code = line.lstrip(" \t")
            assert code.startswith(shown), file.name
            left_out = code.removeprefix(shown).strip()
            assert not left_out or left_out.startswith(("//", "/*", "*")), (file.name, line)
        assert not [line for line in lines if line.lstrip().startswith("//")], file.name
        assert "/**\n" not in got.text, file.name


def test_a_changed_script_changes_every_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assets, "_FOLDERS", [tmp_path])
    (tmp_path / "static").mkdir()
    (tmp_path / "static" / "page.js").write_text("1")
    before = assets.version.__wrapped__()
    (tmp_path / "static" / "page.js").write_text("2")
    assert assets.version.__wrapped__() != before


def test_all_modules_of_a_page_are_asked_for_at_once(client: TestClient) -> None:
    """What a module imports is in the page, so that no script waits for another to be read."""
    page = client.get("/timeline").text
    named = set(re.findall(r'(?:src|href)="/static/[^"]*/(\w+\.js)"', page))
    assert {"page.js", "timeline.js", "pane.js", "strip.js", "time.js", "texts.js", "converted.js"} <= named
    for name in named:
        imports = re.findall(r'from "\./(\w+\.js)"', assets.file_of("static", name).read_text(encoding="utf-8"))
        assert set(imports) <= named, name
    assert page.count("/page.js") == page.count("/time.js") == 1


def test_the_icons_of_the_app_are_what_its_manifest_says(client: TestClient) -> None:
    manifest = client.get("/manifest.webmanifest")
    assert manifest.headers["content-type"].startswith("application/manifest+json")
    icons = manifest.json()["icons"]
    assert {each["purpose"] for each in icons} == {"any", "maskable"}
    for icon in icons:
        picture = client.get(icon["src"]).content
        assert picture.startswith(b"\x89PNG\r\n")
        width, height = struct.unpack(">II", picture[16:24])
        assert f"{width}x{height}" == icon["sizes"]

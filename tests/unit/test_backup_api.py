"""Backups over the API: made, downloaded, brought back in pieces, checked, laid ready, taken back; for admins."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from appliance.backup.restore import apply_ready, ready_restore
from appliance.base.clock import ManualClock
from appliance.config import load
from appliance.settings.settings_service import SettingsService
from tests.support.dashboard_site import Site

T0 = 1_700_000_000.0
PIECE = {"Content-Type": "application/octet-stream"}


class Served:
    """A site with a file, and its dashboard."""

    def __init__(self, folder: Path) -> None:
        self.path, self.root = folder / "site.yaml", folder / "data"
        self.root.mkdir()
        self.path.write_text(
            f"site: {{name: depot-7}}\nstorage: {{dir: {self.root}}}\n"
            "cameras: {gate: {url: 'rtsp://viewer:hunter2@192.168.1.20/main'}}\n"
        )
        self.site = Site(self.root, ManualClock(T0), load(self.path))
        self.site.raise_alert("a1", T0)
        service = SettingsService(self.path, self.root, self.site.clock, lambda config: ())
        self.http = TestClient(self.site.app(service), base_url="http://127.0.0.1:8080")

    def upload(self, data: bytes, step: int = 40_000) -> None:
        for at in range(0, len(data), step):
            answer = self.http.post(f"/api/v1/restore/upload?at={at}", content=data[at : at + step], headers=PIECE)
            assert answer.json() == {"bytes": min(len(data), at + step)}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path)
    yield made
    made.site.close()


def test_one_that_is_deleted_while_all_are_listed_is_left_out(served: Served) -> None:
    (served.root / "backups").mkdir()
    (served.root / "backups/depot-7-20260101T000000Z.vedette.zip").symlink_to("is gone")
    assert served.http.get("/api/v1/backups").json()["backups"] == []


def test_a_backup_is_made_downloaded_and_comes_back_at_the_next_start(served: Served) -> None:
    made = served.http.post("/api/v1/backups", json={"passphrase": "correct horse battery"})
    assert made.status_code == 201, made.text
    [item] = made.json()["backups"]
    data = served.http.get(item["url"])
    assert (len(data.content), data.headers["content-type"]) == (item["bytes"], "application/zip")
    assert item["name"] in data.headers["content-disposition"]
    assert served.http.get(item["url"], headers={"Range": "bytes=0-1"}).content == b"PK"
    served.site.raise_alert("a2", T0 + 60)
    assert served.http.post("/api/v1/restore", json={}).status_code == 409, "nothing was uploaded"
    served.upload(data.content)
    refused = served.http.post("/api/v1/restore", json={"passphrase": "of another backup"})
    assert (refused.status_code, "passphrase" in refused.json()["detail"]) == (422, True)
    ready = served.http.post("/api/v1/restore", json={"passphrase": "correct horse battery"}).json()["ready"]
    assert (ready["site"], ready["alerts"], ready["secrets"]) == ("depot-7", 1, True)
    assert served.site.alerts.get("a2") is not None, "what runs is not touched"
    assert "The next start begins with depot-7" in served.http.get("/system").text
    served.site.close()
    assert apply_ready(served.path, served.root) is not None
    with sqlite3.connect(served.root / "vedette.db") as connection:
        assert [row[0] for row in connection.execute("SELECT id FROM alert")] == ["a1"]


def test_a_backup_from_the_browser_changes_no_program_of_the_box(served: Served) -> None:
    mine = served.path.read_text()
    served.path.write_text(mine + "decode: {ffmpeg: /tmp/evil}\n")
    [item] = served.http.post("/api/v1/backups", json={"passphrase": "correct horse battery"}).json()["backups"]
    data = served.http.get(item["url"]).content
    served.path.write_text(mine)
    served.upload(data)
    refused = served.http.post("/api/v1/restore", json={"passphrase": "correct horse battery"})
    assert (refused.status_code, "decode.ffmpeg: it names a program" in refused.json()["detail"]) == (422, True)
    assert ready_restore(served.root) is None


def test_what_lies_ready_can_be_taken_back(served: Served) -> None:
    [item] = served.http.post("/api/v1/backups", json={}).json()["backups"]
    served.upload(served.http.get(item["url"]).content)
    assert served.http.post("/api/v1/restore", json={}).json()["ready"] is not None
    assert served.http.request("DELETE", "/api/v1/restore", json={}).json()["ready"] is None
    assert apply_ready(served.path, served.root) is None


def test_an_upload_has_bounds_and_goes_on_where_it_was(served: Served) -> None:
    def send(at: int, data: bytes, **headers: str) -> int:
        return served.http.post(f"/api/v1/restore/upload?at={at}", content=data, headers=headers or PIECE).status_code

    assert send(0, b"abc") == 200
    assert send(7, b"x") == 409
    assert send(0, b"abcd") == 200, "at 0 it begins anew"
    assert send(4, b"e") == 200
    assert send(5, b"x" * (1024 * 1024 + 1)) == 400
    assert send(5, b"{}", **{"Content-Type": "application/json"}) == 415
    assert send(5, b"x", **(PIECE | {"Origin": "https://evil.example"})) == 403
    assert served.http.post("/api/v1/restore", content=b"{}", headers=PIECE).status_code == 415
    assert (served.root / "restore/upload.part").read_bytes() == b"abcde"
    assert served.http.post("/api/v1/restore", json={}).status_code == 422
    assert served.http.get("/api/v1/backups").json()["ready"] is None
    assert send(0, b"") == 200, "an empty file takes the place of the one before, too"
    assert "is no backup" in served.http.post("/api/v1/restore", json={}).json()["detail"]


def test_what_a_kill_left_of_a_backup_goes_with_the_next_one(served: Served) -> None:
    """A copy of the database and a zip of all evidence; no page shows them, and retention does not know them."""
    folder = served.root / "backups"
    folder.mkdir()
    for name in (".depot-7-20260101T000000Z.vedette.zip.db", ".depot-7-20260101T000000Z.vedette.zip.part"):
        (folder / name).write_bytes(b"half")
    [item] = served.http.post("/api/v1/backups", json={}).json()["backups"]
    assert [path.name for path in folder.iterdir()] == [item["name"]]


def test_two_are_kept_and_names_lead_nowhere_else(served: Served) -> None:
    for _ in range(3):
        served.site.clock.advance(60)  # type: ignore[attr-defined]
        found = served.http.post("/api/v1/backups", json={}).json()["backups"]
    assert len(found) == 2
    assert found[0]["name"] > found[1]["name"]
    left = served.http.request("DELETE", found[1]["url"], json={}).json()["backups"]
    assert [each["name"] for each in left] == [found[0]["name"]]
    for name in ("..%2Fvedette.db", "vedette.db", "x.vedette.zip", found[1]["name"]):
        assert served.http.get(f"/api/v1/backups/{name}").status_code == 404
    short = served.http.post("/api/v1/backups", json={"passphrase": "short"})
    assert (short.status_code, "10 characters" in short.json()["detail"]) == (422, True)


def test_without_a_site_file_there_is_nothing_to_back_up(tmp_path: Path) -> None:
    site = Site(tmp_path, ManualClock(T0))
    with site.client() as http:
        assert http.post("/api/v1/backups", json={}).status_code == 404
        assert "Make a backup" not in http.get("/system").text
    site.close()

"""Exports that may be handed over, links to them that end, and who looked at what: with real recordings."""

from __future__ import annotations

import hashlib
import io
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import httpx
import pytest
from fastapi.testclient import TestClient

from appliance.base.clock import ManualClock
from appliance.base.errors import StoreError
from appliance.base.local_files import DiskWriteError
from appliance.config import StorageConfig
from appliance.dashboard import exports
from appliance.dashboard.exports import OPENINGS_A_MINUTE, ClipExporter
from appliance.detect.model_files import model_bundles
from appliance.store.boxes import BoxStore
from appliance.store.exports import KEPT_S, ExportStore, delete_old_exports
from appliance.store.retention import Retention
from appliance.store.users import AccessLog, UserStore
from appliance.types.accounts import UserRow
from tests.support.dashboard_site import PASSWORD, Site, password_hash

T0 = 1_700_000_040.0
PATIENCE = 60.0
API = "/api/v1"
MODELS = Path(__file__).parents[2] / "models"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(T0 + 60)


@pytest.fixture
def site(tmp_path: Path, clock: ManualClock) -> Iterator[Site]:
    """Anna may do all, Ben looks at the dock only; `a1` is an alert of the gate."""
    made = Site(tmp_path, clock)
    for name, role, cameras in (("anna", "admin", None), ("ben", "reviewer", ("dock",))):
        UserStore(made.db).add(UserRow(name=name, role=role, cameras=cameras, password=password_hash()))  # type: ignore[arg-type]
    made.live("gate", T0)
    made.record("gate", T0)
    made.cut(made.raise_alert("a1", T0 + 3))
    yield made
    made.close()


@pytest.fixture
def client(site: Site) -> Iterator[TestClient]:
    with site.client() as made:
        made.post("/login", json={"name": "anna", "password": PASSWORD})
        yield made


def finished(client: TestClient, ordered: httpx.Response) -> dict[str, Any]:
    assert ordered.status_code == 201, ordered.text
    ends = time.monotonic() + PATIENCE
    while (item := client.get(f"{API}/exports/{ordered.json()['id']}").json())["state"] == "making":
        assert time.monotonic() < ends, "it is never done"
    return dict(item)


def logged(site: Site) -> list[tuple[str, str, str]]:
    return [(row.who, row.what, row.camera) for row in AccessLog(site.db).newest()]


def test_an_alert_is_exported_with_a_cover_sheet_and_checksums(client: TestClient, site: Site) -> None:
    assert client.post(f"{API}/alerts/a1/export", json={"why": "  "}).status_code == 422
    item = finished(client, client.post(f"{API}/alerts/a1/export", json={"why": "file 7/26 <b>"}))
    assert (item["state"], item["hide"], item["camera"]) == ("ready", "surroundings", "gate")
    data = client.get(item["download"]).content
    assert hashlib.sha256(data).hexdigest() == item["sha256"]
    with zipfile.ZipFile(io.BytesIO(data)) as packed:
        files = {name: packed.read(name) for name in packed.namelist()}
    sums = dict(line.split("  ")[::-1] for line in files["SHA256SUMS"].decode().splitlines())
    assert sums == {name: hashlib.sha256(files[name]).hexdigest() for name in ("clip.mp4", "cover.html")}
    cover = files["cover.html"].decode()
    for told in ("anna", "file 7/26 &lt;b&gt;", "2023-11-14T22:1", sums["clip.mp4"], "is a mosaic"):
        assert told in cover
    with av.open(io.BytesIO(files["clip.mp4"])) as opened:
        assert not opened.streams.audio
        assert sum(1 for _ in opened.decode(video=0)) >= 40
    assert logged(site)[:2] == [("anna", "downloaded an export", "gate"), ("anna", "exported", "gate")]
    assert "file 7/26" in AccessLog(site.db).newest()[1].about


def test_a_span_is_exported_and_only_of_ones_own_cameras(client: TestClient, site: Site) -> None:
    span = {"why": "insurer", "begin": T0 + 1, "end": T0 + 5, "hide": "people"}
    item = finished(client, client.post(f"{API}/cameras/gate/export", json=span))
    assert (item["state"], item["alert"], item["t_end"] - item["t_start"]) == ("ready", "", 4)
    assert client.post(f"{API}/exports/{item['id']}/link", json={}).status_code == 409, "a link is for one alert"
    nothing = finished(
        client, client.post(f"{API}/cameras/gate/export", json={**span, "begin": T0 + 30, "end": T0 + 32})
    )
    assert (nothing["state"], nothing["problem"]) == ("failed", "nothing is recorded in this time")
    assert client.post(f"{API}/cameras/gate/export", json={**span, "end": T0 + 400}).status_code == 422
    with site.client() as other:
        other.post("/login", json={"name": "ben", "password": PASSWORD})
        assert other.get(f"{API}/exports").json() == []
        assert other.get(item["download"]).status_code == 404
        assert other.post(f"{API}/cameras/gate/export", json=span).status_code == 404


def test_a_link_shows_one_clip_to_a_stranger_until_it_ends(client: TestClient, site: Site, clock: ManualClock) -> None:
    item = finished(client, client.post(f"{API}/alerts/a1/export", json={"why": "neighbour"}))
    made = client.post(f"{API}/exports/{item['id']}/link", json={"hours": 2})
    path = made.json()["url"].removeprefix("http://127.0.0.1:8080")
    assert path.startswith("/shared/")
    with site.client() as stranger:
        page = stranger.get(path)
        assert page.status_code == 200
        assert "neighbour" in page.text
        clip = stranger.get(f"{path}/clip.mp4", headers={"Range": "bytes=4-7"})
        assert (clip.status_code, clip.content) == (206, b"ftyp")
        assert stranger.get(item["download"]).status_code == 401
        assert stranger.get(f"{path}x").status_code == 404
        assert client.get(f"{API}/exports/{item['id']}").json()["opened"] == 1
        assert logged(site)[0] == ("whoever has the link", "opened a link", "gate")
        clock.advance(2 * 3600 + 1)
        assert stranger.get(f"{path}/clip.mp4").status_code == 404, "it has ended"
        again = client.post(f"{API}/exports/{item['id']}/link", json={}).json()["url"]
        path = again.removeprefix("http://127.0.0.1:8080")
        assert stranger.get(path).status_code == 200
        assert client.delete(f"{API}/exports/{item['id']}/link").json()["link_until"] is None
        assert stranger.get(path).status_code == 404, "it was revoked"
        for _ in range(OPENINGS_A_MINUTE):
            answer = stranger.get("/shared/guess")
        assert answer.status_code == 429


def test_files_go_after_a_day_and_the_row_says_who_took_them(
    client: TestClient, site: Site, clock: ManualClock
) -> None:
    kept = finished(client, client.post(f"{API}/alerts/a1/export", json={"why": "police"}))
    client.post(f"{API}/exports/{kept['id']}/link", json={"hours": 100})
    gone = finished(client, client.post(f"{API}/alerts/a1/export", json={"why": "police"}))
    clock.advance(KEPT_S + 1)
    assert delete_old_exports(site.db, site.root, 1e9) == 1
    states = {each["id"]: each["state"] for each in client.get(f"{API}/exports").json()}
    assert states == {kept["id"]: "ready", gone["id"]: "gone"}
    assert client.delete(f"{API}/exports/{kept['id']}").json()["state"] == "gone"
    assert not list((site.root / "exports").iterdir())
    delete_old_exports(site.db, site.root, 1.0)
    assert client.get(f"{API}/exports").json() == []


def test_an_export_that_cannot_be_made_says_so_and_a_restart_leaves_none_waiting(
    client: TestClient, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise StoreError("the database cannot be read: disk I/O error")

    monkeypatch.setattr(BoxStore, "span", broken)
    item = finished(client, client.post(f"{API}/alerts/a1/export", json={"why": "case 7"}))
    assert (item["state"], item["problem"]) == ("failed", "the database cannot be read: disk I/O error")
    site.db.execute("UPDATE export SET state = 'making'")
    with site.client() as restarted:
        restarted.post("/login", json={"name": "anna", "password": PASSWORD})
        item = restarted.get(f"{API}/exports/{item['id']}").json()
    assert item["state"] == "failed"
    assert "order it again" in item["problem"]


def test_an_export_that_failed_says_so_once_the_disk_takes_it(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell, refused = ExportStore.finished, []

    def full(self: ExportStore, export: str, **what: Any) -> bool:
        if len(refused) < 2:
            refused.append(export)
            raise StoreError("database or disk is full")
        return tell(self, export, **what)

    monkeypatch.setattr(ExportStore, "finished", full)
    monkeypatch.setattr(exports, "RETRY_S", 0.01)
    item = finished(client, client.post(f"{API}/alerts/a1/export", json={"why": "case 7"}))
    assert (item["state"], item["problem"], len(refused)) == ("failed", "database or disk is full", 2)


def test_a_long_alert_s_objects_stay_visible_in_all_of_it(
    client: TestClient, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[list[str]] = []
    site.raise_alert("long", T0 - 3000, seconds=3590)
    site.raise_alert("over", T0 - 3500, seconds=100)
    look = ClipExporter._alerts_of

    def seen(self: ClipExporter, row: Any) -> Any:
        alerts = look(self, row)
        found.append([each.id for each in alerts])
        return alerts

    monkeypatch.setattr(ClipExporter, "_alerts_of", seen)
    span = {"why": "case 7", "begin": T0 + 1, "end": T0 + 5}
    finished(client, client.post(f"{API}/cameras/gate/export", json=span))
    assert found == [["a1", "long"]]


def test_an_export_that_was_deleted_while_it_was_made_stays_deleted(
    client: TestClient, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its span may have been erased meanwhile, and the receipt says that it went."""
    begins, goes_on = threading.Event(), threading.Event()
    cut = ClipExporter._make_clip

    def slow(self: ClipExporter, *values: Any) -> Any:
        begins.set()
        assert goes_on.wait(PATIENCE)
        return cut(self, *values)

    monkeypatch.setattr(ClipExporter, "_make_clip", slow)
    item = client.post(f"{API}/alerts/a1/export", json={"why": "case 7"}).json()
    assert begins.wait(PATIENCE)
    assert client.delete(f"{API}/exports/{item['id']}").json()["state"] == "gone"
    goes_on.set()
    monkeypatch.undo()
    finished(client, client.post(f"{API}/alerts/a1/export", json={"why": "the next one, made after it"}))
    assert client.get(f"{API}/exports/{item['id']}").json()["state"] == "gone"
    assert not (site.root / "exports" / item["id"]).exists()


def test_no_file_is_left_of_an_export_that_failed_or_that_a_kill_cut_off(
    client: TestClient, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise DiskWriteError("export.zip cannot be written: No space left on device")

    monkeypatch.setattr(exports, "_pack", full)
    failed = finished(client, client.post(f"{API}/alerts/a1/export", json={"why": "case 7"}))
    assert failed["state"] == "failed"
    assert not (site.root / "exports" / failed["id"]).exists()
    kept = site.root / "exports" / failed["id"]
    kept.mkdir(parents=True)
    (kept / "clip.mp4").write_bytes(b"cut off by a kill")
    site.db.execute("UPDATE export SET state = 'making'")
    with site.client():
        assert not kept.exists()


def test_the_page_says_how_many_people_the_detector_missed(client: TestClient, site: Site) -> None:
    bundles = model_bundles()
    rows = [
        line.split("|")[1:-1] for line in (MODELS / "vedette-nano.md").read_text().splitlines()
        if line.startswith("| ") and line.count(" / ") == 8 and ", " in line.split("|")[1]
    ]  # fmt: skip
    people = [int(row[0].split(", ")[1].rstrip(") ")) for row in rows]
    assert sum(people) == 1124
    for column, name in enumerate(("yolox-nano", "vedette-nano", "vedette-nano-int8", "deimv2-femto"), 1):
        found = sum(n * float(row[column].split(" / ")[2]) for n, row in zip(people, rows, strict=True)) / sum(people)
        assert bundles[name].recall["cameras_person"] == pytest.approx(found, abs=0.002)  # the card has two decimals
    assert "is not measured" in client.get("/alerts/a1").text
    digest = bundles["vedette-nano"].sha256[:8]
    site.db.execute("UPDATE camera SET model = ? WHERE name = 'gate'", (f"vedette-nano@{digest}",))
    assert "missed 47 % of the people" in client.get("/alerts/a1").text
    assert "missed 47 % of the people" in client.get("/cameras/gate/timeline").text


def test_a_look_is_logged_once_for_each_person_and_camera(client: TestClient, site: Site, clock: ManualClock) -> None:
    for _ in range(3):
        client.get(f"{API}/cameras/gate/frame?t={T0 + 2}")
        client.get(f"{API}/alerts/a1/evidence/still.jpg")
        client.get(f"{API}/alerts/a1/evidence/boxes.json")
        client.get(f"{API}/alerts/a1/evidence/clip.mp4", headers={"Range": "bytes=0-9"})
    client.get(f"{API}/cameras/gate/recording.mp4?from={T0 + 1}&to={T0 + 3}&download=true")
    client.get(f"{API}/cameras/gate/picture")
    seen = [(what, camera) for _, what, camera in logged(site)[::-1] if what != "signed in"]
    assert seen == [
        ("watched the recording", "gate"), ("saw pictures of alerts", "gate"), ("watched a clip", "gate"),
        ("downloaded a recording", "gate"), ("watched live", "gate"),
    ]  # fmt: skip
    clock.advance(601)
    client.get(f"{API}/cameras/gate/frame?t={T0 + 2}")
    assert logged(site)[0] == ("anna", "watched the recording", "gate")


def test_the_log_is_filtered_exported_and_deleted_by_its_own_rule(
    client: TestClient, site: Site, clock: ManualClock
) -> None:
    AccessLog(site.db).write("=1+1", "192.0.2.1", "was refused: wrong password")
    clock.advance(100 * 86400)
    client.post("/login", json={"name": "anna", "password": PASSWORD})
    client.get(f"{API}/cameras/gate/frame?t={T0 + 2}")
    of_gate = client.get(f"{API}/access-log?camera=gate").json()
    assert [(row["who"], row["what"]) for row in of_gate] == [("anna", "watched the recording")]
    assert client.get(f"{API}/access-log?who=ben").json() == []
    assert len(client.get(f"{API}/access-log?to={T0 + 86400}").json()) == 2
    table = client.get(f"{API}/access-log.csv").text.splitlines()
    assert table[0] == "t,who,address,what,about,camera"
    assert any(",'=1+1," in line for line in table), "no spreadsheet takes it for a formula"
    page = client.get("/access?camera=gate", headers={"Accept-Language": "de"}).text
    assert "sah Aufnahmen von" in page
    Retention(site.db, site.root, StorageConfig(dir=site.root, access_log_days=30)).run_once()
    assert {row["who"] for row in client.get(f"{API}/access-log").json()} == {"anna"}

"""A span of a camera is erased: nothing of it is left in files or rows, and the receipt names what is elsewhere."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from appliance import wire
from appliance.base.clock import ManualClock
from appliance.store.audit import AuditRow, AuditStore
from appliance.store.database import Database
from appliance.store.erasure import SpanEraser
from appliance.store.users import AccessLog, UserStore
from appliance.types.accounts import UserRow
from tests.support.dashboard_site import PASSWORD, Site, password_hash

T0 = 1_700_000_040.0
API = "/api/v1"
PATIENCE_S = 60.0


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Two minutes of both cameras; `gone` is settled and in the span, `lasts` is open in it, `later` comes after it."""
    made = Site(tmp_path, ManualClock(T0 + 600))
    for name, role in (("anna", "admin"), ("rita", "reviewer")):
        UserStore(made.db).add(UserRow(name=name, role=role, cameras=None, password=password_hash()))  # type: ignore[arg-type]
    for camera in ("gate", "dock"):
        made.live(camera, T0)
        for n in (0, 1, 2, 10):
            made.record(camera, T0 + 8 * n)
    gone = made.raise_alert("gone", T0 + 3)
    made.cut(gone)
    made.db.execute("UPDATE escalation SET bytes_sent = 9000, sent_t = ? WHERE id = 'e-gone'", (T0 + 5,))
    link = wire.ArchiveLink(kind="verdict", key="edge/depot-7/2023/11/14/e-gone.0.json")
    verdict = wire.Verdict(
        escalation="e-gone", site="depot-7", alert="gone", decision="confirmed", reason="A man in a red coat.",
        confidence=0.9, engine="openai", model="m", prompt_version="p", seconds=1.0, judged_t=T0 + 9, archive=(link,),
    )  # fmt: skip
    assert made.alerts.apply_verdict(verdict, T0 + 10)
    made.raise_alert("lasts", T0 + 12, seconds=None, ask=False)
    made.cut(made.raise_alert("later", T0 + 82, ask=False))
    made.cut(made.raise_alert("other", T0 + 3, camera="dock", ask=False))
    yield made
    made.close()


@pytest.fixture
def client(site: Site) -> Iterator[TestClient]:
    with site.client() as made:
        made.post("/login", json={"name": "anna", "password": PASSWORD})
        yield made


def take_copies(client: TestClient, site: Site) -> None:
    """Export the alert and download that, download the recording, and leave a backup in the storage folder."""
    item = client.post(f"{API}/alerts/gone/export", json={"why": "police"}).json()
    ends = time.monotonic() + PATIENCE_S
    while item["state"] == "making":
        assert time.monotonic() < ends, "it is never done"
        item = client.get(f"{API}/exports/{item['id']}").json()
    client.get(item["download"])
    client.get(f"{API}/cameras/gate/recording.mp4?from={T0 + 1}&to={T0 + 3}&download=true")
    backup = site.root / "backups" / "depot-7-20231114T230000Z.vedette.zip"
    backup.parent.mkdir()
    backup.write_bytes(b"PK")


def rows(site: Site, table: str, where: str = "1") -> int:
    found = site.db.row(f"SELECT count(*) FROM {table} WHERE {where}")
    assert found is not None
    return int(found[0])


def test_nothing_of_a_span_is_left_and_the_receipt_names_what_is_elsewhere(client: TestClient, site: Site) -> None:
    span = {"begin": T0, "end": T0 + 23.0}
    assert client.post(f"{API}/cameras/gate/erase", json={**span, "typed": "dock"}).status_code == 422
    with site.client() as rita:
        rita.post("/login", json={"name": "rita", "password": PASSWORD})
        assert rita.post(f"{API}/cameras/gate/erase", json={**span, "typed": "gate"}).status_code == 403
    assert rows(site, "segment", "camera = 'gate'") == 4, "nothing was erased so far"
    take_copies(client, site)
    receipt = client.post(f"{API}/cameras/gate/erase", json={**span, "typed": " gate "}).json()
    assert (receipt["segments"], receipt["alerts"], receipt["exports"], receipt["who"]) == (3, ["gone"], 1, "anna")
    left = {(each["kind"], each["what"]) for each in receipt["unreached"]}
    assert ("archive", "edge/depot-7/2023/11/14/e-gone.0.json") in left
    assert ("open_alert", "lasts") in left
    assert {kind for kind, _ in left} == {"archive", "cloud", "open_alert", "export", "download", "backup"}
    files = {path.name for path in site.root.rglob("*") if path.is_file() and "gone" in str(path)}
    assert files == set()
    assert len(list((site.root / "segments" / "gate").rglob("*.mp4"))) == 1
    assert not list((site.root / "exports").iterdir())
    assert not list((site.root / "cuts").iterdir())
    assert client.get(f"{API}/alerts/gone").status_code == 404
    assert client.get(f"{API}/alerts?text=coat").json()["alerts"] == []
    assert rows(site, "boxes", f"camera = 'gate' AND t < {T0 + 23}") == 0
    assert rows(site, "verdict") == rows(site, "media") == 0
    assert client.get(f"{API}/erasures").json() == [{**receipt, "id": 1}]
    row = AccessLog(site.db).newest()[0]
    assert (row.who, row.what, row.camera) == ("anna", "erased a span", "gate")
    page = client.get("/access").text
    assert "edge/depot-7/2023/11/14/e-gone.0.json" in page


def test_the_receipt_names_what_was_archived_with_a_request_for_more_evidence(client: TestClient, site: Site) -> None:
    link = wire.ArchiveLink(kind="crop", media="m-1", key="edge/depot-7/media/first-crop.jpg")
    answer = wire.Verdict(
        escalation="e-gone", site="depot-7", alert="gone", decision="unsure", reason="Too small.", need="frame",
        engine="openai", model="m", prompt_version="p", seconds=1.0, judged_t=T0 + 7, archive=(link,),
    )  # fmt: skip
    site.db.execute(
        "INSERT OR REPLACE INTO step (escalation, n, answer) VALUES ('e-gone', 0, ?)", (answer.to_json().decode(),)
    )
    receipt = client.post(f"{API}/cameras/gate/erase", json={"begin": T0, "end": T0 + 23.0, "typed": "gate"}).json()
    keys = [each["what"] for each in receipt["unreached"] if each["kind"] == "archive"]
    assert keys == ["edge/depot-7/media/first-crop.jpg", "edge/depot-7/2023/11/14/e-gone.0.json"]


def test_the_receipt_names_what_went_to_an_mqtt_broker_off_the_site(client: TestClient, site: Site) -> None:
    broker = AuditRow(t=T0 + 4, camera="gate", escalation="", kind="notice", bytes=9, sha256="", why="")
    for t, about in ((4, "alert gone"), (6, "alert gone"), (7, "evidence/gone/still.jpg"), (8, "3 states of zones"),
                     (9, "alert later")):  # fmt: skip
        why = f"published to the MQTT broker home.example:8883; {about}"
        AuditStore(site.db).write(replace(broker, t=T0 + t, why=why))
    receipt = client.post(f"{API}/cameras/gate/erase", json={"begin": T0, "end": T0 + 23.0, "typed": "gate"}).json()
    assert [(each["what"], each["t"]) for each in receipt["unreached"] if each["kind"] == "message"] == [
        ("MQTT broker home.example:8883, alert gone", T0 + 6),
        ("MQTT broker home.example:8883, still of alert gone", T0 + 7),
    ]


def test_what_is_beside_the_span_stays_and_the_database_is_whole(client: TestClient, site: Site) -> None:
    client.post(f"{API}/cameras/gate/erase", json={"begin": T0, "end": T0 + 23.0, "typed": "gate"})
    for alert in ("later", "other", "lasts"):
        assert client.get(f"{API}/alerts/{alert}").status_code == 200
    assert client.get(f"{API}/alerts/later/evidence/clip.mp4").status_code == 200
    assert rows(site, "segment", "camera = 'dock'") == 4
    with site.db.read() as connection:
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    with site.db.transaction() as connection:
        connection.execute("INSERT INTO alert_words (alert_words) VALUES ('integrity-check')")
    deleted = site.db.rows("SELECT class, reason, files FROM deleted ORDER BY class")
    assert [tuple(row) for row in deleted] == [("continuous", "person", 3), ("evidence", "person", 3)]


def test_an_alert_whose_clip_is_being_made_stays_and_is_named(client: TestClient, site: Site) -> None:
    """Its maker would else leave a clip that no row names, after the receipt says that all is gone."""
    site.raise_alert("cut", T0 + 15, ask=False)
    receipt = client.post(f"{API}/cameras/gate/erase", json={"begin": T0, "end": T0 + 23.0, "typed": "gate"}).json()
    assert receipt["alerts"] == ["gone"]
    assert {"lasts", "cut"} == {each["what"] for each in receipt["unreached"] if each["kind"] == "open_alert"}


def test_an_alert_whose_files_the_disk_does_not_give_up_stays_and_is_named(
    client: TestClient, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    span = {"begin": T0, "end": T0 + 23.0, "typed": "gate"}

    def refuse(folder: Path) -> None:
        raise OSError(errno.EROFS, "read-only", str(folder))

    with monkeypatch.context() as broken:
        broken.setattr("shutil.rmtree", refuse)
        receipt = client.post(f"{API}/cameras/gate/erase", json=span).json()
    assert (receipt["alerts"], receipt["evidence_files"]) == ([], 0)
    assert ("segment", "evidence/gone") in {(each["kind"], each["what"]) for each in receipt["unreached"]}
    assert client.get(f"{API}/alerts/gone").status_code == 200
    assert client.post(f"{API}/cameras/gate/erase", json=span).json()["alerts"] == ["gone"]
    assert not (site.root / "evidence/gone").exists()


def test_a_long_span_takes_time_in_proportion_and_holds_no_writer_up(tmp_path: Path) -> None:
    """A day of one camera is 21,600 segments."""

    def erased(count: int) -> float:
        folder = tmp_path / f"{count}"
        folder.mkdir()
        db = Database(folder / "vedette.db", ManualClock(T0 + 1e6))
        with db.transaction() as connection:
            connection.executemany(
                "INSERT INTO segment VALUES (?, 'gate', ?, ?, 9, 40, 'h264', 1280, 720, 1, 'continuous')",
                [(f"segments/gate/d/{n}.mp4", T0 + 4 * n, T0 + 4 * n + 4) for n in range(count)],
            )
            connection.executemany(
                "INSERT INTO boxes VALUES ('gate', ?, 'r', ?, ?, 1, '[]')", [(T0 + n, n, n) for n in range(2 * count)]
            )
        began = time.thread_time()
        assert SpanEraser(db, folder).erase("gate", T0, T0 + 4 * count, "anna", ()).frames == 2 * count
        took = time.thread_time() - began
        assert db.row("SELECT (SELECT count(*) FROM segment) + (SELECT count(*) FROM boxes)")[0] == 0
        db.close()
        return took

    small = min(erased(1500), erased(1501))
    assert erased(15_000) < 20 * small

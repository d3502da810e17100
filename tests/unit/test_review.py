"""Finding alerts, reviewing many at once, notes: the API over a real store."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from fastapi.testclient import TestClient

from appliance.base.clock import ManualClock, day_bounds, local_day
from appliance.dashboard.app import create_app
from appliance.store import database
from appliance.store.alert_rows import write_incident
from appliance.store.alert_search import AlertQuery, select_alerts
from appliance.store.deletions import newest_deletions
from appliance.store.health_events import HealthEventStore
from appliance.store.retention import Retention
from appliance.store.reviews import ReviewStore
from appliance.types import Event, HealthEvent
from tests.support.dashboard_site import Site

T0 = 1_700_000_000.0
DAY = 86400.0


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, ManualClock(T0 + 100))
    yield made
    made.close()


@pytest.fixture
def client(site: Site) -> Iterator[TestClient]:
    app = create_app(site.stored, site.config.for_dashboard(), probes=site.probes())
    with TestClient(app, base_url="http://127.0.0.1:8080", raise_server_exceptions=False) as made:
        yield made


def ids(client: TestClient, query: str) -> list[str]:
    answer = client.get(f"/api/v1/alerts?{query}")
    assert answer.status_code == 200, answer.text
    return [alert["id"] for alert in answer.json()["alerts"]]


def event(rule: str, label: str, *, zone: str = "", line: str = "", track: int = 5) -> Event:
    kind = "line" if line else "enter"
    return Event(
        camera="gate", rule=rule, kind=kind, track=track, label=label, t=T0 + 1, score=0.8,  # type: ignore[arg-type]
        box=(0.3, 0.4, 0.4, 0.8), zone=zone, line=line,
    )  # fmt: skip


class TestFinding:
    def test_by_zone_line_label_and_rule_of_any_event(self, site: Site, client: TestClient) -> None:
        site.raise_alert("yard", T0)
        crossed = [event("intruder", "person", zone="yard"), event("wrong-way", "car", line="door", track=6)]
        site.raise_alert("both", T0 + 5, events=crossed)
        assert ids(client, "zone=yard") == ["both", "yard"]
        assert ids(client, "zone=door") == ids(client, "label=car") == ids(client, "rule=wrong-way") == ["both"]
        assert ids(client, "zone=door&label=car&rule=intruder") == ["both"]
        assert ids(client, "zone=door&label=dog") == []

    def test_by_days_of_the_appliance_s_calendar_moments_and_seconds(self, site: Site, client: TestClient) -> None:
        begin, end = day_bounds(local_day(T0))
        for name, t in (("before", begin - 1), ("first", begin), ("last", end - 1), ("after", end)):
            site.raise_alert(name, t)
        day = local_day(T0)
        assert ids(client, f"from={day}&to={day}") == ["last", "first"]
        assert ids(client, f"from={end - 1!r}") == ["after", "last"]
        assert ids(client, "to=2023-01-01T00:00Z") == []
        for wrong in ("yesterday", "2023-13-01", "nan", "-5", "9" * 40):
            answer = client.get(f"/api/v1/alerts?from={wrong}")
            assert answer.status_code in {200, 422}, wrong
            assert answer.status_code == 422 or wrong.startswith("9")
        assert "`from` is a day" in client.get("/api/v1/alerts?from=yesterday").json()["detail"]

    def test_by_beginnings_of_words_of_verdicts_and_notes(self, site: Site, client: TestClient) -> None:
        site.answer(site.raise_alert("judged", T0), reason="A courier with a Größe XL parcel.")
        site.raise_alert("noted", T0 + 5)
        client.post("/api/v1/alerts/noted/note", json={"note": "the neighbour's parcel-box"})
        assert ids(client, "text=PARC") == ["noted", "judged"]
        assert ids(client, "text=grosse courier") == [], "sharp s is no double s"
        assert ids(client, "text=größe courier") == ids(client, "text=grö") == ["judged"]
        assert ids(client, "text=arcel") == [], "the beginning of a word"
        for odd in ('"', "parcel*", "a OR b", "note:parcel", "(", "NEAR(", "'", "-", "%"):
            assert client.get("/api/v1/alerts", params={"text": odd}).status_code == 200, odd
        client.post("/api/v1/alerts/noted/note", json={"note": ""})
        assert ids(client, "text=parc") == ["judged"]

    def test_few_and_many_are_found_alike(
        self, site: Site, client: TestClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for n in range(7):
            site.raise_alert(
                f"a{n}", T0 + n, events=[event("intruder", "car" if n % 3 else "dog", zone="yard", track=n)]
            )
        ReviewStore(site.db).review(["a3"], "reviewed", T0)
        wanted = (
            "label=dog",
            "zone=yard&label=dog",
            "label=dog&review=reviewed",
            "label=car&rule=intruder&camera=gate",
        )
        few = [ids(client, query) for query in wanted]
        assert few[0] == ["a6", "a3", "a0"]
        monkeypatch.setattr("appliance.store.alert_search.FEW", 1)
        assert [ids(client, query) for query in wanted] == few

    def test_every_page_of_a_filter_keeps_the_filter(self, site: Site, client: TestClient) -> None:
        for n in range(5):
            site.raise_alert(
                f"a{n}", T0 + n, events=[event("intruder", "dog" if n % 2 else "car", zone="yard", track=n)]
            )
        query, seen = "limit=1&label=car&from=1690000000", []
        while query:
            page = client.get(f"/api/v1/alerts?{query}").json()
            seen += [each["id"] for each in page["alerts"]]
            query = page["next"]
            assert query is None or parse_qs(query)["label"] == ["car"]
        assert seen == ["a4", "a2", "a0"]

    def test_the_page_offers_what_the_site_has_and_what_is_chosen(self, client: TestClient) -> None:
        page = client.get("/?label=unicorn&text=%22%3Cb%3E&from=2023-11-14").text
        for option in ("yard", "door", "intruder", "wrong-way", "person", "unicorn"):
            assert f'<option value="{option}"' in page
        assert 'value="unicorn" selected' in page
        assert "&#34;&lt;b&gt;" in page
        assert 'name="from" value="2023-11-14"' in page
        assert "<details open>" in page

    def test_health_events_of_other_days_are_not_in_a_day(self, site: Site, client: TestClient) -> None:
        events = HealthEventStore(site.db)
        begin, end = day_bounds(local_day(T0))
        for name, t in (("before", begin - 1), ("within", begin), ("after", end)):
            fault = HealthEvent(camera="gate", id=name, kind="frozen", t=t + 7, t_start=t, t_end=t + 9, reason="still")
            events.put(fault)
        site.raise_alert("alert-within", T0)
        day = local_day(T0)
        shown = client.get(f"/?from={day}&to={day}").text
        assert [name for name in ("h-before", "h-within", "h-after") if f'id="{name}"' in shown] == ["h-within"]
        assert 'id="a-alert-within"' in shown
        assert 'id="h-within"' not in client.get(f"/?from={day}&label=person").text

    def test_no_filter_reads_the_table_from_end_to_end(self, site: Site) -> None:
        site.raise_alert("a", T0)
        for wanted, index in (
            (AlertQuery(), "alert_time"), (AlertQuery(verdict="unsure"), "alert_verdict"),
            (AlertQuery(review="reviewed"), "alert_review"), (AlertQuery(severity="info"), "alert_severity"),
            (AlertQuery(label="dog"), "sqlite_autoindex_alert_1"), (AlertQuery(folded=True), "alert_incident"),
        ):  # fmt: skip
            with site.db.read() as connection:
                found = select_alerts(connection, wanted)
                plan = connection.execute(
                    f"EXPLAIN QUERY PLAN SELECT alert.id FROM {found.source} WHERE {' AND '.join(found.wheres)} "
                    "ORDER BY t_start DESC, id DESC LIMIT 50",
                    found.values,
                ).fetchall()
            steps = [row["detail"] for row in plan]
            assert any(index in step for step in steps), (wanted, steps)
            assert not any(step == "SCAN alert" for step in steps), (wanted, steps)


class TestManyAtOnce:
    def test_reviews_all_and_tells_what_it_did(self, site: Site, client: TestClient) -> None:
        for n in range(3):
            site.raise_alert(f"a{n}", T0 + n)
        rev = site.db.rev()
        asked = {"ids": ["a0", "a2", "nobody", "a0"], "review": "false_alarm"}
        answer = client.post("/api/v1/alerts/review", json=asked).json()
        assert [each["id"] for each in answer["alerts"]] == ["a0", "a2"]
        assert answer["missing"] == ["nobody"]
        assert ids(client, "review=false_alarm") == ["a2", "a0"]
        assert [row.alert.id for row in site.alerts.changed_since(rev)] == ["a0", "a2"], "other browsers are told"

    def test_each_alert_has_a_change_of_its_own(self, site: Site, client: TestClient) -> None:
        for n in range(2):
            site.raise_alert(f"a{n}", T0 + n)
        for review in ("reviewed", "reviewed", "false_alarm"):
            client.post("/api/v1/alerts/review", json={"ids": ["a0", "a1"], "review": review})
        for name in ("a0", "a1"):
            changes = client.get(f"/api/v1/alerts/{name}").json()["changes"]
            assert [(each["what"], each["old"], each["new"]) for each in changes] == [
                ("review", "reviewed", "false_alarm"), ("review", "", "reviewed"),
            ]  # fmt: skip
            assert "What people did with it" in client.get(f"/alerts/{name}").text

    def test_an_incident_is_one_card_one_count_and_one_review(self, site: Site, client: TestClient) -> None:
        """What stands otherwise keeps its review, and a filter for one camera shows that camera's part."""
        for name, camera in (("a", "gate"), ("b", "dock"), ("c", "gate")):
            site.raise_alert(name, T0 + ord(name), camera=camera, ask=False)
            with site.db.transaction() as connection:
                write_incident(connection, name, "a")
        shown = client.get("/").text
        assert [name for name in "abc" if f'id="a-{name}"' in shown] == ["a"]
        assert "1 to review" in shown
        assert 'id="a-b"' in client.get("/?camera=dock").text
        assert client.get("/fragments/alerts/b").status_code == 204
        first = client.get("/api/v1/alerts/a").json()["alert"]
        assert (first["incident"], [each["id"] for each in first["parts"]]) == ("a", ["b", "c"])
        client.post("/api/v1/alerts/c/review", json={"review": "false_alarm"})
        client.post("/api/v1/alerts/a/review", json={"review": "reviewed"})
        assert (ids(client, "review=reviewed"), ids(client, "review=false_alarm")) == (["b", "a"], ["c"])
        assert "All reviewed" in client.get("/").text
        client.post("/api/v1/alerts/delete", json={"ids": ["a"], "reason": ""})
        assert ids(client, "") == ["c"], "what stood otherwise is not deleted with it"

    @pytest.mark.parametrize("asked", [[], ["x"] * 101, ["x" * 129], [""]])
    def test_is_bounded(self, client: TestClient, asked: list[str]) -> None:
        assert client.post("/api/v1/alerts/review", json={"ids": asked, "review": None}).status_code == 422

    def test_a_hundred_ids_of_the_appliance_fit_into_one_request(self, site: Site, client: TestClient) -> None:
        names = [f"{n:032x}" for n in range(100)]
        for n, name in enumerate(names):
            site.raise_alert(name, T0 + n, ask=False)
        answer = client.post("/api/v1/alerts/review", json={"ids": names, "review": "reviewed"})
        assert len(answer.json()["alerts"]) == 100


class TestDeleting:
    def delete(self, client: TestClient, *names: str, reason: str = "a test") -> None:
        assert client.post("/api/v1/alerts/delete", json={"ids": names, "reason": reason}).json()["missing"] == []

    def test_it_is_gone_from_every_list_at_once_and_taken_back(self, site: Site, client: TestClient) -> None:
        for n in range(3):
            site.raise_alert(f"a{n}", T0 + n)
        rev = site.db.rev()
        self.delete(client, "a1")
        assert ids(client, "") == ids(client, "label=person") == ids(client, "zone=yard&review=open") == ["a2", "a0"]
        assert ids(client, "review=deleted") == ["a1"]
        assert site.alerts.counts().to_review == 2
        assert 'id="a-a1"' not in client.get("/").text + client.get("/cameras/gate").text
        assert 'href="/alerts/a0"' in client.get("/alerts/a2").text, "the next older one"
        assert [row.reviewed.deleted_t for row in site.alerts.changed_since(rev)] == [T0 + 100], (
            "other browsers are told"
        )
        assert client.get("/fragments/alerts/a1").status_code == 204
        page = client.get("/alerts/a1").text
        assert "Take back" in page
        assert "a test" in page
        assert client.post("/api/v1/alerts/restore", json={"ids": ["a1", "nobody"]}).json()["missing"] == ["nobody"]
        assert ids(client, "") == ["a2", "a1", "a0"]
        changes = client.get("/api/v1/alerts/a1").json()["changes"]
        assert [(each["what"], each["old"], each["new"]) for each in changes] == [
            ("deleted", "a test", ""), ("deleted", "", "a test"),
        ]  # fmt: skip

    def test_its_evidence_goes_after_the_grace_and_the_ledger_counts_it(self, site: Site, client: TestClient) -> None:
        site.live("gate", T0)
        site.record("gate", T0)
        for name in ("wanted", "unwanted"):
            site.cut(site.raise_alert(name, T0 + 3, seconds=2.0, ask=False))
        self.delete(client, "unwanted")
        still = site.root / "evidence" / "unwanted" / "still.jpg"
        retention = Retention(site.db, site.root, site.config.storage, free_bytes=lambda root: 10**13)
        self.advance(site, 23.9 * 3600)
        retention.run_once()
        assert still.is_file(), "it can still be taken back"
        self.advance(site, 0.2 * 3600)
        answer = client.post("/api/v1/alerts/restore", json={"ids": ["unwanted"]}).json()
        assert (answer["alerts"], answer["missing"], answer["refused"]) == ([], [], ["unwanted"])
        assert "Take back" not in client.get("/alerts/unwanted").text
        retention.run_once()
        assert not still.exists()
        assert (site.root / "evidence" / "wanted" / "still.jpg").is_file()
        with site.db.read() as connection:
            gone = [(row.what, row.files) for row in newest_deletions(connection, 9) if row.reason == "person"]
        assert gone == [("evidence", 3)]
        assert "a person deleted the alert" in client.get("/storage").text
        assert client.get("/api/v1/alerts/unwanted").json()["evidence"][0]["reason"] == "a person deleted the alert"

    def advance(self, site: Site, seconds: float) -> None:
        assert isinstance(site.clock, ManualClock)
        site.clock.advance(seconds)

    def test_what_waits_for_the_cloud_waits_with_its_evidence(self, site: Site, client: TestClient) -> None:
        site.live("gate", T0)
        site.record("gate", T0)
        site.cut(site.raise_alert("asked", T0 + 3, seconds=2.0))
        self.delete(client, "asked")
        self.advance(site, 25 * 3600)
        Retention(site.db, site.root, site.config.storage, free_bytes=lambda root: 10**13).run_once()
        assert (site.root / "evidence" / "asked" / "still.jpg").is_file()

    def test_a_second_deletion_does_not_lengthen_the_grace(self, site: Site, client: TestClient) -> None:
        site.raise_alert("a", T0)
        self.delete(client, "a", reason="")
        self.advance(site, 60)
        self.delete(client, "a", reason="again")
        alert = client.get("/api/v1/alerts/a").json()["alert"]
        assert (alert["deleted_t"], alert["deleted_why"]) == (T0 + 100, "")


class TestACrowd:
    def test_is_a_few_lines_to_open_and_not_a_page_of_forty_seven(self, site: Site, client: TestClient) -> None:
        site.live("gate", T0)
        events = [event("intruder", "person", zone="yard", track=n) for n in range(1, 48)]
        site.raise_alert("crowd", T0, tracks=tuple(range(1, 48)), events=events)
        page = client.get("/alerts/crowd").text
        assert "47 × person entered yard (intruder)" in page
        assert "39 more tracks" in page
        assert "1, 2, 3, 4, 5, 6, 7, 8 and 39 more" in page
        assert page.count('class="track ') == 47
        assert page.count('class="tick ') == 47
        outside = re.sub(r"<details.*?</details>", "", page, flags=re.DOTALL)
        assert outside.count('class="track ') == 8
        assert outside.count('data-t="1700') == 0

    def test_a_few_stand_open(self, site: Site, client: TestClient) -> None:
        site.raise_alert("few", T0, tracks=(5,), events=[event("intruder", "person", zone="yard")])
        page = client.get("/alerts/few").text
        assert 'class="fold"' not in page
        assert "person 5 entered yard (intruder)" in page


class TestNotes:
    def test_is_kept_shown_and_removed(self, site: Site, client: TestClient) -> None:
        site.raise_alert("a", T0)
        answer = client.post("/api/v1/alerts/a/note", json={"note": "  <b>postman</b>, every day "})
        assert answer.json()["note"] == "<b>postman</b>, every day"
        for path in ("/", "/alerts/a"):
            assert "&lt;b&gt;postman&lt;/b&gt;" in client.get(path).text
        assert client.post("/api/v1/alerts/a/note", json={"note": "x" * 1001}).status_code == 422
        assert client.post("/api/v1/alerts/nobody/note", json={"note": "x"}).status_code == 404

    def test_an_old_database_is_searched_too(self, tmp_path: Path) -> None:
        raw = sqlite3.connect(tmp_path / "old.db", isolation_level=None)
        raw.row_factory = sqlite3.Row
        database.migrate(raw, database.STEPS[:11])
        raw.execute(
            """INSERT INTO alert (id, camera, run, severity, rules, labels, tracks, score, t_start, created_t, rev)
               VALUES ('a', 'gate', 'r', 'alert', '[]', '[]', '[]', 0.5, 1.0, 1.0, 1)"""
        )
        raw.execute(
            "INSERT INTO event VALUES ('e', 'a', 'gate', 'r1', 'line', 1, 'dog', 0.5, 1, '', 'door', 'alert', '[]')"
        )
        raw.execute(
            """INSERT INTO escalation (id, alert, site, camera, priority, state, body, created_t)
               VALUES ('q', 'a', 's', 'gate', 'high', 'settled', '{}', 1.0)"""
        )
        raw.execute(
            """INSERT INTO verdict (escalation, alert, decision, body, applied_t)
               VALUES ('q', 'a', 'unsure', '{"reason": "a terrier"}', 1.0)"""
        )
        database.migrate(raw)
        for wanted in (
            AlertQuery(zone="door"),
            AlertQuery(label="dog"),
            AlertQuery(rule="r1"),
            AlertQuery(text="terr"),
        ):
            found = select_alerts(raw, wanted)
            sql = f"SELECT id FROM {found.source} WHERE {' AND '.join(found.wheres)}"
            assert [row["id"] for row in raw.execute(sql, found.values)] == ["a"], wanted
        raw.close()

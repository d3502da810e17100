"""Keeping an alert over HTTP: what is asked for first, where it went, and what is left after deleting."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from appliance.base.clock import ManualClock
from appliance.base.errors import PreconditionError
from appliance.config import DecisionConfig, SiteConfig
from appliance.dashboard.app import create_app
from appliance.dashboard.recording_jobs import RecordingJobs
from appliance.sandbox.sandbox import SandboxUnavailable
from appliance.scenario import scenario_loader
from appliance.scenario.scenario_exporter import KeepOptions, ScenarioExporter
from appliance.store.reviews import ReviewStore
from tests.support.dashboard_site import Site
from tests.support.waiting import until

T0 = 1_700_000_000.0
KEEP = "/api/v1/alerts/walker/keep"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, ManualClock(T0 + 100))
    made.live("gate", T0)
    made.record("gate", T0)
    made.cut(made.raise_alert("walker", T0 + 3, seconds=2.0))
    yield made
    made.close()


class HeldSandbox:
    """A job that is at work until it is cancelled."""

    def __init__(self, *_: object, **__: object) -> None:
        self._over = threading.Event()

    def call(self, *_: object, **__: object) -> None:
        self._over.wait(20)
        raise SandboxUnavailable("it was ended")

    def close(self) -> None:
        self._over.set()


@pytest.fixture
def client(site: Site) -> Iterator[TestClient]:
    app = create_app(site.stored, site.config.for_dashboard())
    app.state.parts[RecordingJobs] = jobs = RecordingJobs(site.root, site.clock, make=HeldSandbox)  # type: ignore[arg-type]
    yield from served(app)
    jobs.close()


@pytest.fixture
def running(site: Site) -> Iterator[TestClient]:
    """With the real sandbox."""
    yield from served(create_app(site.stored, site.config.for_dashboard()))


def served(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, base_url="http://127.0.0.1:8080", raise_server_exceptions=False) as made:
        yield made


def problem(client: TestClient, url: str, wish: object) -> tuple[int, str]:
    answer = client.post(url, json=wish)
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, answer.json()["detail"]


def test_without_a_review_it_says_what_to_do_first(site: Site, client: TestClient) -> None:
    status, told = problem(client, KEEP, {})
    assert status == 409
    assert told.startswith("Nobody has reviewed this alert")
    site.raise_alert("lasting", T0 + 20, seconds=None)
    ReviewStore(site.db).review(["lasting"], "reviewed", T0 + 30)
    assert problem(client, "/api/v1/alerts/lasting/keep", {})[0] == 409
    assert problem(client, "/api/v1/alerts/nobody/keep", {})[0] == 404


def test_a_kept_alert_says_where_it_went_and_is_listed_and_deleted(site: Site, client: TestClient) -> None:
    ReviewStore(site.db).review(["walker"], "reviewed", T0 + 50)
    answer = client.post(KEEP, json={"name": "walk", "note": "by day", "complete": True})
    assert answer.status_code == 201
    kept = answer.json()
    folder = site.root / "scenarios" / "walk"
    assert kept["folder"] == str(folder)
    assert (kept["truth"], kept["complete"], kept["expect"], kept["never"]) == ("right", True, 1, 0)
    assert kept["bytes"] == sum(path.stat().st_size for path in folder.iterdir())
    assert scenario_loader.load_scenario(folder / "walk.scenario.yaml").scenario.note == "by day"
    clip = client.get(kept["clip"])
    assert (clip.headers["content-type"], len(clip.content)) == ("video/mp4", (folder / "walk.mp4").stat().st_size)
    assert client.get("/api/v1/scenarios").json()["scenarios"] == [kept]
    assert "Kept as" in client.get("/alerts/walker", headers={"accept": "text/html"}).text
    left = client.request("DELETE", "/api/v1/scenarios/walk", json={})
    assert (left.status_code, left.json()["scenarios"]) == (200, [])
    assert not folder.exists()
    assert client.request("DELETE", "/api/v1/scenarios/walk", json={}).status_code == 404
    assert client.get(kept["clip"]).status_code == 404


def test_what_is_kept_is_run_at_once_and_the_pages_say_what_came_of_it(site: Site, running: TestClient) -> None:
    """The footage of this site is coloured pictures, so the person of its alert does not come again."""
    ReviewStore(site.db).review(["walker"], "reviewed", T0 + 50)
    assert running.post(KEEP, json={"name": "walk"}).json()["proof"] == ""

    def proof() -> str:
        proved: str = running.get("/api/v1/scenarios").json()["scenarios"][0]["proof"]
        return proved

    until(proof, 60, every_s=0.2)
    assert proof() == "failed"
    for page in ("/alerts/walker", "/scenarios"):
        shown = running.get(page, headers={"accept": "text/html"}).text
        assert "Run on its clip with the settings it was kept with: it fails." in shown
        assert "missed at" in shown


def test_where_another_job_is_at_work_it_says_that_it_was_not_run(site: Site, client: TestClient) -> None:
    ReviewStore(site.db).review(["walker"], "reviewed", T0 + 50)
    client.post(KEEP, json={"name": "walk"})
    assert "It is being run on its clip now." in client.get("/alerts/walker", headers={"accept": "text/html"}).text
    client.post(KEEP, json={"name": "again"})
    found = {each["name"]: each for each in client.get("/api/v1/scenarios").json()["scenarios"]}
    assert (found["walk"]["proof"], found["again"]["proof"]) == ("", "not run")
    assert "Another job is at work" in found["again"]["proof_text"]
    assert "It could not be run yet:" in client.get("/scenarios", headers={"accept": "text/html"}).text


def renamed(site: Site) -> SiteConfig:
    """The site with its zone `yard` under another name."""
    data = site.config.model_dump(mode="json")
    camera = data["cameras"]["gate"]
    camera["zones"]["court"] = camera["zones"].pop("yard")
    for rule in (each for each in camera["rules"] if "zone" in each):
        rule["zone"] = "court"
    return SiteConfig.model_validate({"cameras": {"gate": camera}})


def test_a_renamed_zone_is_no_obstacle_and_both_settings_are_run_from_the_page(site: Site) -> None:
    """The scenario has the zones and rules of that time; today's are run on it under the names of then."""
    ReviewStore(site.db).review(["walker"], "reviewed", T0 + 50)
    today = renamed(site)
    sections = today.for_decisions(), site.config.storage.disk_free_min_mb, site.clock
    with pytest.raises(PreconditionError, match="watches something else today"):
        ScenarioExporter(site.root, *sections).keep("walker", KeepOptions(name="walk"))
    times: list[float] = []

    def settings_at(t: float) -> DecisionConfig:
        times.append(t)
        return site.config.for_decisions()

    kept = ScenarioExporter(site.root, *sections, settings_at=settings_at).keep("walker", KeepOptions(name="walk"))
    plan = scenario_loader.load_scenario(kept.folder / "walk.scenario.yaml")
    assert (times, list(plan.config.cameras["gate"].zones)) == ([T0 + 3], ["yard"])
    app = create_app(site.stored, today.for_dashboard())
    with TestClient(app, base_url="http://127.0.0.1:8080") as client:
        assert client.get("/api/v1/scenarios/run").json()["state"] == ""
        assert client.post("/api/v1/scenarios/run", json={}).status_code == 202
        until(lambda: client.get("/api/v1/scenarios/run").json()["state"] == "done", 90, every_s=0.2)
        run = client.get("/api/v1/scenarios/run").json()
        (found,) = run["results"]
        assert (found["name"], found["then"], found["now"]) == ("walk", "failed", "failed"), found
        assert found["then_text"] == found["now_text"]
        assert "missed at" in found["now_text"], "nobody walks in these coloured pictures; no word of an unknown zone"
        shown = client.get("/scenarios", headers={"accept": "text/html"}).text
        assert "With the settings in force" in shown


def test_a_run_is_cancelled_and_one_without_scenarios_refused(site: Site, client: TestClient) -> None:
    assert problem(client, "/api/v1/scenarios/run", {})[0] == 409
    ReviewStore(site.db).review(["walker"], "reviewed", T0 + 50)
    ScenarioExporter(site.root, site.config.for_decisions(), site.config.storage.disk_free_min_mb, site.clock).keep(
        "walker", KeepOptions(name="walk")
    )
    assert client.post("/api/v1/scenarios/run", json={}).json()["state"] == "running"
    assert "Cancel" in client.get("/scenarios", headers={"accept": "text/html"}).text
    assert problem(client, "/api/v1/scenarios/run", {})[0] == 409
    assert client.post("/api/v1/scenarios/run/cancel", json={}).json()["state"] == "cancelled"


def test_one_that_is_deleted_while_it_runs_stays_deleted(site: Site, client: TestClient) -> None:
    ReviewStore(site.db).review(["walker"], "reviewed", T0 + 50)
    kept = ScenarioExporter(
        site.root, site.config.for_decisions(), site.config.storage.disk_free_min_mb, site.clock
    ).keep("walker", KeepOptions(name="walk"))
    store = ScenarioExporter(
        site.root, site.config.for_decisions(), site.config.storage.disk_free_min_mb, site.clock
    ).store
    assert store.delete("walk")
    store.note_proof(kept, "passed", "")
    assert store.all() == []


def test_one_that_is_deleted_while_all_are_listed_is_left_out(
    site: Site, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(folder: Path, pattern: str) -> Iterator[Path]:
        raise FileNotFoundError(folder)

    ReviewStore(site.db).review(["walker"], "reviewed", T0 + 50)
    assert client.post(KEEP, json={"name": "walk"}).status_code == 201
    assert len(client.get("/api/v1/scenarios").json()["scenarios"]) == 1
    monkeypatch.setattr(Path, "rglob", gone)
    assert client.get("/api/v1/scenarios").json()["scenarios"] == []


def test_a_false_alarm_is_kept_as_one_also_when_only_the_request_says_so(client: TestClient) -> None:
    kept = client.post(KEEP, json={"as": "false"}).json()
    assert (kept["truth"], kept["expect"], kept["never"], kept["name"]) == ("false", 0, 1, "gate-20231114-221323")
    status, told = problem(client, KEEP, {"as": "false"})
    assert (status, told) == (
        409,
        "This alert is kept as `gate-20231114-221323` already: delete that, or give another name.",
    )


@pytest.mark.parametrize("name", ["../up", "a/b", "Upper", ".x", "x" * 65])
def test_a_name_cannot_lead_elsewhere(site: Site, client: TestClient, name: str) -> None:
    assert problem(client, KEEP, {"as": "right", "name": name})[0] == 422
    for url in (f"/api/v1/scenarios/{name}", "/api/v1/scenarios/%2e%2e", "/api/v1/scenarios/..%2fsegments"):
        assert client.request("DELETE", url, json={}).status_code in (404, 405)
    assert not (site.root / "scenarios").exists()
    assert (site.root / "segments").is_dir()


def test_a_footage_that_is_gone_is_reported_as_gone(site: Site, client: TestClient) -> None:
    for folder in ("segments", "evidence"):
        shutil.rmtree(site.root / folder)
    status, told = problem(client, KEEP, {"as": "right"})
    assert status == 410
    assert "neither the recording (storage.keep_hours) nor the alert's clip is there" in told
    assert client.get("/api/v1/scenarios").json()["scenarios"] == []


def test_an_unknown_option_is_refused(client: TestClient) -> None:
    assert client.post(KEEP, json={"to": "/etc"}).status_code == 422
    assert client.post(KEEP, json={"note": "x" * 501}).status_code == 422


def test_nothing_is_changed_from_elsewhere(client: TestClient) -> None:
    headers = {"sec-fetch-site": "cross-site", "content-type": "application/json"}
    assert client.post(KEEP, content=b'{"as":"right"}', headers=headers).status_code == 403
    assert client.request("DELETE", "/api/v1/scenarios/x", content=b"{}", headers=headers).status_code == 403

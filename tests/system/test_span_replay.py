"""A span of a real recording, decided again in a sandbox: what was gated, found, followed and reported, and why not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from appliance.base.clock import ManualClock
from appliance.config import SiteConfig
from tests.support.dashboard_site import Site
from tests.support.waiting import until

CLIP = Path(__file__).parents[2] / "fixtures" / "clips" / "gate.mp4"
T0 = 1_795_172_400.0
ENTERS = (T0 + 4.0, T0 + 9.0)  # a person comes in by the gate in the sixth second
WAIT_S = 60.0


def config(**rule: Any) -> SiteConfig:
    everywhere = [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]
    intruder = {"name": "intruder", "kind": "enter", "zone": "yard", "at_start": "report", **rule}
    gate = {"url": "rtsp://u:hunter2@192.168.1.20/main", "zones": {"yard": everywhere}, "rules": [intruder]}
    return SiteConfig.model_validate(
        {"site": {"name": "depot-7"}, "cameras": {"gate": gate}, "dashboard": {"port": 0},
         "uplink": {"url": "nats://127.0.0.1:4222"}}
    )  # fmt: skip


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The first seconds of the clip, as the recorder writes them; nothing was examined when it was recorded."""
    site = Site(tmp_path_factory.mktemp("replay"), ManualClock(T0 + 60), config=config())
    site.record_clip("gate", CLIP, T0, 10)
    site.live("gate", T0, (960, 540))
    yield site
    site.close()


def replayed(site: Site, plan: SiteConfig, span: tuple[float, float] = ENTERS) -> dict[str, Any]:
    site.config = plan
    with site.client() as client:
        began = client.post("/api/v1/cameras/gate/why/replay", json={"t_start": span[0], "t_end": span[1]})
        assert began.status_code == 202, began.text
        job = over(client, began.json()["id"])
        assert job["state"] == "done", job
        assert job["share"] > 0.5, "it told how far it was"
        found = client.get(f"/api/v1/cameras/gate/why/replay/{job['id']}")
        assert found.status_code == 200, found.text
        report: dict[str, Any] = found.json()
        return report


def over(client: TestClient, job: str) -> dict[str, Any]:
    def found() -> dict[str, Any]:
        return dict(client.get(f"/api/v1/cameras/gate/jobs/{job}").json())

    until(lambda: found()["state"] != "running", WAIT_S, "the job ends", every_s=0.1)
    return found()


def test_a_span_of_which_nothing_is_stored_is_decided_again(recorded: Site) -> None:
    with recorded.client() as client:
        stored = client.get("/api/v1/cameras/gate/why", params={"from": ENTERS[0], "to": ENTERS[1]}).json()
        assert stored["sentence_key"] == "not_examined"
    found = replayed(recorded, config())
    assert found["sentence_key"] == "not_then", found["sentence"]
    assert "person (intruder)" in found["sentence"]
    detail = found["replay"]
    assert {each["what"] for each in detail["moments"]} >= {"motion", "gated"}
    uses = {each["use"] for each in detail["detections"]}
    assert "confirmed" in uses
    assert uses & {"unused", "tentative"}, "what did not count is told, too"
    assert min(each["score"] for each in detail["detections"]) < 0.4, "weak ones are told, too"
    assert all(ENTERS[0] <= each["t"] <= ENTERS[1] for each in [*detail["moments"], *detail["detections"]])
    assert [each["label"] for each in found["tracks"] if each["furthest"]["stage"] == "reported"] == ["person"]
    assert {each["when"] for each in detail["routes"]} <= {"now", "later", "never"}
    assert all(each["reason"] for each in detail["routes"])
    assert detail["routes"], "an alert was opened, so the router decided about it"


def test_a_rule_that_wants_more_says_what_was_missing(recorded: Site) -> None:
    found = replayed(recorded, config(score_min=0.99))
    assert found["because"]["stage"] == "score"
    assert found["sentence"].startswith("Nobody was reported because of the person")
    assert "the rule wants 0.99" in found["sentence"]


def test_one_job_at_a_time_and_it_can_be_cancelled(recorded: Site) -> None:
    recorded.config = config()
    with recorded.client() as client:
        span = {"t_start": T0, "t_end": T0 + 10}
        first = client.post("/api/v1/cameras/gate/why/replay", json=span).json()
        second = client.post("/api/v1/cameras/gate/why/replay", json=span)
        assert second.status_code == 409
        assert client.get(f"/api/v1/cameras/gate/why/replay/{first['id']}").status_code == 409
        gone = client.request("DELETE", f"/api/v1/cameras/gate/jobs/{first['id']}", json={}).json()
        assert (gone["state"], gone["error"]) == ("cancelled", "It was cancelled.")
        assert over(client, first["id"])["state"] == "cancelled"
        assert 'vedette_lab_jobs_total{kind="replay_span",state="cancelled"} 1.0' in client.get("/metrics").text


def test_what_cannot_be_decided_again_is_refused(recorded: Site) -> None:
    recorded.config = config()
    with recorded.client() as client:
        url = "/api/v1/cameras/gate/why/replay"
        assert client.post(url, json={"t_start": T0 + 5000, "t_end": T0 + 5010}).status_code == 404
        assert client.post(url, json={"t_start": T0, "t_end": T0 + 121}).status_code == 422
        assert client.post(url.replace("gate", "nowhere"), json={"t_start": T0, "t_end": T0 + 1}).status_code == 404
        assert client.get("/api/v1/cameras/gate/jobs/0").status_code == 404

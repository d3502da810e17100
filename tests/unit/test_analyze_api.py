"""`POST /api/v1/analyze`: the local detector answers what it can, the outbox carries the rest, and refusals say why."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from fastapi.testclient import TestClient

from appliance.base.analyze_protocol import RequestRate
from appliance.base.clock import ManualClock
from appliance.config import SiteConfig
from appliance.dashboard.app import create_app
from appliance.dashboard.deps import CoreProbes, MediaReaders, StoredSite
from appliance.store.alert_rows import EvidenceStore
from appliance.store.users import UserStore
from appliance.types import CropResult, RecheckDetection, RecheckResult
from appliance.types.accounts import UserRow
from tests.support import numbered_footage
from tests.support.core_harness import CoreHarness, site
from tests.support.dashboard_site import PASSWORD, password_hash

T0 = 1_700_000_000.0
TOKEN = "a token of twelve"
PERSON = RecheckDetection(label="person", score=0.83, box=(0.1, 0.2, 0.3, 0.9))


def picture(side: int = 320) -> str:
    noise = np.random.default_rng(1).integers(0, 255, (side, side, 3), np.uint8)
    return base64.b64encode(cv2.imencode(".jpg", noise)[1].tobytes()).decode()


class Detector:
    """Stands for the ingest process: finds `found` in every picture, or fails with `error`."""

    def __init__(self, found: Sequence[RecheckDetection] = (PERSON,), error: str = "") -> None:
        self.found, self.error, self.seen = tuple(found), error, 0

    def detect(self, camera: str, pictures: Sequence[bytes]) -> RecheckResult:
        assert all(each.startswith(b"\xff\xd8\xff") for each in pictures)
        self.seen += len(pictures)
        sightings = tuple(CropResult(t=float(n), box=(0, 0, 1, 1), found=self.found) for n in range(len(pictures)))
        return RecheckResult(id="1", camera=camera, model="eye", ms=40.0, sightings=sightings, error=self.error)


class Served:
    """The dashboard of a core that goes on, with a scripted detector."""

    def __init__(self, folder: Path, config: SiteConfig, detector: Detector, *, uplink: bool = True) -> None:
        self.box = CoreHarness(folder, config, ManualClock(T0))
        self.root, requests = folder, self.box.stores.requests
        probes = CoreProbes(escalate=requests.ask if uplink else None)
        stored = StoredSite(self.box.db, self.box.meter, folder, self.box.clock)
        app = create_app(stored, config.for_dashboard(), media=MediaReaders(detect=detector.detect), probes=probes)
        self.client = TestClient(app, base_url="http://127.0.0.1:8080", raise_server_exceptions=False)
        self.client.headers["Authorization"] = f"Bearer {TOKEN}"

    def post(self, *items: dict[str, Any], **headers: str) -> tuple[int, Any]:
        """Ask while the core's seconds pass."""
        answers: list[Any] = []
        asking = threading.Thread(
            target=lambda: answers.append(self.client.post("/api/v1/analyze", json={"items": items}, headers=headers))
        )
        asking.start()
        while asking.is_alive():
            self.box.second()
            asking.join(0.01)
        found = answers[0]
        return found.status_code, found.json()

    def files(self) -> list[Path]:
        return [each for name in ("evidence", "cuts") for each in (self.root / name).rglob("*") if each.is_file()]


Serve = Callable[..., Served]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    opened: list[Served] = []

    def make(detector: Detector | None = None, *, uplink: bool = True, **change: Any) -> Served:
        config = site().model_dump(mode="json")
        config["cameras"]["gate"] |= change.pop("camera", {})
        config["escalation"] |= change.pop("escalation", {})
        config["dashboard"] |= {"token": TOKEN, **change}
        opened.append(Served(tmp_path, SiteConfig.model_validate(config), detector or Detector(), uplink=uplink))
        return opened[-1]

    yield make
    for each in opened:
        each.box.db.close()


def test_boxes_and_a_label_are_answered_here_and_cost_nothing(serve: Serve) -> None:
    served = serve()
    status, found = served.post({"camera": "gate", "media": picture()})
    (item,) = found["items"]
    assert (status, item["status"], item["boxes"][0]["label"], item["answer"]) == (200, "answered", "person", "")
    status, found = served.post({"camera": "gate", "media": picture(), "label": "person", "tier": "edge"})
    (item,) = found["items"]
    assert (status, item["tier"], item["answer"], item["cost"]["money"]) == (200, "edge", "yes", 0.0)
    assert 0.5 < item["confidence"] < 1
    served.box.core.close()
    assert served.files() == []


def test_a_question_goes_the_way_of_an_alert_and_its_verdict_is_found_at_the_status_url(serve: Serve) -> None:
    prices = {"prices": {"uplink_gb": 4.0, "gpu_hour": 3.6}}
    served = serve(escalation=prices)
    status, found = served.post({"camera": "gate", "media": picture(), "question": "Is the gate open?"})
    (item,) = found["items"]
    assert (status, item["status"], item["tier"], item["cost"]["estimated"]) == (202, "pending", "", True)
    assert item["cost"]["money"] > 0
    row = served.box.escalated(item["id"])
    assert row is not None
    assert (row.state, row.priority, row.body.question, len(row.body.media)) == (
        "ready",
        "high",
        "Is the gate open?",
        1,
    )
    assert served.client.get(item["status_url"]).json()["status"] == "pending"
    served.box.judge(item["id"], "rejected", seconds=2.0)
    answer = served.client.get(item["status_url"]).json()
    assert (answer["status"], answer["tier"], answer["answer"], answer["judge"]) == ("answered", "cloud", "no", "vlm")
    assert answer["cost"]["money"] == pytest.approx(2.0 / 3600 * 3.6)
    assert served.client.get("/api/v1/alerts").json()["alerts"] == [], "it is no alert"
    assert not served.box.decisions.outcomes(), "and teaches nothing about alerts"


def test_a_clip_is_looked_at_in_several_moments(serve: Serve) -> None:
    detector = Detector()
    served = serve(detector)
    row = numbered_footage.record(served.root, numbered_footage.encoded_footage(0, 40), T0, camera="gate")
    clip = base64.b64encode((served.root / row.path).read_bytes()).decode()
    status, found = served.post({"camera": "gate", "media": clip, "label": "person", "tier": "cloud"})
    (item,) = found["items"]
    assert (status, item["status"], detector.seen) == (202, "pending", 4), item
    assert [each["t"] for each in item["boxes"]] == pytest.approx([0.5, 1.5, 2.5, 3.5], abs=0.1)
    escalation = served.box.escalated(item["id"])
    assert escalation is not None
    assert [(each.kind, each.box) for each in escalation.body.media] == [("frame", PERSON.box)] * 4


@pytest.mark.parametrize(
    ("camera", "reason"),
    [({"image_free": True}, "keep its pictures on the appliance"), ({"privacy": {"never": True}}, "keep its pictures"),
     ({"privacy": {"blur": "people"}}, "keep its pictures")],
)  # fmt: skip
def test_privacy_keeps_pictures_here_whatever_is_asked(serve: Serve, camera: dict[str, Any], reason: str) -> None:
    served = serve(camera=camera)
    _, found = served.post(
        {"camera": "gate", "media": picture(), "question": "Who?"},
        {"camera": "gate", "media": picture(), "label": "person"},
    )
    asked, labelled = found["items"]
    assert (asked["status"], labelled["status"], labelled["answer"]) == ("refused", "answered", "yes")
    assert reason in asked["reason"]
    assert reason in labelled["flagged"], "the appliance's own answer stands, and says why"
    assert served.files() == []


def test_masks_are_painted_over_what_leaves(serve: Serve) -> None:
    served = serve(camera={"privacy": {"mask": ["yard"]}})
    _, found = served.post({"camera": "gate", "media": picture(), "question": "Is it open?"})
    row = served.box.escalated(found["items"][0]["id"])
    assert row is not None
    (path,) = [each for each in served.files() if each.suffix == ".webp"]
    shown = cv2.imread(str(path))
    assert shown is not None
    assert shown.std() < 3, "the yard is the whole frame: one grey, of noise nothing is left"


def test_a_budget_that_one_question_exceeds_refuses_it_and_keeps_no_file(serve: Serve) -> None:
    served = serve(escalation={"budget": {"mb_day": 0.001}})
    _, found = served.post({"camera": "gate", "media": picture(), "question": "Is it open?"})
    (item,) = found["items"]
    assert (item["status"], item["reason"]) == ("refused", "One question costs more than the budget allows.")
    assert served.files() == []


def test_without_an_uplink_or_a_detector_each_says_so(serve: Serve) -> None:
    served = serve(Detector(error="the ingest process does not run"), uplink=False)
    _, found = served.post(
        {"camera": "gate", "media": picture(), "label": "person"},
        {"camera": "gate", "media": picture(), "question": "?"},
        {"camera": "gate", "media": base64.b64encode(b"GIF89a, no picture").decode()},
        {"camera": "gate", "media": base64.b64encode(b"\xff\xd8\xff and no picture").decode()},
    )  # fmt: skip
    assert [each["status"] for each in found["items"]] == ["refused"] * 4
    reasons = [each["reason"] for each in found["items"]]
    assert "no uplink" in reasons[0]
    assert "no JPEG, PNG, WebP or MP4" in reasons[2]


def test_whose_pictures_and_how_many(serve: Serve) -> None:
    served = serve(analyze_per_minute=3)
    item = {"camera": "gate", "media": picture(), "tier": "edge"}

    def post(*items: dict[str, Any]) -> Any:
        return served.client.post("/api/v1/analyze", json={"items": items})

    assert post({**item, "camera": "attic"}).json()["detail"] == "There is no camera attic among yours."
    assert post(item, item, item).status_code == 200
    refused = post(item)
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "21")
    assert "3 pictures a minute (dashboard.analyze_per_minute)" in refused.json()["detail"]
    served.box.clock.advance(21.0)
    assert post(item).status_code == 200, "a third of a minute later there is room for one"
    users = UserStore(served.box.db)
    users.add(UserRow(name="ann", role="admin", cameras=None, password=password_hash()))
    users.add(UserRow(name="eve", role="viewer", cameras=None, password=password_hash()))
    users.add(UserRow(name="rob", role="reviewer", cameras=("dock",), password=password_hash()))
    with login(served, "eve"):
        assert post(item).status_code == 403, "it spends money: for reviewers"
    with login(served, "rob"):
        assert post(item).status_code == 404, "and of their own cameras"


@contextmanager
def login(served: Served, name: str) -> Iterator[None]:
    token = served.client.headers.pop("Authorization")
    served.box.clock.advance(2.0)
    assert served.client.post("/login", json={"name": name, "password": PASSWORD}).status_code == 200
    yield
    served.client.cookies.clear()
    served.client.headers["Authorization"] = token


def test_a_caller_has_a_minutes_worth_and_others_have_their_own() -> None:
    clock = ManualClock(T0)
    rate = RequestRate(clock.monotonic)
    assert [rate.take("a", 3, 6), rate.take("a", 3, 6), rate.take("b", 6, 6)] == [0.0, 0.0, 0.0]
    assert rate.take("a", 1, 6) == pytest.approx(10.0)
    clock.advance(10.0)
    assert rate.take("a", 1, 6) == 0.0
    clock.advance(3600.0)
    assert rate.take("a", 8, 6) == 0.0, "a batch above the limit takes all there is"
    assert rate.take("a", 1, 6) > 0


def test_the_row_is_made_ready_with_its_media_in_one_transaction(serve: Serve) -> None:
    served = serve()
    _, found = served.post({"camera": "gate", "media": picture(), "question": "Is it open?"})
    name = found["items"][0]["id"]
    (row,) = EvidenceStore(served.box.db).of(name)
    assert (row.state, (served.root / row.path).stat().st_size) == ("ready", row.bytes)

"""The models of the dashboard's API: what is listed, and what putting one in force writes."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.testclient import TestClient

from appliance.base.clock import SystemClock
from appliance.base.local_files import DiskWriteError
from appliance.bundle.rollout import shadow_of
from appliance.canary.candidate_comparison import Judgement
from appliance.canary.proof_store import PROOF_REPORT, ProofReport, ProofStore
from appliance.config import SiteConfig
from appliance.dashboard.app import create_app
from appliance.dashboard.deps import CoreProbes, IngestOrders
from appliance.dashboard.proofs_api import NetworkProver, TryModel
from appliance.dashboard.recording_jobs import JobRunning, RecordingJob, RecordingJobs
from appliance.detect.bundle_maker import adopt_network
from appliance.detect.model_download import ModelDownload
from appliance.detect.model_files import bundle_store, packaged_network
from appliance.sandbox.sandbox import Sandbox
from appliance.settings.settings_service import SettingsService
from tests.support.dashboard_site import Site
from tests.support.waiting import until

FILE = "site: {name: depot-7}\ncameras:\n  gate: {url: rtsp://192.168.1.20/main}\n"
ROOT = Path(__file__).parents[2]
NETWORK = b"stands for a network"
MODELS = f"""
[yard]
file = "yard.onnx"
sha256 = "{hashlib.sha256(NETWORK).hexdigest()}"
licence = "MIT"
labels = ["person"]
input = [416, 416]
cost = 2.0
unseen = {{ stills_person = 0.8, indoor_person = 0.4, night_person = 0.6, streets_person = 0.6, cameras_person = 0.9 }}

[unchecked]
file = "unchecked.onnx"
url = "https://example.org/unchecked.onnx"
licence = "MIT"
labels = ["person"]
input = [416, 416]
"""


@pytest.fixture
def restarts() -> list[str]:
    return []


@pytest.fixture
def inference_ms() -> list[float]:
    return [8.0]


@pytest.fixture
def client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: list[str], inference_ms: list[float]
) -> Iterator[TestClient]:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "models.toml").write_text(MODELS)
    (folder / "yard.onnx").write_bytes(NETWORK)
    monkeypatch.setenv("VEDETTE_MODELS", str(folder))
    path = tmp_path / "site.yaml"
    path.write_text(FILE)
    (tmp_path / "data").mkdir()
    site = Site(tmp_path / "data", SystemClock(), SiteConfig.model_validate(yaml.safe_load(FILE)))
    orders = IngestOrders(lambda camera, kind: None, lambda: restarts.append("ingest"))

    def probes() -> CoreProbes:
        health = lambda: replace(site.health, detector_ms=inference_ms[0])  # noqa: E731
        return replace(site.probes(), orders=orders, health=health)

    def put_in_force(config: SiteConfig) -> tuple[str, ...]:
        app.state.configure(config.for_dashboard(), probes())
        return ()

    service = SettingsService(path, tmp_path / "data", site.clock, put_in_force)
    app = create_app(site.stored, site.config.for_dashboard(), probes=probes(), settings=service)
    with TestClient(app, base_url="http://127.0.0.1:8080", raise_server_exceptions=False) as opened:
        yield opened
    site.close()


def test_the_list_says_what_each_finds_and_what_cannot_be_pulled(client: TestClient) -> None:
    listed = client.get("/api/v1/models").json()
    rows = {row["name"]: row for row in listed["models"]}
    assert (listed["in_force"], listed["models"][0]["name"]) == ("vedette-nano", "vedette-nano")
    assert rows["yard"]["state"] == "here"
    assert rows["yard"]["finds"] == {"person": pytest.approx(0.9)}, "on fixed cameras"
    assert rows["yard"]["cost"] == 2.0
    assert rows["unchecked"]["state"] == "hash missing"
    assert "vedette-nano-int8" not in rows, "a variant is no choice of its own"


def test_the_first_run_offers_a_better_network_where_there_is_time_for_it(
    client: TestClient, inference_ms: list[float]
) -> None:
    offered = client.get("/cameras/new").text
    assert "A better network fits on this appliance: yard." in offered
    assert 'href="/models"' in offered
    inference_ms[0] = 400.0  # of a small board: three inferences a second at twice the work are more than all its time
    assert "A better network fits" not in client.get("/cameras/new").text


def test_a_network_is_put_in_force_by_the_settings_and_left_again(
    client: TestClient, tmp_path: Path, restarts: list[str]
) -> None:
    base = client.get("/api/v1/models").json()["base"]
    listed = client.post("/api/v1/models/use", json={"model": "yard", "base": base}).json()
    assert yaml.safe_load((tmp_path / "site.yaml").read_text())["detector"] == {"model": "yard"}
    assert restarts == ["ingest"]
    stale = client.post("/api/v1/models/use", json={"model": "vedette-nano", "base": base})
    assert stale.status_code == 409, "another change came in between"
    base = client.get("/api/v1/models").json()["base"]
    client.post("/api/v1/models/use", json={"model": "vedette-nano", "base": base})
    assert yaml.safe_load((tmp_path / "site.yaml").read_text())["detector"] == {"model": "auto"}
    assert listed["before"] == ""


def test_what_comes_with_vedette_is_chosen_over_a_version_in_force(client: TestClient, restarts: list[str]) -> None:
    ref = adopt_network("yard")
    base = client.get("/api/v1/models").json()["base"]
    listed = client.post("/api/v1/models/use", json={"model": str(ref), "base": base}).json()
    assert (listed["in_force"], listed["before"]) == (str(ref), "vedette-nano")
    listed = client.post("/api/v1/models/use", json={"model": "vedette-nano", "base": listed["base"]}).json()
    assert (listed["in_force"], listed["before"]) == ("vedette-nano", "")
    first = listed["models"][0]  # although a version of it is installed, too
    assert (first["name"], first["in_force"]) == ("vedette-nano", True)
    copy = adopt_network("vedette-nano")
    assert str(copy) not in {row["name"] for row in client.get("/api/v1/models").json()["models"]}, "it is the same"
    assert restarts == ["ingest", "ingest"]


def test_a_stale_request_moves_no_pointer(client: TestClient) -> None:
    base = client.get("/api/v1/models").json()["base"]
    listed = client.post("/api/v1/models/use", json={"model": "yard", "base": base}).json()
    ref = adopt_network("yard")
    for camera in ("", "gate"):
        bundle_store().put_in_force(ref, camera)
        if camera:
            body = {"model": "yard", "base": listed["base"], "camera": camera}
            client.post("/api/v1/models/use", json=body)
        before = bundle_store().in_force()
        body = {"model": client.get("/api/v1/models").json()["in_force"] if camera else "vedette-nano", "base": base}
        assert client.post("/api/v1/models/use", json={**body, "camera": camera}).status_code == 409
        assert bundle_store().in_force() == before


def test_settings_that_cannot_be_changed_move_no_pointer(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk of the settings is full, or they cannot be put in force."""
    ref = adopt_network("yard")

    def use(model: str, camera: str, status: int) -> None:
        body = {"model": model, "base": client.get("/api/v1/models").json()["base"], "camera": camera}
        answer = client.post("/api/v1/models/use", json=body)
        assert answer.status_code == status, answer.text

    def full(*_: object) -> None:
        raise DiskWriteError("the disk is full")

    use("yard", "", 200)
    use("vedette-nano", "gate", 200)
    bundle_store().put_in_force(ref, "gate")
    monkeypatch.setattr(SettingsService, "change", full)
    for model, camera in ((str(ref), ""), ("yard", "gate"), ("vedette-nano", "")):
        if model == "vedette-nano":
            bundle_store().put_in_force(ref)
        before = bundle_store().in_force()
        use(model, camera, 507)
        assert bundle_store().in_force() == before, (model, camera)


def test_what_cannot_be_done_is_said(client: TestClient) -> None:
    base = client.get("/api/v1/models").json()["base"]
    for path, body, status, says in (
        ("use", {"model": "picodet-s", "base": base}, 422, "pull it first"),
        ("use", {"model": "night@1", "base": base}, 422, "not installed"),
        ("pull", {"model": "nothing"}, 404, "no network nothing"),
        ("back", {}, 409, "no bundle of its own"),
        ("offers", {}, 409, "--root root.json"),
    ):
        answer = client.post(f"/api/v1/models/{path}", json=body)
        assert (answer.status_code, says in answer.json()["detail"]) == (status, True), answer.json()


def test_a_network_is_tried_on_the_recording_from_the_page(tmp_path: Path) -> None:
    site = Site(tmp_path, SystemClock())
    site.record_clip("gate", ROOT / "fixtures" / "clips" / "gate.mp4", site.clock.now() - 60, 16.0)
    with site.client() as client:
        refused = client.post("/api/v1/proofs", json={"model": "no-such-network"})
        assert refused.status_code == 422
        begun = client.post("/api/v1/proofs", json={"model": "vedette-nano-int8", "hours": 1})
        assert (begun.status_code, begun.json()["state"]) == (202, "running")
        second = client.post("/api/v1/proofs", json={"model": "vedette-nano-int8"})
        assert second.status_code == 409, "one at a time"
        assert second.json()["detail"] == "Another job is at work on the recording; wait for it, or cancel it."
        until(lambda: client.get("/api/v1/proofs").json(), 120)
        (found,) = client.get("/api/v1/proofs").json()
        assert found["candidate"] == "vedette-nano-int8"
        assert found["frames"] >= 3
        assert found["networks"][0] != found["networks"][1]
        assert client.delete("/api/v1/proofs").json()["state"] == "done"
    site.close()


def test_a_candidate_on_probation_is_compared_with_what_was_before_never_with_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.setenv("VEDETTE_MODELS", str(tmp_path / "models"))
    candidate = adopt_network("vedette-nano")
    assert candidate is not None
    bundle_store().put_in_force(candidate, state="probation")
    site = Site(tmp_path / "data", SystemClock())
    site.record_clip("gate", ROOT / "fixtures" / "clips" / "gate.mp4", site.clock.now() - 60, 16.0)
    begun: list[dict[str, Any]] = []

    class Jobs(RecordingJobs):
        def start(self, *words: Any, **more: Any) -> RecordingJob:
            begun.append(words[2]["plan"])
            raise JobRunning("only what it would compare is asked")

    prover = NetworkProver(site.config.for_decisions(), site.root, Jobs(site.root, site.clock), ProofStore(site.root))
    with pytest.raises(JobRunning):
        prover.start(TryModel(model=str(candidate)), site.clock.now())
    site.close()
    assert [each["now"]["model"] for each in begun] == [packaged_network()], "its name alone means the candidate"


def test_a_trial_whose_report_the_disk_does_not_take_or_that_makes_no_sense_has_failed(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path / "full", SystemClock(), SiteConfig.model_validate(yaml.safe_load(FILE)))
    site.record_clip("gate", ROOT / "fixtures" / "clips" / "gate.mp4", site.clock.now() - 60, 16.0)
    report = ProofReport("yard", 1.0, Judgement("better"), ("a", "yard"), 9, 60.0, 6.0, ())
    answers = [PROOF_REPORT.dump_python(report, mode="json"), {"candidate": "yard"}]

    class Answers(Sandbox):
        def call(self, *_: Any, **__: Any) -> Any:
            return answers.pop(0)

    def full(*_: object) -> None:
        raise DiskWriteError("the disk is full")

    monkeypatch.setattr(ProofStore, "put", full)
    jobs = RecordingJobs(site.root, site.clock, Answers)
    prover = NetworkProver(site.config.for_decisions(), site.root, jobs, ProofStore(site.root))
    for words in ("could not be kept: the disk is full", "makes no sense"):
        prover.start(TryModel(model="yard"), site.clock.now())
        until(lambda: prover.newest and prover.newest.state != "running")  # type: ignore[union-attr]
        assert prover.newest is not None
        assert prover.newest.state == "failed"
        assert words in prover.newest.error
    site.close()


def test_a_network_is_put_in_force_for_one_camera_and_taken_back(
    client: TestClient, tmp_path: Path, restarts: list[str]
) -> None:
    def use(model: str, camera: str = "gate", status: int = 200) -> object:
        body = {"model": model, "base": client.get("/api/v1/models").json()["base"], "camera": camera}
        answer = client.post("/api/v1/models/use", json=body)
        assert answer.status_code == status, answer.text
        return client.get("/api/v1/models").json()["cameras"]

    def written() -> object:
        return yaml.safe_load((tmp_path / "site.yaml").read_text())["cameras"]["gate"].get("model")

    assert use("yard") == {"gate": "yard"}
    assert written() == "yard"
    assert use("vedette-nano") == {}
    assert written() is None
    ref = adopt_network("yard")
    assert use(str(ref)) == {"gate": str(ref)}, "a version by its pointer, on probation"
    slot = bundle_store().in_force().cameras["gate"]
    assert (slot.bundle, slot.state, written()) == (ref, "probation", None)
    assert "has yard@" in client.get("/models").text
    assert use("vedette-nano") == {}
    use("yard", camera="attic", status=404)
    assert restarts == ["ingest"] * 4


def test_what_a_trial_found_on_each_camera_is_beside_the_network(tmp_path: Path) -> None:
    site = Site(tmp_path, SystemClock())
    found = Judgement("better", objects=20, lost=1, gained=4, cpu_ratio=1.5, cpu_ms=14.2)
    whole = Judgement("not enough", objects=20, lost=1)
    report = ProofReport("vedette-nano@9", 1.0, whole, ("a", "b"), 9, 60.0, 6.0, (), cameras={"gate": found})
    ProofStore(tmp_path).put(report)
    with site.client() as client:
        (item,) = client.get("/api/v1/proofs").json()
    assert item["cameras"] == {
        "gate": {"outcome": "better", "objects": 20, "lost": 1, "gained": 4, "cpu_ratio": 1.5, "cpu_ms": 14.2}
    }
    site.close()


def test_a_bundle_is_compared_live_from_the_page_which_says_what_it_takes(client: TestClient) -> None:
    ref = adopt_network("yard")
    assert b"Compared live it takes about" in client.get("/models").content
    assert client.post("/api/v1/models/shadow", json={"model": str(ref)}).status_code == 200
    assert shadow_of(bundle_store()) == ref
    assert client.post("/api/v1/models/shadow", json={"model": "yard@none"}).status_code == 422
    assert client.delete("/api/v1/models/shadow").json()["shadow"]["progress"] == ""
    assert shadow_of(bundle_store()) is None


def test_a_pull_that_the_disk_ends_is_over_and_another_may_begin(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pull(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ModelDownload, "pull", pull)

    def ended() -> bool:
        (item,) = (each["pull"] for each in client.get("/api/v1/models").json()["models"] if each["name"] == "yard")
        return not item["running"] and "No space left" in item["error"]

    for _ in range(2):
        assert client.post("/api/v1/models/pull", json={"model": "yard"}).status_code == 200
        until(ended)

"""`/api/v1/cameras/{name}/trials`: begun, kept with what it found, listed, deleted; what cannot be tried is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from appliance.base.clock import ManualClock
from appliance.dashboard.recording_jobs import RecordingJob, RecordingJobs
from appliance.dashboard.timeline_api import TimelineReader
from appliance.dashboard.trial_store import KEPT_MAX, TrialHead, TrialStore
from appliance.dashboard.trials_api import RESTARTED, SettingsTrials
from appliance.sandbox.sandbox import SandboxUnavailable
from appliance.settings.settings_service import SettingsService
from tests.support import waiting
from tests.support.dashboard_site import Site

T0 = 1_700_000_000.0
FILE = """\
site: {name: depot-7}
detector: {model: auto}
cameras:
  gate:
    url: rtsp://viewer:hunter2@192.168.1.20/main
    zones: {yard: [[0, 0], [1, 0], [1, 1]]}
    rules: [{name: intruder, kind: enter, zone: yard}]
"""
CHANGE = {"path": ["cameras", "gate", "rules"], "value": [{"name": "late", "kind": "enter", "zone": "yard"}]}
ALERT = {
    "t_start": T0 + 2, "t_end": T0 + 4, "rules": ["intruder"], "labels": ["person"], "severity": "alert", "tracks": 1,
    "best_t": T0 + 3,
}  # fmt: skip
TOTALS = {"looks": 40, "tracks": 1, "events": 1, "alerts": 1, "questions": 0}
FOUND = {
    "same": False, "settings": ["gate: rule `intruder` removed"], "models": ["a", "b"], "totals": [TOTALS, TOTALS],
    "alerts": [
        {"change": "missing", "before": ALERT, "after": None},
        {"change": "new", "before": None, "after": {**ALERT, "t_start": T0 + 900, "best_t": T0 + 900}},
    ],
    "events": [], "tracks": [], "left_out": {"alerts": 0, "events": 0, "tracks": 0},
    "missing": [{"t_start": T0 + 8, "t_end": T0 + 60, "reason": "nothing is recorded"}], "unread": [], "replayed": 1,
}  # fmt: skip


class FakeSandbox:
    """Answers `found` once it is let go; notes what it was told."""

    found: Any = FOUND

    def __init__(self, *_: object, **__: object) -> None:
        self.go, self.closed = threading.Event(), False

    def call(self, function: str, *values: Any, wall_s: float | None, progress: Callable[[float], None]) -> Any:
        self.told = function, values[0], wall_s
        progress(0.25)
        self.go.wait(20)
        if self.closed:
            raise SandboxUnavailable("ended")
        return self.found

    def close(self) -> None:
        self.closed |= not self.go.is_set()
        self.go.set()


class Fixture:
    def __init__(self, folder: Path) -> None:
        (folder / "data").mkdir()
        (folder / "site.yaml").write_text(FILE)
        self.site = site = Site(folder / "data", ManualClock(T0 + 100))
        service = SettingsService(folder / "site.yaml", folder, site.clock, lambda config: ())
        site.config = service.running.config
        self.app = site.app(service)
        self.made: list[FakeSandbox] = []
        self.jobs = RecordingJobs(site.root, site.clock, make=self._make)  # type: ignore[arg-type]
        parts = self.app.state.parts
        self.trials = SettingsTrials(
            site.db,
            site.config.for_decisions(),
            self.jobs,
            TrialStore(site.root),
            parts[TimelineReader],
            str(site.root),
        )
        parts[RecordingJobs], parts[SettingsTrials] = self.jobs, self.trials
        self.http = TestClient(self.app, base_url="http://127.0.0.1")
        self.base = self.http.get("/api/v1/settings").json()["digest"]

    def _make(self, *_: object, **__: object) -> FakeSandbox:
        self.made.append(FakeSandbox())
        return self.made[-1]

    def begin(self, *changes: dict[str, Any], status: int = 202, **more: Any) -> Any:
        body = {"base": self.base, "changes": list(changes) or [CHANGE], **(more or {"minutes": 10})}
        answer = self.http.post("/api/v1/cameras/gate/trials", json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    def get(self, trial: str) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get(f"/api/v1/cameras/gate/trials/{trial}").json()
        return found

    def over(self, trial: str) -> dict[str, Any]:
        self.made[-1].go.set()
        waiting.until(lambda: self.get(trial)["state"] != "running", 20)
        return self.get(trial)


@pytest.fixture
def trials(tmp_path: Path) -> Iterator[Fixture]:
    fixture = Fixture(tmp_path)
    fixture.site.live("gate", T0)
    fixture.site.record("gate", T0)
    yield fixture
    fixture.jobs.close()
    fixture.site.close()


def test_a_trial_is_begun_told_of_kept_and_deleted(trials: Fixture) -> None:
    trials.site.raise_alert("walker", T0 + 2)
    begun = trials.begin(why="fewer at night", minutes=0.1)
    assert (begun["state"], begun["page"]) == ("running", f"/cameras/gate/trials/{begun['id']}")
    waiting.until(lambda: trials.get(begun["id"])["share"] == 0.25, 20)
    function, told, wall_s = trials.made[0].told
    assert function == "try_settings"
    assert wall_s == pytest.approx(600 + 8 * 6)
    assert "hunter2" not in str(told)
    assert [each["t1"] - each["t0"] for each in told["spans"]] == [pytest.approx(6)], "the newest of the recording"
    assert [site["site"]["cameras"]["gate"]["rules"][0]["name"] for site in (told["now"], told["then"])] == [
        "intruder", "late",
    ]  # fmt: skip
    assert trials.begin(status=409)["detail"].startswith("Another job is at work")
    done = trials.over(begun["id"])
    assert (done["state"], done["share"], done["result"]["same"], done["why"]) == ("done", 1.0, False, "fewer at night")
    assert "late" in done["diff"]
    missing, new = done["alerts"]
    assert (missing["alert"]["page"], missing["still"]) == (
        "/alerts/walker", f"/api/v1/cameras/gate/frame?t={T0 + 3:.1f}&size=small",
    )  # fmt: skip
    assert (new["alert"], new["still"]) == (None, None), "of that moment nothing is recorded any more"
    page = trials.http.get(begun["page"]).text
    assert "The recording of this moment is gone" in page
    assert "only with the settings in force" in page
    assert "Not recorded" in page
    again = SettingsTrials(
        trials.site.db, trials.site.config.for_decisions(), RecordingJobs(trials.site.root, trials.site.clock),
        TrialStore(trials.site.root), trials.app.state.parts[TimelineReader], str(trials.site.root),
    )  # fmt: skip
    assert again.report("gate", begun["id"]).result is not None, "also after a restart"
    gone = trials.http.request("DELETE", f"/api/v1/cameras/gate/trials/{begun['id']}", json={})
    assert gone.json() == {"trials": []}
    assert list((trials.site.root / "trials").iterdir()) == []


def test_one_that_is_cancelled_or_deleted_while_it_runs(trials: Fixture) -> None:
    begun = trials.begin()
    trials.http.request("DELETE", f"/api/v1/cameras/gate/jobs/{begun['job']}", json={})
    found = trials.get(begun["id"])
    assert (found["state"], found["error"], found["result"]) == ("cancelled", "It was cancelled.", None)
    assert "It was cancelled." in trials.http.get(begun["page"]).text
    begun = trials.begin()
    trials.http.request("DELETE", f"/api/v1/cameras/gate/trials/{begun['id']}", json={})
    assert trials.made[-1].closed
    assert [each["id"] for each in trials.http.get("/api/v1/cameras/gate/trials").json()["trials"]] == [found["id"]]


def test_a_bug_ends_its_job_and_keeps_no_other_waiting(trials: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(FakeSandbox, "call", fail)
        found = trials.over(trials.begin()["id"])
    assert (found["state"], found["error"]) == ("failed", "It was ended by a fault of Vedette's own: the log has it.")
    assert trials.over(trials.begin()["id"])["state"] == "done"


def test_who_sees_that_a_job_is_over_finds_what_was_kept_of_it(trials: Fixture) -> None:
    seen: list[tuple[str, str]] = []

    def keep(over: RecordingJob) -> None:
        known = trials.jobs.find("gate", over.id)
        seen.append((over.state, known.state if known else ""))

    job = trials.jobs.start("replay_span", "gate", {}, (), {}, ended=keep)
    trials.made[-1].go.set()
    waiting.until(lambda: job.state == "done", 20)
    assert seen == [("done", "running")]


@pytest.mark.parametrize(
    "made_up", [{"models": ["<script>"]}, {"alerts": [{"change": "new", "before": None, "after": None}]}], ids=str
)
def test_what_a_sandbox_makes_up_is_no_result(
    made_up: dict[str, Any], trials: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeSandbox, "found", {**FOUND, **made_up})
    found = trials.over(trials.begin()["id"])
    assert (found["state"], found["error"]) == (
        "failed",
        "The sandbox answered what makes no sense; nothing was compared.",
    )


def test_a_restart_in_the_middle_is_said_and_only_the_last_are_kept(trials: Fixture) -> None:
    store = TrialStore(trials.site.root)
    for n in range(KEPT_MAX + 2):
        store.put(
            TrialHead(id=f"{n:016x}", camera="gate", began_t=T0 + n, who="anna", why="", spans=[(T0, T0 + 5)], diff="")
        )
    store.put(
        TrialHead(id="e" * 16, camera="gate", began_t=T0 + 99, who="", why="", spans=[], diff=""), only_known=True
    )
    assert not (trials.site.root / "trials" / f"{'e' * 16}.json").exists(), "it was deleted meanwhile"
    (trials.site.root / "trials" / "x.json").write_text("{")
    listed = trials.http.get("/api/v1/cameras/gate/trials").json()["trials"]
    assert [each["began_t"] - T0 for each in listed] == list(range(KEPT_MAX + 1, 1, -1))
    assert {(each["state"], each["error"]) for each in listed} == {("failed", RESTARTED)}
    set_back = TrialHead(id="d" * 16, camera="gate", began_t=T0 - 99, who="", why="", spans=[], diff="")
    store.put(set_back)
    assert store.get("gate", set_back.id) is not None, "the clock was set back, and it has only begun"
    assert len(store.all("gate")) == KEPT_MAX


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"spans": [{"t_start": T0 + 5000, "t_end": T0 + 5010}]}, 404, "Nothing is recorded of this time"),
    ({"spans": [{"t_start": T0, "t_end": T0 + 3601}]}, 422, "At most 60 minutes"),
    ({"spans": [{"t_start": T0, "t_end": T0}]}, 422, "must end after it begins"),
    ({"minutes": 61}, 422, "minutes"),
    ({"minutes": 1, "alerts": ["walker"]}, 422, "one of them"),
    ({"alerts": ["../../etc/passwd"]}, 404, "There is no alert"),
    ({"changes": [{"path": ["detector", "model"], "value": "yolo-none"}]}, 422, "there is no model `yolo-none`"),
    ({"changes": [{"path": ["detector", "modle"], "value": "x"}]}, 422, "did you mean `model`?"),
    ({"changes": []}, 422, "changes"),
    ({"base": "0"}, 409, "changed meanwhile"),
]


def test_what_cannot_be_tried_is_refused_in_words(trials: Fixture) -> None:
    for more, status, detail in REFUSED:
        body = {"base": trials.base, "changes": [CHANGE], "minutes": 1, **more}
        if "spans" in more or ("alerts" in more and "minutes" not in more):
            del body["minutes"]
        answer = trials.http.post("/api/v1/cameras/gate/trials", json=body)
        assert (answer.status_code, detail in answer.json()["detail"]) == (status, True), (more, answer.text)
    assert trials.made == []


def test_the_stretches_of_several_alerts_are_joined(trials: Fixture) -> None:
    trials.site.raise_alert("one", T0 + 1)
    trials.site.raise_alert("two", T0 + 6, seconds=500.0)
    begun = trials.begin(alerts=["two", "one"])
    assert begun["spans"] == [[T0 - 19, T0 + 146]], "two minutes of a long one"
    assert trials.over(begun["id"])["state"] == "done"


def test_no_other_file_is_read_as_a_trial(trials: Fixture) -> None:
    head = TrialHead(id="0" * 16, camera="dock", began_t=T0, who="", why="", spans=[(T0, T0 + 5)], diff="")
    TrialStore(trials.site.root).put(head)
    (trials.site.root / "site.json").write_text(head.model_copy(update={"camera": "gate"}).model_dump_json())
    assert TrialStore(trials.site.root).get("gate", "../site") is None
    for trial in ("0", "%2e%2e%2fsite", "..%5csite", "..", "0" * 16, "f" * 16, "x" * 65):
        found = trials.http.get(f"/api/v1/cameras/gate/trials/{trial}")
        assert "spans" not in found.text, trial
    assert trials.http.get("/api/v1/cameras/nowhere/trials").status_code == 404


def test_the_networks_that_are_here_can_be_chosen(trials: Fixture) -> None:
    found = trials.http.get("/api/v1/settings/networks").json()
    assert "vedette-nano" in [each["name"] for each in found["networks"]]
    assert (found["in_force"], found["score_min"]) == ("auto", 0.1)
    page = trials.http.get("/cameras/gate/edit").text
    assert "<option>vedette-nano</option>" in page

"""Changed settings tried on a real recording: what differs, what is gone of it, and the network asked once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.base.clock import ManualClock
from appliance.base.errors import SourceError
from appliance.config import SiteConfig
from appliance.detect.network_detector import NetworkDetector
from appliance.replay import trial_replay
from appliance.replay.recording_tasks import TRIAL_TASK, TrialSetup, TrialSpan, TrialTask, without_secrets
from appliance.replay.trial_replay import settings_compared
from appliance.types import Detections
from tests.support.dashboard_site import Site

CLIP = Path(__file__).parents[2] / "fixtures" / "clips" / "gate.mp4"
T0 = 1_795_172_400.0
MONDAY_NOON = (0, 720)


def plan(**rule: Any) -> SiteConfig:
    everywhere = [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]
    intruder = {"name": "intruder", "kind": "enter", "zone": "yard", "at_start": "report", **rule}
    secret = "u:hunter2@192.168.1.20"
    addresses = {
        "url": f"rtsp://{secret}/main",
        "detect_url": f"rtsp://{secret}/sub",
        "onvif": f"http://{secret}/onvif",
    }
    gate = {**addresses, "zones": {"yard": everywhere}, "rules": [intruder]}
    return SiteConfig.model_validate({"cameras": {"gate": gate}})


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("trial"), ManualClock(T0 + 60), config=plan())
    site.record_clip("gate", CLIP, T0, 9)  # a person comes in by the gate in the sixth second
    yield site
    site.close()


def compared(
    site: Site, then: SiteConfig, *spans: tuple[float, float], every_alert: bool = False
) -> tuple[dict[str, Any], list[float]]:
    found = [
        TrialSpan(t0, t1, tuple(site.segments.covering("gate", t0, t1)), (), MONDAY_NOON) for t0, t1 in spans
    ]  # fmt: skip
    setups = [TrialSetup(without_secrets(each.for_decisions(), "gate", site.root)) for each in (plan(), then)]
    task = TrialTask(str(site.root), "gate", tuple(found), setups[0], setups[1], every_alert=every_alert)
    told = json.loads(TRIAL_TASK.dump_json(task))
    assert "hunter2" not in json.dumps(told)
    steps, shares = settings_compared(TRIAL_TASK.validate_python(told)), []
    while True:
        try:
            shares.append(next(steps))
        except StopIteration as end:
            return json.loads(json.dumps(end.value)), shares


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The pictures that the network was asked about."""
    found: list[int] = []
    detect = NetworkDetector.detect

    def counted(network: NetworkDetector, frames: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        found.append(len(frames))
        return detect(network, frames)

    monkeypatch.setattr(NetworkDetector, "detect", counted)
    return found


def test_a_stricter_rule_loses_the_alert_and_the_network_is_asked_once(recorded: Site, asked: list[int]) -> None:
    found, shares = compared(recorded, plan(score_min=0.99), (T0 + 5, T0 + 9), (T0 + 500, T0 + 510))
    assert [each["change"] for each in found["alerts"]] == ["missing"]
    alert = found["alerts"][0]["before"]
    assert (alert["rules"], alert["labels"]) == (["intruder"], ["person"])
    assert T0 + 5 <= alert["t_start"] <= alert["best_t"] <= T0 + 9, "camera time, not that of the stretch"
    assert [(each["change"], each["rule"]) for each in found["events"]] == [("missing", "intruder")]
    assert (found["totals"][0]["alerts"], found["totals"][1]["alerts"]) == (1, 0)
    assert found["totals"][0]["looks"] == len(asked), "the same pictures are not looked at twice"
    assert found["settings"] == ["gate: rule `intruder`: score_min 0.5 → 0.99"]
    assert (found["replayed"], found["same"]) == (1, False)
    assert "holds no picture" in found["unread"][0], "the stretch that is gone is said, and the other counts"
    assert shares == sorted(shares)
    assert shares[-1] > 0.5


def test_another_label_is_another_question_to_the_network(recorded: Site, asked: list[int]) -> None:
    found, _ = compared(recorded, plan(labels=["car"]), (T0 + 5, T0 + 9))
    assert [each["change"] for each in found["alerts"]] == ["missing"]
    assert found["totals"][0]["looks"] + found["totals"][1]["looks"] == len(asked)


def test_the_same_settings_find_the_same(recorded: Site) -> None:
    found, _ = compared(recorded, plan(), (T0 + 6, T0 + 8.5))
    assert (found["same"], [each["change"] for each in found["alerts"]]) == (True, ["same"])
    assert found["settings"] == []


def test_a_recording_that_is_gone_is_said(recorded: Site) -> None:
    with pytest.raises(SourceError, match="holds no picture of the time asked for"):
        compared(recorded, plan(), (T0 + 500, T0 + 510))


def test_a_page_lists_some_alerts_and_a_trial_that_counts_them_all(
    recorded: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alerts that both raise come last: without them the share of new ones would be too large."""
    monkeypatch.setattr(trial_replay, "LISTED_MAX", 0)
    page, _ = compared(recorded, plan(), (T0 + 6, T0 + 8.5))
    assert (page["alerts"], page["left_out"]["alerts"]) == ([], 1)
    trial, _ = compared(recorded, plan(), (T0 + 6, T0 + 8.5), every_alert=True)
    assert ([each["change"] for each in trial["alerts"]], trial["left_out"]["alerts"]) == (["same"], 0)

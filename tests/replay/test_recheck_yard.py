"""What the box says after a second look with its own network at rendered footage: who is there, and who is not."""

from __future__ import annotations

import pytest

from appliance.base.clock import ManualClock, SystemClock
from appliance.base.config_model import DetectorConfig
from appliance.detect import detector_loader
from appliance.recheck.recheck_policy import judge_recheck
from appliance.recheck.worker import RecheckWorker
from appliance.router.calibration import UNTRAINED
from appliance.store.database import Database
from appliance.types import CropRequest, EdgeVerdict, FootageSpan, RecheckCommand, TrackStability
from tests.support.recheck_yard import FPS, PATH, record, walk

T0 = 1_700_000_000.0
SEEN = TrackStability(score=0.6, spread=0.1, looks=12, moved=1.0)


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> RecheckWorker:
    root = tmp_path_factory.mktemp("box")
    db = Database(root / "vedette.db", ManualClock(T0))
    record(root, db, T0)
    db.close()
    eye = detector_loader.load(DetectorConfig(model="vedette-nano"))
    return RecheckWorker(root, lambda: eye, print, SystemClock())


def said(again: RecheckWorker, *, away: bool) -> EdgeVerdict:
    looks = sorted(walk(away=away).items())
    sight = again.recheck(
        RecheckCommand(
            id="a.1",
            camera="gate",
            glimpses=tuple(CropRequest(t=T0 + frame / FPS, box=box) for frame, box in looks[:: len(looks) // 3]),
            footage=(FootageSpan(path=PATH, t_start=T0, t_end=T0 + 62.0),),
        )
    )
    assert sight.error == ""
    return judge_recheck(
        "person", SEEN, sight, "this site asks no cloud", lambda seen: UNTRAINED.probability("", "person", seen)
    )


def test_who_walks_through_the_yard_is_found_again(again: RecheckWorker) -> None:
    verdict = said(again, away=False)
    assert (verdict.decision, verdict.seen) == ("rechecked", verdict.looks)
    assert verdict.confidence > 0.9


def test_at_an_empty_place_the_appliance_is_unsure_and_no_more(again: RecheckWorker) -> None:
    verdict = said(again, away=True)
    assert (verdict.decision, verdict.seen) == ("unsure", 0)
    assert verdict.confidence < 0.3
    assert "the alert stands" in verdict.reason

"""Rules tried on stored boxes: what the live pipeline would have reported, no less and no more."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from appliance.alerts.pipeline import Pipeline
from appliance.base.clock import ManualClock
from appliance.config import AlertsConfig, CameraConfig
from appliance.settings.rule_trial import try_rules
from appliance.store.boxes import BoxStore
from appliance.store.cameras import CameraStore
from appliance.store.database import Database
from appliance.types import FrameBoxes, StreamHeader, TrackedObject

T0 = 1_700_000_000.0
ALERTS = AlertsConfig(merge_s=3)


def camera(left: float = 0.4, **rule: object) -> CameraConfig:
    zone = [[left, 0], [1, 0], [1, 1], [left, 1]]
    return CameraConfig.model_validate(
        {"url": "file:x", "zones": {"z": zone}, "rules": [{"name": "r", "kind": "enter", "zone": "z", **rule}]}
    )


def visits(seed: int, seconds: int, every_s: float = 40.0) -> list[tuple[str, FrameBoxes]]:
    """People who come in from the left, stop somewhere and go, in two sessions; between them examined and empty."""
    rng = random.Random(seed)
    frames: list[tuple[str, FrameBoxes]] = []
    t, track, seq = 0.0, 0, 0
    while t < seconds:
        run = "r1" if t < seconds / 2 else "r2"
        track, reach = track + 1, rng.uniform(0.2, 0.8)
        walk = [min(reach, 0.03 * n) for n in range(rng.randint(20, 60))]
        for x in walk:
            seq, t = seq + 1, t + 0.2
            found = TrackedObject(track=track, label="person", score=0.9, box=(x, 0.3, x + 0.1, 0.7))
            frames.append((run, _frame(seq, t, (found,))))
        end = t + rng.uniform(1, every_s)
        while t < end:
            seq, t = seq + 1, t + rng.choice((0.2, 4.0))
            frames.append((run, _frame(seq, t, ())))
    return frames


def _frame(seq: int, t: float, objects: tuple[TrackedObject, ...]) -> FrameBoxes:
    return FrameBoxes(camera="gate", seq=seq, frame=seq, t=T0 + t, looked=True, objects=objects)


def stored(folder: Path, frames: list[tuple[str, FrameBoxes]], db: Database | None = None) -> BoxStore:
    store = BoxStore(db or Database(folder / "v.db", ManualClock(T0)))
    for run in ("r1", "r2"):
        store.append("gate", run, [frame for each, frame in frames if each == run])
    return store


def live(frames: list[tuple[str, FrameBoxes]], settings: CameraConfig) -> list[tuple[float, float | None]]:
    """What the pipeline reports when every frame is fed."""
    pipeline, run, ended = Pipeline("gate", settings, ALERTS), "", []
    for each, frame in frames:
        steps = []
        if each != run:
            run = each
            steps.append(pipeline.feed(StreamHeader(camera="gate", clip="", model="", size=(640, 360), run=run)))
        steps.append(pipeline.feed(frame))
        ended += [change.alert for step in steps for change in step.changes if change.kind == "ended"]
    ended += [change.alert for change in pipeline.close(frames[-1][1].t, "end").changes if change.kind == "ended"]
    return [(alert.t_start, alert.t_end) for alert in ended]


@pytest.mark.parametrize("seed", range(4))
def test_it_reports_what_the_live_pipeline_would_have_reported(tmp_path: Path, seed: int) -> None:
    frames = visits(seed, 1200)
    store = stored(tmp_path, frames)
    now, then = camera(0.4), camera(0.65)
    trial = try_rules(store, "gate", (640, 360), (now, ALERTS), (then, ALERTS), (T0, T0 + 9999))
    assert trial.frames == len(frames)
    for side, settings in ((trial.now, now), (trial.then, then)):
        assert [(alert.t_start, alert.t_end) for alert in side.alerts] == live(frames, settings)
        assert side.count == len(side.alerts) > 3
    assert trial.now.count > trial.then.count
    assert sum(trial.then.events.values()) >= trial.then.count
    assert not any(alert.new for alert in trial.then.alerts), "a smaller zone reports nothing new"
    back = try_rules(store, "gate", (640, 360), (then, ALERTS), (now, ALERTS), (T0, T0 + 9999))
    assert sum(alert.new for alert in back.then.alerts) == trial.now.count - trial.then.count


FESTEST_DET = {"person": (0.8, -0.3)}  # about: its 0.52 is 0.44 on the common scale


def doubtful(run: str, t: float, x: float = 0.5) -> list[tuple[str, FrameBoxes]]:
    """Somebody whom the network gives 0.52 from its session's first frame on, for four seconds."""
    found = TrackedObject(track=1, label="person", score=0.52, box=(x, 0.3, x + 0.1, 0.7))
    return [(run, _frame(n, t + n / 5, (found,))) for n in range(20)]


def begin(
    folder: Path, frames: list[tuple[str, FrameBoxes]], calibration: dict[str, tuple[float, float]] | None = None
) -> BoxStore:
    """The boxes and headers of two sessions; the second knows what stood there before."""
    db = Database(folder / "v.db", ManualClock(T0))
    cameras = CameraStore(db)
    for run in ("r1", "r2"):
        cameras.write_header(
            StreamHeader(
                camera="gate", clip="", model="m", size=(640, 360), run=run, known_before=run == "r2",
                calibration=calibration or {},
            )
        )  # fmt: skip
    return stored(folder, frames, db)


@pytest.mark.parametrize(("calibration", "count"), [({}, 1), (FESTEST_DET, 0)])
def test_scores_are_put_on_the_common_scale_as_they_were_live(
    tmp_path: Path, calibration: dict[str, tuple[float, float]], count: int
) -> None:
    store = begin(tmp_path, doubtful("r1", 0), calibration)
    rules = camera(at_start="report"), ALERTS
    assert try_rules(store, "gate", (640, 360), rules, rules, (T0, T0 + 99)).now.count == count


def test_after_a_reconnection_who_is_there_has_come_meanwhile(tmp_path: Path) -> None:
    """In the first session, and in the middle of one where the span begins, they may have stood there before."""
    store = begin(tmp_path, [*doubtful("r1", 0), *doubtful("r2", 60)])
    rules = camera(score_min=0.5), ALERTS
    for begins, count in ((0, 1), (50, 1), (60.5, 0)):
        trial = try_rules(store, "gate", (640, 360), rules, rules, (T0 + begins, T0 + 99))
        assert trial.now.count == count


def test_only_the_span_is_tried_and_cooldown_is_counted(tmp_path: Path) -> None:
    frames = visits(1, 1200)
    store = stored(tmp_path, frames)
    now, then = camera(), camera(cooldown_s=3600)
    trial = try_rules(store, "gate", (640, 360), (now, ALERTS), (then, ALERTS), (T0, T0 + 600))
    assert trial.frames == sum(frame.t <= T0 + 600 for _, frame in frames)
    assert trial.then.count == 1
    assert trial.then.suppressed >= trial.now.count - 1


def test_a_day_takes_as_long_as_its_visits_not_as_its_frames(tmp_path: Path) -> None:
    """Side by side: the empty frames of a day against its visits; both in CPU time of this thread."""
    quiet = [("r1", _frame(n, 0.2 * n, ())) for n in range(60_000)]
    busy = visits(3, 600, every_s=2.0)
    (tmp_path / "q").mkdir()
    (tmp_path / "b").mkdir()
    costs = []
    for folder, frames in (("q", quiet), ("b", busy)):
        store = stored(tmp_path / folder, frames)
        began = time.thread_time()
        try_rules(store, "gate", (640, 360), (camera(), ALERTS), (camera(0.6), ALERTS), (T0, T0 + 99999))
        costs.append((time.thread_time() - began) / len(frames))
    assert costs[0] < costs[1] / 3

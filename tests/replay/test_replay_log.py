"""Same footage in, same log out; and what is in it is what was accepted.

`pytest tests/replay/test_replay_log.py --update` accepts what a replay finds now as the new golden files.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import av
import pytest
import yaml

from appliance.alerts.pipeline import Pipeline
from appliance.base.json_lines import decode_log
from appliance.config import AlertsConfig, SiteConfig
from appliance.detect import detector_loader
from appliance.replay.replay_result import ReplayResult
from appliance.types import Alert, Box, Event, FrameBoxes, LogLine, StreamHeader, TrackedObject
from tests.support.clip_replay import replay

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "fixtures" / "golden"
YARD = ROOT / "fixtures" / "clips" / "yard.mp4"
BOX_TOLERANCE, SCORE_TOLERANCE = 0.004, 0.02
PETS_RULES: dict[str, object] = {
    "zones": {"crossroads": [[0.30, 0.45], [0.75, 0.45], [0.75, 0.85], [0.30, 0.85]]},
    "lines": {"middle": [[0.5, 0.95], [0.5, 0.25]]},
    "rules": [
        {"name": "enters", "kind": "enter", "zone": "crossroads", "severity": "alert"},
        {"name": "leaves", "kind": "exit", "zone": "crossroads"},
        {"name": "loiters", "kind": "dwell", "zone": "crossroads", "seconds": 10},
        {"name": "eastward", "kind": "line", "line": "middle", "direction": "left_to_right"},
        {"name": "westward", "kind": "line", "line": "middle", "direction": "right_to_left"},
    ],
}
# Two looks a second: the built-in detector takes a tenth of a second for each, and every look is paid twice here.
YARD_RULES: dict[str, object] = {
    "detect": {"fps": 2},
    "zones": {"yard": [[0.05, 0.35], [0.95, 0.35], [0.95, 1.0], [0.05, 1.0]]},
    "lines": {"middle": [[0.5, 1.0], [0.5, 0.2]]},
    "rules": [
        {"name": "intruder", "kind": "enter", "zone": "yard", "severity": "alert"},
        {"name": "leaver", "kind": "exit", "zone": "yard"},
        {"name": "loiterer", "kind": "dwell", "zone": "yard", "seconds": 20},
        {"name": "eastward", "kind": "line", "line": "middle", "direction": "left_to_right"},
        {"name": "westward", "kind": "line", "line": "middle", "direction": "right_to_left"},
    ],
}


@dataclass(frozen=True)
class Scene:
    """A clip with its site file, replayed once."""

    clip: Path
    site: dict[str, object]
    result: ReplayResult
    log: bytes


def play(clip: Path, model: str, camera: dict[str, object]) -> Scene:
    site: dict[str, object] = {"detector": {"model": model}, "cameras": {"gate": {"url": "file:clip.mp4", **camera}}}
    config = SiteConfig.model_validate(site)
    log = io.BytesIO()
    return Scene(
        clip,
        site,
        replay(clip, config.for_decisions(), "gate", detector_loader.load(config.detector), log),
        log.getvalue(),
    )


@pytest.fixture(scope="module")
def yard() -> Scene:
    return play(YARD, "builtin:hog", YARD_RULES)


@pytest.fixture(scope="module")
def pets(shared_data: Path) -> Scene:
    model = shared_data / "models" / "deimv2_hgnetv2_femto_coco_416.onnx"
    return play(shared_data / "footage" / "pets09_s2l1_vtest_768x576.mp4", str(model), PETS_RULES)


def beginning(source: Path, target: Path, seconds: float) -> None:
    """The first seconds of a clip, its packets as they are."""
    with av.open(str(source)) as whole, av.open(str(target), "w") as cut:
        stream = whole.streams.video[0]
        made = cut.add_stream_from_template(stream)
        for packet in whole.demux(stream):
            if packet.dts is not None and packet.dts * packet.time_base < seconds:
                packet.stream = made
                cut.mux(packet)


def replay_elsewhere(scene: Scene, folder: Path, seconds: float | None = None) -> bytes:
    """The log of a second replay: another process, another folder, another hash seed, by the command.

    With `seconds`: of the beginning alone, which knows nothing of what comes after it.
    """
    clip, site, log = folder / scene.clip.name, folder / "site.yaml", folder / "out.jsonl"
    if seconds is None:
        clip.symlink_to(scene.clip.resolve())
    else:
        beginning(scene.clip, clip, seconds)
    site.write_text(yaml.safe_dump(scene.site))
    subprocess.run(
        [sys.executable, "-m", "appliance", "replay", clip.name, "--config", site.name, "--log", log.name, "--json"],
        cwd=folder,
        env={**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return log.read_bytes()


def until_t(log: bytes, t: float) -> list[bytes]:
    """The lines of what was seen and decided before `t`, without their numbers, which are another film's."""
    number = re.compile(rb'"(id|event|alert)":"[0-9a-f]{16}"')
    return [number.sub(b"", line) for line in log.splitlines() if json.loads(line).get("t", t) < t]


@pytest.mark.timeout(300)
def test_the_beginning_of_the_yard_replayed_twice_gives_the_same_bytes(yard: Scene, tmp_path: Path) -> None:
    seen = until_t(yard.log, 17.0)
    assert until_t(replay_elsewhere(yard, tmp_path, 18.0), 17.0) == seen
    assert sum(b'"type":"event"' in line for line in seen) > 0


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.timeout(300)
def test_the_beginning_of_pets_replayed_twice_gives_the_same_bytes(pets: Scene, tmp_path: Path) -> None:
    seen = until_t(pets.log, 19.0)
    assert until_t(replay_elsewhere(pets, tmp_path, 20.0), 19.0) == seen
    assert sum(b'"type":"event"' in line for line in seen) > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("scene", ["yard", pytest.param("pets", marks=pytest.mark.shared)])
def test_a_clip_replayed_twice_gives_the_same_bytes(scene: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    whole: Scene = request.getfixturevalue(scene)
    assert replay_elsewhere(whole, tmp_path) == whole.log


@pytest.mark.timeout(300)
def test_the_yard_is_as_it_was_accepted(yard: Scene, update: bool) -> None:
    golden = GOLDEN / "yard.hog.jsonl"
    if update:
        golden.write_bytes(yard.log)
    found, accepted = ([decode_log(line) for line in log.splitlines()] for log in (yard.log, golden.read_bytes()))
    differences = [
        f"line {number}: {b}\n  accepted: {a}"
        for number, (a, b) in enumerate(zip(accepted, found, strict=False), start=1)
        if not alike(a, b)
    ]
    assert not differences, "\n".join(differences[:5])
    assert len(found) == len(accepted)


@pytest.mark.timeout(300)
def test_everyone_who_comes_into_the_yard_is_reported_and_no_one_else(yard: Scene) -> None:
    """Against the truth that the renderer wrote. A person whose track breaks enters twice: that is not counted here."""
    truth = json.loads((YARD.parent / "yard.truth.json").read_text())
    persons = [each["visible_s"][0] for each in truth["objects"] if each["class"] == 1]
    entries = [event.t for event in yard.result.events if event.rule == "intruder"]
    assert len(persons) == 4
    assert len(entries) >= len(persons)
    for begin, end in persons:
        assert any(begin <= t <= end for t in entries), f"nobody entered between {begin} and {end}"
    for t in entries:
        assert any(begin <= t <= end + 1 for begin, end in persons), f"at {t} nobody was there"


@pytest.mark.shared
@pytest.mark.timeout(300)
def test_pets_counts_are_as_they_were_accepted(pets: Scene, update: bool) -> None:
    """Frames and looks exactly; boxes within 1 % and events within one a rule, as another CPU rounds otherwise."""
    result = pets.result
    counted = {
        "frames": result.end.frames,
        "examined": result.end.examined,
        "boxes": result.boxes,
        "tracks": result.tracks,
        "alerts": len(result.alerts),
        "events": dict(sorted(Counter(event.rule for event in result.events).items())),
    }
    accepted = accept("pets.femto.json", counted, update)
    assert (counted["frames"], counted["examined"]) == (accepted["frames"], accepted["examined"]) == (795, 398)
    assert counted["boxes"] == pytest.approx(accepted["boxes"], rel=0.01)
    assert counted["tracks"] == pytest.approx(accepted["tracks"], abs=2)
    assert counted["alerts"] == accepted["alerts"]
    assert counted["events"] == pytest.approx(accepted["events"], abs=1)


@pytest.mark.shared
def test_the_true_boxes_of_pets_make_exactly_the_accepted_events(shared_data: Path, update: bool) -> None:
    """Rules and policy without a detector: every figure is exact on every machine."""
    config = SiteConfig.model_validate({"cameras": {"gate": {"url": "file:clip.mp4", **PETS_RULES}}})
    pipeline = Pipeline("gate", config.cameras["gate"], AlertsConfig())
    pipeline.feed(StreamHeader(camera="gate", clip="pets", model="truth", size=(768, 576), run="truth"))
    steps = [pipeline.feed(frame) for frame in true_boxes(shared_data / "groundtruth" / "pets09_s2l1" / "gt.txt")]
    events = [event for step in steps for event in step.events]
    counted = dict(sorted(Counter(event.rule for event in events).items()))
    assert counted == accept("pets.truth.json", counted, update)
    for track in {event.track for event in events}:
        for one, other in (("enters", "leaves"), ("eastward", "westward")):
            texts = [event.rule for event in events if event.track == track and event.rule in (one, other)]
            assert all(a != b for a, b in itertools.pairwise(texts)), f"track {track} does {texts}"


def true_boxes(file: Path) -> Iterator[FrameBoxes]:
    """Every second frame of the annotation, as a perfect detector and tracker would report it."""
    rows: dict[int, list[TrackedObject]] = {}
    for line in file.read_text().splitlines():
        frame, track, x, y, w, h = (float(part) for part in line.split(",")[:6])
        box: Box = (
            round(max(0.0, x / 768), 4),
            round(max(0.0, y / 576), 4),
            round(min(1.0, (x + w) / 768), 4),
            round(min(1.0, (y + h) / 576), 4),
        )
        rows.setdefault(int(frame) - 1, []).append(TrackedObject(track=int(track), label="person", score=0.9, box=box))
    for seq, frame in enumerate(range(0, 795, 2)):
        objects = tuple(rows.get(frame, ()))
        yield FrameBoxes(camera="gate", seq=seq, frame=frame, t=round(frame / 10, 3), looked=True, objects=objects)


def accept(name: str, found: dict[str, object], update: bool) -> dict[str, object]:
    """What was accepted; with --update what is found now becomes that."""
    if update:
        (GOLDEN / name).write_text(json.dumps(found, indent=1) + "\n")
    accepted: dict[str, object] = json.loads((GOLDEN / name).read_text())
    return accepted


def alike(a: LogLine, b: LogLine) -> bool:
    """Equal but for what another CPU's arithmetic may change: the last places of boxes and scores."""
    return _plain(a) == _plain(b) and all(
        len(one) == len(other) and all(abs(x - y) <= tolerance for x, y in zip(one, other, strict=True))
        for one, other, tolerance in ((_boxes(a), _boxes(b), BOX_TOLERANCE), (_scores(a), _scores(b), SCORE_TOLERANCE))
    )


def _plain(line: LogLine) -> object:
    if isinstance(line, FrameBoxes):
        return line.frame, line.t, line.looked, [(found.track, found.label) for found in line.objects]
    if isinstance(line, Event):
        return line.rule, line.kind, line.track, line.label, line.t, line.zone, line.line, line.severity, line.id
    if isinstance(line, Alert):
        return line.id, line.rules, line.severity, line.t_start, line.t_end, line.tracks, line.end_reason
    return line


def _boxes(line: LogLine) -> list[float]:
    if isinstance(line, FrameBoxes):
        return [side for found in line.objects for side in found.box]
    return list(line.box) if isinstance(line, Event) else []


def _scores(line: LogLine) -> list[float]:
    if isinstance(line, FrameBoxes):
        return [found.score for found in line.objects]
    return [line.score] if isinstance(line, Event | Alert) else []


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (lambda found: TrackedObject(track=1, label="person", score=found.score + 0.01, box=found.box), True),
        (lambda found: TrackedObject(track=1, label="person", score=found.score + 0.1, box=found.box), False),
        (lambda found: TrackedObject(track=2, label="person", score=found.score, box=found.box), False),
        (lambda found: TrackedObject(track=1, label="person", score=found.score, box=(0.1, 0.1, 0.3, 0.41)), False),
    ],
    ids=["rounding", "score", "track", "box"],
)
def test_the_comparison_bites(change: Callable[[TrackedObject], TrackedObject], same: bool) -> None:
    found = TrackedObject(track=1, label="person", score=0.5, box=(0.1, 0.1, 0.3, 0.4))
    one, other = (
        FrameBoxes(camera="gate", seq=0, frame=0, t=0.0, looked=True, objects=(each,))
        for each in (found, change(found))
    )
    assert alike(one, other) is same

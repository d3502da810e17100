"""The rendered fixture family for tests: its scenarios, eyes that look once, and golden logs held against new ones."""

from __future__ import annotations

import functools
import hashlib
import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.base.config_model import DetectorConfig, Precision
from appliance.detect import detector_loader
from appliance.detect.detector import ObjectDetector, VariableInput
from appliance.lab import replay_diff_command
from appliance.replay import replay_runner
from appliance.replay.footage import ClipReader
from appliance.replay.replay_diff import compare_logs
from appliance.replay.replay_log_writer import LogSink
from appliance.replay.replay_plan import ReplayOptions, ReplayPlan
from appliance.replay.replay_result import RecordedLog, ReplayResult, read_log
from appliance.scenario import scenario_loader, scenario_runner
from appliance.scenario.scenario_loader import ScenarioPlan
from appliance.scenario.scenario_result import ScenarioResult
from appliance.types import Alert, Detections, Event, FrameBoxes, TrackedObject
from fixtures.render.clip import Row, read_rows
from tests.support.clip_replay import replay

ROOT = Path(__file__).parents[2]
FAMILY = ROOT / "fixtures" / "family"
GOLDEN = ROOT / "fixtures" / "golden"
SCENARIOS = ROOT / "fixtures" / "scenarios"
NAMES = (
    *("day", "dusk", "infrared", "rain", "empty", "crowd", "far", "vehicles", "dog", "parked", "occlusion"),
    "ir_rain",
)
# What another CPU's arithmetic may change: the last places, and, at a threshold, whether a look saw somebody.
BOX_TOLERANCE, SCORE_TOLERANCE, TIME_TOLERANCE_S = 0.006, 0.03, 0.21
BOXES_APART = 0.05
# As COCO's networks call what the renderer's truth numbers.
LABELS = ("person", "truck", "car", "dog")


def loaded(name: str) -> ScenarioPlan:
    return scenario_loader.load_scenario(SCENARIOS / f"{name}.scenario.yaml")


def shape_step_of(eye: ObjectDetector) -> int:
    return eye.shape_step if isinstance(eye, VariableInput) else 0


class Once:
    """A detector that looks at each picture once and remembers the answer: a dozen tests then cost as much as one."""

    warning = ""

    def __init__(self, eye: ObjectDetector) -> None:
        self._eye = eye
        self.name, self.labels = eye.name, eye.labels
        self.shape_step = shape_step_of(eye)
        self._known: dict[bytes, Detections] = {}

    def preferred_size(self, width: int, height: int) -> tuple[int, int]:
        return self._eye.preferred_size(width, height)

    def detect(self, images: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        return [self._look(image) for image in images]

    def _look(self, image: NDArray[np.uint8]) -> Detections:
        key = hashlib.blake2b(np.ascontiguousarray(image).tobytes() + repr(image.shape).encode()).digest()
        if key not in self._known:
            (self._known[key],) = self._eye.detect([image])
        return self._known[key]


def our_eye(precision: Precision = "auto") -> Once:
    """Return the bundled network; `int8` is what `auto` takes on most CPUs, once it has measured."""
    return Once(detector_loader.load(DetectorConfig(precision=precision)))


class Less:
    """A worse network: it finds what another finds, and is so much less sure of it."""

    warning = ""

    def __init__(self, eye: ObjectDetector, share: float) -> None:
        self._eye, self._share = eye, np.float32(share)
        self.name, self.labels = f"{share:g} of {eye.name}", eye.labels
        self.shape_step = shape_step_of(eye)

    def preferred_size(self, width: int, height: int) -> tuple[int, int]:
        return self._eye.preferred_size(width, height)

    def detect(self, images: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        found = self._eye.detect(images)
        return [Detections(each.boxes, each.scores * self._share, each.class_ids) for each in found]


class Truth:
    """A detector that knows: it tells by the picture which frame it looks at, and gives that frame's true boxes."""

    name, warning, labels = "scripted:truth", "", LABELS
    _SIZE = (128, 72)

    def __init__(self, name: str, visible_min: float = 0.3) -> None:
        story = json.loads((FAMILY / f"{name}.truth.json").read_text())
        self._whole = np.array([story["width"], story["height"]] * 2, np.float32)
        self._frames = self._numbers(name)
        self._rows: dict[int, list[Row]] = {}
        for row in read_rows(FAMILY / f"{name}.gt.txt"):
            if row.visibility >= visible_min:
                self._rows.setdefault(row.frame, []).append(row)

    def preferred_size(self, width: int, height: int) -> tuple[int, int]:
        return self._SIZE

    def detect(self, images: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        frames = [self._frames.get(np.ascontiguousarray(image).tobytes()) for image in images]
        assert None not in frames, "a picture that is none of the film's"
        return [self._known(frame) for frame in frames if frame is not None]

    @classmethod
    @functools.lru_cache(maxsize=4)  # the tests of one film come one after the other
    def _numbers(cls, name: str) -> dict[bytes, int]:
        """Return the number of the frame, from 1, by its picture as it is looked at."""
        found: dict[bytes, int] = {}
        with ClipReader(str(FAMILY / f"{name}.mp4")) as clip:
            for frame in clip.frames():
                width, height = cls._SIZE
                image = frame.av_frame.to_ndarray(format="bgr24", width=width, height=height, interpolation="AREA")
                found.setdefault(image.tobytes(), frame.index + 1)
        return found

    def _known(self, frame: int) -> Detections:
        rows = self._rows.get(frame, [])
        boxes = np.array([[r.x, r.y, r.x + r.w, r.y + r.h] for r in rows], np.float32).reshape(-1, 4) / self._whole
        kinds = np.array([row.kind - 1 for row in rows], np.int32)
        return Detections(boxes, np.full(len(rows), 0.9, np.float32), kinds)


def log_of(scenario: ScenarioPlan, eye: ObjectDetector) -> bytes:
    """The replay log of the scenario's clip, without what a router would ask: that is measured elsewhere."""
    part, log = scenario.parts[0], io.BytesIO()
    replay(part.clip, scenario.config, part.camera, eye, log)
    return without_escalations(log.getvalue())


class Both:
    """A replay log's sink that writes each line to two others."""

    def __init__(self, one: LogSink, other: LogSink) -> None:
        self._one, self._other = one, other

    def write(self, line: bytes, /) -> int:
        self._one.write(line)
        return self._other.write(line)

    def flush(self) -> None:
        self._one.flush()
        self._other.flush()


def judged_and_logged(scenario: ScenarioPlan, eye: ObjectDetector) -> tuple[ScenarioResult, bytes]:
    """Run the scenario; return its result, and what `log_of` returns for it, of the same replay."""
    log = io.BytesIO()

    def play(plan: ReplayPlan, spool: LogSink, options: ReplayOptions) -> tuple[ReplayResult, ...]:
        return replay_runner.play(plan, Both(spool, log), options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scenario_runner, "play", play)
        result = scenario_runner.run_scenario(scenario, scenario_runner.DetectorCache(load=lambda _: eye))
    return result, without_escalations(log.getvalue())


def without_escalations(log: bytes) -> bytes:
    """Return the log without the lines of the router and of verdicts."""
    return b"".join(line for line in log.splitlines(keepends=True) if not line.startswith(_ASKED))


_ASKED = tuple(f'{{"type":"{kind}"'.encode() for kind in ("route", "verdict"))


def against(golden: Path, found: bytes, folder: Path) -> str:
    """What differs from the accepted log, in the words of `vedette replay diff`; '' where nothing that matters does."""
    if golden.read_bytes() == found:
        return ""
    new = folder / golden.name
    new.write_bytes(found)
    before, after = read_log(golden), read_log(new)
    if not (_decided(before, after) or _seen(before, after)):
        return ""
    return "\n".join(replay_diff_command.diff_texts(compare_logs(before, after)))


def _decided(before: RecordedLog, after: RecordedLog) -> bool:
    """Whether events and alerts differ: which, in what order; when, by more than a look."""
    one, other = ([line for line in log.lines if isinstance(line, Event | Alert)] for log in (before, after))
    return len(one) != len(other) or any(
        _reported(a) != _reported(b) or abs(_t(a) - _t(b)) > TIME_TOLERANCE_S for a, b in zip(one, other, strict=True)
    )


def _reported(line: Event | Alert) -> object:
    if isinstance(line, Event):
        return line.camera, line.rule, line.kind, line.label, line.zone, line.line, line.severity
    return line.camera, line.rules, line.severity, line.labels, len(line.tracks)


def _t(line: Event | Alert) -> float:
    return line.t if isinstance(line, Event) else line.t_start


def _seen(before: RecordedLog, after: RecordedLog) -> bool:
    """Whether more than a few objects were found elsewhere or not at all, or other frames were looked at."""
    one, other = ([line for line in log.lines if isinstance(line, FrameBoxes)] for log in (before, after))
    if [(look.frame, look.t, look.looked) for look in one] != [(look.frame, look.t, look.looked) for look in other]:
        return True
    apart = sum(_apart(a.objects, b.objects) for a, b in zip(one, other, strict=True))
    return apart > max(2, BOXES_APART * sum(len(look.objects) for look in one))


def _apart(one: Sequence[TrackedObject], other: Sequence[TrackedObject]) -> int:
    """How many objects of one look have none like them in the other; their numbers are only names."""
    left = list(other)
    alone = 0
    for found in one:
        same = next((each for each in left if _is(found, each)), None)
        if same is None:
            alone += 1
        else:
            left.remove(same)
    return max(alone, len(left))


def _is(one: TrackedObject, other: TrackedObject) -> bool:
    near = all(abs(a - b) <= BOX_TOLERANCE for a, b in zip(one.box, other.box, strict=True))
    return one.label == other.label and near and abs(one.score - other.score) <= SCORE_TOLERANCE

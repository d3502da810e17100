"""Trackers of other projects behind one method, and our metrics beside those of other projects, where installed.

Each tracker with its defaults and `matched`: told our thresholds (0.4 takes part, 0.5 begins, two looks confirm), our
least overlap and 2.5 s of memory, which suits five looks a second far better than defaults made for 30.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import io
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from appliance.base.box_arrays import iou_matrix
from appliance.scenario import metrics
from appliance.scenario.metrics import LabelledBoxes
from appliance.types import Box
from benchmarks.tracking_scenes import FrameDetections

Answer = tuple[int, Box]
"""A number and where it is, in shares of the picture."""
Rival = tuple[str, str, Callable[[], "LibraryTracker"]]

_MEMORY_S = 2.5
_HIGH, _BEGIN, _OVERLAP = 0.4, 0.5, 0.1


class LibraryTracker(Protocol):
    """One tracker at work. not_counted_s: CPU seconds inside `follow` that are not its own."""

    not_counted_s: float

    def follow(self, frame: FrameDetections) -> Sequence[Answer]: ...


def available(class_id: int, fps: float, size: tuple[int, int]) -> tuple[list[Rival], list[str]]:
    """Return all trackers that can be made here, for one class at a rate, and the names of what is not installed."""
    rivals: list[Rival] = []
    absent = []
    for package, make in (("trackers", _trackers), ("supervision", _supervision), ("norfair", _norfair)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = make(importlib.import_module(package), class_id, fps, size)
        except ImportError:
            found = []
        if not found:
            absent.append(package if package != "supervision" else "supervision with ByteTrack (up to 0.27)")
        version = importlib.metadata.version(package) if found else ""
        rivals += [(f"{name} ({package} {version})", settings, follower) for name, settings, follower in found]
    return rivals, absent


def _trackers(module: Any, class_id: int, fps: float, size: tuple[int, int]) -> list[Rival]:
    """Return the trackers of Roboflow's `trackers` (Apache-2.0).

    BoT-SORT goes without its compensation of camera motion: the camera is fixed.
    """
    patient = {"frame_rate": fps, "lost_track_buffer": round(30 * _MEMORY_S)}
    ours = {**patient, "track_activation_threshold": _BEGIN, "minimum_consecutive_frames": 2}
    two_stage = {**ours, "high_conf_det_threshold": _HIGH}
    three = {
        **two_stage,
        "minimum_iou_threshold_first_assoc": _OVERLAP,
        "minimum_iou_threshold_unconfirmed_assoc": _OVERLAP,
        "instant_first_frame_activation": False,
    }
    oc_sort = {
        **patient,
        "minimum_consecutive_frames": 2,
        "high_conf_det_threshold": _HIGH,
        "minimum_iou_threshold": _OVERLAP,
    }
    plans: list[tuple[str, str, dict[str, Any], float]] = [
        ("SORT", "SORTTracker", {**ours, "minimum_iou_threshold": _OVERLAP}, _HIGH),
        ("ByteTrack", "ByteTrackTracker", {**two_stage, "minimum_iou_threshold": _OVERLAP}, 0.1),
        ("OC-SORT", "OCSORTTracker", oc_sort, 0.1),
        ("BoT-SORT", "BoTSORTTracker", {**three, "enable_cmc": False}, 0.1),
        ("C-BIoU", "CBIoUTracker", three, 0.1),
    ]
    found: list[Rival] = []
    for name, cls, matched, score_min in plans:
        made = getattr(module, cls, None)
        if made is None:
            continue
        default = {"frame_rate": fps, **({"enable_cmc": False} if name == "BoT-SORT" else {})}
        for settings, options, lowest in (("default", default, 0.1), ("matched", matched, score_min)):
            found.append((name, settings, _later(_Supervised, made, options, "update", class_id, lowest, size)))
    return found


def _supervision(module: Any, class_id: int, fps: float, size: tuple[int, int]) -> list[Rival]:
    """Return the tracker of `supervision` (MIT); its matching threshold is a distance, 1 - IoU."""
    made = getattr(module, "ByteTrack", None)
    if made is None:
        return []
    matched = {
        "frame_rate": fps,
        "track_activation_threshold": _BEGIN,
        "lost_track_buffer": round(30 * _MEMORY_S),
        "minimum_matching_threshold": 1 - _OVERLAP,
        "minimum_consecutive_frames": 2,
    }
    return [
        ("ByteTrack", settings, _later(_Supervised, made, options, "update_with_detections", class_id, 0.1, size))
        for settings, options in (("default", {"frame_rate": fps}), ("matched", matched))
    ]


def _norfair(module: Any, class_id: int, fps: float, size: tuple[int, int]) -> list[Rival]:
    """Return the tracker of `norfair` (BSD-3-Clause).

    It knows no scores: objects below the first threshold are not shown to it.
    """
    memory = {"hit_counter_max": round(_MEMORY_S * fps), "initialization_delay": 1}
    plans: list[tuple[str, str, dict[str, Any]]] = [
        ("IoU", "default", {"distance_function": "iou", "distance_threshold": 0.7}),
        ("IoU", "matched", {"distance_function": "iou", "distance_threshold": 1 - _OVERLAP, **memory}),
        ("centres", "matched", {"distance_function": "euclidean", "distance_threshold": size[0] / 20, **memory}),
    ]
    return [(name, settings, _later(_Norfair, module, options, class_id, size)) for name, settings, options in plans]


def _later(make: Callable[..., LibraryTracker], *parts: Any) -> Callable[[], LibraryTracker]:
    return lambda: make(*parts)


class _Supervised:
    """A tracker that takes and gives `supervision.Detections`."""

    def __init__(
        self,
        made: Any,
        options: dict[str, Any],
        method: str,
        class_id: int,
        score_min: float,
        size: tuple[int, int],
    ) -> None:
        self.not_counted_s = 0.0
        self._sv = importlib.import_module("supervision")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._update = getattr(made(**options), method)
        self._class_id, self._score_min = class_id, score_min
        self._pixels = np.array([*size, *size], np.float32)

    def follow(self, frame: FrameDetections) -> list[Answer]:
        found = frame.found
        mine = found.select((found.class_ids == self._class_id) & (found.scores >= self._score_min))
        table_row = self._update(
            self._sv.Detections(
                xyxy=mine.boxes * self._pixels, confidence=mine.scores, class_id=mine.class_ids.astype(int)
            )
        )
        if table_row.tracker_id is None:
            return []
        pairs = zip(table_row.tracker_id, table_row.xyxy / self._pixels, strict=True)
        # -1: not confirmed.
        return [(int(number), _box(box)) for number, box in pairs if number is not None and number >= 0]


class _Norfair:
    """Answers are the detections that a track has just taken."""

    def __init__(self, module: Any, options: dict[str, Any], class_id: int, size: tuple[int, int]) -> None:
        self.not_counted_s = 0.0
        self._module = module
        self._tracker = module.Tracker(**options)
        self._class_id = class_id
        self._pixels = np.array([*size, *size], np.float32)

    def follow(self, frame: FrameDetections) -> list[Answer]:
        found = frame.found
        mine = found.select((found.class_ids == self._class_id) & (found.scores >= _HIGH))
        table_row = [
            self._module.Detection(points=(box * self._pixels).reshape(2, 2), scores=np.full(2, score), data=box)
            for box, score in zip(mine.boxes, mine.scores, strict=True)
        ]
        tracks = self._tracker.update(detections=table_row)
        fresh = {id(each) for each in table_row}
        return [
            (int(track.id), _box(track.last_detection.data)) for track in tracks if id(track.last_detection) in fresh
        ]


def _box(box: NDArray[np.floating[Any]]) -> Box:
    x1, y1, x2, y2 = (float(side) for side in box)
    return x1, y1, x2, y2


def check(found: Sequence[LabelledBoxes], right: Sequence[LabelledBoxes]) -> list[str]:
    """Return one sentence per library: its figures beside ours on the same answers."""
    return [_motmetrics(found, right), _trackeval(found, right)]


def _motmetrics(found: Sequence[LabelledBoxes], right: Sequence[LabelledBoxes]) -> str:
    try:
        module = importlib.import_module("motmetrics")
    except ImportError:
        return "not installed, arithmetic not checked against: motmetrics"
    book = module.MOTAccumulator(auto_id=True)
    for answer, true in zip(found, right, strict=True):
        apart = 1 - iou_matrix(true.boxes, answer.boxes)
        book.update(true.values.tolist(), answer.values.tolist(), np.where(apart > 0.5, np.nan, apart))
    names = ["mota", "idf1", "num_switches", "num_misses", "num_false_positives"]
    row = module.metrics.create().compute(book, metrics=names, name="x").iloc[0]
    ours = metrics.clear_mot(found, right)
    return (
        f"py-motmetrics: MOTA {row['mota']:.4f} IDF1 {row['idf1']:.4f} switches {row['num_switches']:.0f}; "
        f"ours: {ours.mota:.4f} {ours.idf1:.4f} {ours.switches}"
    )


def _trackeval(found: Sequence[LabelledBoxes], right: Sequence[LabelledBoxes]) -> str:
    try:
        module = importlib.import_module("trackeval")
    except ImportError:
        return "not installed, arithmetic not checked against: trackeval"
    data = {
        "num_timesteps": len(right),
        "num_gt_dets": sum(len(each.values) for each in right),
        "num_tracker_dets": sum(len(each.values) for each in found),
        "similarity_scores": [iou_matrix(true.boxes, answer.boxes) for answer, true in zip(found, right, strict=True)],
    }
    for side, looks in (("gt", right), ("tracker", found)):
        numbers = {value: index for index, value in enumerate(sorted({v for each in looks for v in each.values}))}
        data[f"{side}_ids"] = [np.array([numbers[v] for v in each.values], int) for each in looks]
        data[f"num_{side}_ids"] = len(numbers)
    with contextlib.redirect_stdout(io.StringIO()):
        theirs = module.metrics.HOTA().eval_sequence(data)
    ours = metrics.hota_figures(found, right).hota
    return f"TrackEval: HOTA {float(np.mean(theirs['HOTA'])):.4f}; ours: {ours:.4f}"

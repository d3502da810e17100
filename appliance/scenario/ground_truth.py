"""Reads true boxes (MOTChallenge text, CVAT video XML, COCO JSON) and holds a replay's boxes on disk to compare."""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any
from xml.etree import ElementTree

from appliance.base.errors import ConfigError
from appliance.base.json_lines import decode_log
from appliance.replay.footage_conditions import ConditionSet
from appliance.replay.frame_transform import shake_offset
from appliance.scenario.scenario_schema import TruthFile
from appliance.types import Box, FrameBoxes, TrackedObject

TRUTH_BYTES_MAX = 512 * 1024 * 1024  # hours of a crowd; a larger file is another one by mistake
_LAST_NUMBER = re.compile(r"(\d+)\D*$")
_TrackId = int  # below 0: the file has none for this box, so it can be detected but not tracked
_BOXES_LINE = b'{"type":"boxes"'


@dataclass(frozen=True, slots=True)
class TrueObject:
    """One object in one frame. id: its track, below 0 when the file has none.

    counts: False for an object that is ignored (marked so in the file, or smaller or more hidden than configured):
    detecting it is neither right nor wrong.
    """

    id: int
    label: str
    box: Box
    counts: bool


TrueFrames = Mapping[int, tuple[TrueObject, ...]]
"""Objects by 0-based frame of the clip; a frame that is absent has none."""


@dataclass(frozen=True, slots=True)
class LabelRow:
    """A box as a file has it: pixels (x1, y1, x2, y2), its own class name."""

    frame: int
    id: _TrackId
    name: str
    box: tuple[float, float, float, float]
    visible: float = 1.0
    ignored: bool = False
    line: int = 0  # from 1, where the format has lines


def read_labels(path: Path, settings: TruthFile) -> _Labels:
    """Read the rows of the file, and the frame size that it states. Raise ConfigError: it is not of its format."""
    kind = format_of(settings)
    try:
        if path.stat().st_size > TRUTH_BYTES_MAX:
            raise ConfigError(str(path), [f"over {TRUTH_BYTES_MAX} bytes"])
        rows, size = _READERS[kind](path)
        if size is not None and min(size) < 1:
            raise ValueError(f"its frame size is {size[0]}x{size[1]}")
        for row in rows:
            if not all(map(math.isfinite, row.box)):
                raise ValueError(f"a box of frame {row.frame} has no finite sides")
        return rows, size
    except KeyError as error:
        raise ConfigError(str(path), [f"not a file of {kind} truth: {error} is missing"]) from None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError, OverflowError, LookupError,
            ElementTree.ParseError) as error:  # fmt: skip
        raise ConfigError(str(path), [f"not a file of {kind} truth: {error}"]) from None


def read_truth(path: Path, settings: TruthFile, size: tuple[int, int]) -> TrueFrames:
    """Return the true objects with the configured labels.

    size: (width, height) of the clip, unless file or scenario has one. Raise ConfigError when the file cannot be read
    as its format.
    """
    rows, own_size = read_labels(path, settings)
    width, height = settings.size or own_size or size
    names = _names(path, settings, {row.name for row in rows})
    frames: dict[int, list[TrueObject]] = defaultdict(list)
    for row in rows:
        label = names.get(row.name, row.name)
        box = _relative_box(row.box, width, height)
        if label in settings.labels and box[2] > box[0] and box[3] > box[1]:
            hidden = row.visible < settings.visible_min or box[3] - box[1] < settings.height_min
            frames[row.frame].append(TrueObject(row.id, label, box, not (row.ignored or hidden)))
    if not frames:
        known = ", ".join(sorted({names.get(row.name, row.name) for row in rows})) or "no boxes"
        raise ConfigError(str(path), [f"no box of {' or '.join(settings.labels)} in the picture (it has: {known})"])
    return {frame: tuple(objects) for frame, objects in frames.items()}


def _names(path: Path, settings: TruthFile, written: set[str]) -> Mapping[str, str]:
    """Class names of the file to labels. MOT has numbers: a single class needs no names, several do."""
    if settings.classes or settings.mot is None:
        return settings.classes
    if len(written) > 1 or len(settings.labels) > 1:
        numbers = ", ".join(sorted(written))
        raise ConfigError(
            str(path), [f"it has the classes {numbers}: say which is which, as in `classes: {{1: person}}`"]
        )
    return dict.fromkeys(written, settings.labels[0])


def format_of(settings: TruthFile) -> str:
    """Return the key under which the scenario names the file: mot, coco or cvat."""
    return "mot" if settings.mot else "coco" if settings.coco else "cvat"


def _relative_box(box: tuple[float, float, float, float], width: float, height: float) -> Box:
    x1, y1, x2, y2 = (
        round(min(1.0, max(0.0, each / side)), 4) for each, side in zip(box, (width, height) * 2, strict=True)
    )
    return x1, y1, x2, y2


_Labels = tuple[list[LabelRow], tuple[int, int] | None]


def read_mot(path: Path) -> list[LabelRow]:
    """Rows of `frame,id,x,y,w,h[,consider[,class[,visible]]]`, frames from 1 (motchallenge.net); boxes in pixels.

    Raises OSError, or ValueError that names the line.
    """
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), start=1):
        cells = line.replace(" ", ",").split(",") if "," not in line else line.split(",")
        if not line.strip():
            continue
        if len(cells) < 6:
            raise ValueError(f"line {number} has {len(cells)} columns; at least 6 are needed (frame,id,x,y,w,h)")
        try:
            rows.append(_mot_row(number, [float(cell) for cell in cells[:9]]))
        except (ValueError, OverflowError) as error:
            raise ValueError(f"line {number} is not a row of numbers: {error}") from None
    return rows


def _mot_row(line: int, cells: list[float]) -> LabelRow:
    frame, track_id, x, y, w, h = cells[:6]
    consider = cells[6] if len(cells) > 6 else 1.0
    name = str(int(cells[7])) if len(cells) > 7 else ""
    visible = cells[8] if len(cells) > 8 else 1.0
    # Results, and some truths, have -1 in the columns they do not use.
    name, visible = ("" if name == "-1" else name), (1.0 if visible < 0 else visible)
    if not all(map(math.isfinite, (x, y, w, h))):
        raise ValueError("a box needs finite sides")
    return LabelRow(int(frame) - 1, int(track_id), name, (x, y, x + w, y + h), visible, consider == 0, line)


def _mot(path: Path) -> _Labels:
    return read_mot(path), None


def _cvat(path: Path) -> _Labels:
    """`CVAT for video 1.1`: tracks of boxes, frames from 0; `outside` means: not there."""
    root = ElementTree.parse(path).getroot()
    width, height = root.findtext(".//original_size/width"), root.findtext(".//original_size/height")
    rows = []
    for track in root.iter("track"):
        for box in track.iter("box"):
            if box.get("outside") == "1":
                continue
            x1, y1, x2, y2 = (float(box.attrib[name]) for name in ("xtl", "ytl", "xbr", "ybr"))
            rows.append(
                LabelRow(int(box.attrib["frame"]), int(track.attrib["id"]), track.attrib["label"], (x1, y1, x2, y2))
            )
    if not rows:
        raise ValueError("no <track> with a <box> in it (export as `CVAT for video 1.1`)")
    return rows, (int(width), int(height)) if width and height else None


def _coco(path: Path) -> _Labels:
    """COCO detection; the frame is `frame_index` of an image, else the last number in its name (from 0, as CVAT)."""
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8-sig"))
    names = {each["id"]: str(each["name"]) for each in data["categories"]}
    frames = {each["id"]: _frame(each) for each in data["images"]}
    rows = []
    for number, each in enumerate(data["annotations"]):
        x, y, w, h = (float(side) for side in each["bbox"])
        track_id = each.get("track_id", each.get("attributes", {}).get("track_id"))
        identity = -1 - number if track_id is None else int(track_id)
        box = (x, y, x + w, y + h)
        rows.append(
            LabelRow(
                frames[each["image_id"]], identity, names[each["category_id"]], box, 1.0, bool(each.get("iscrowd"))
            )
        )
    first = data["images"][0] if data["images"] else {}
    return rows, (int(first["width"]), int(first["height"])) if "width" in first else None


def _frame(image: Mapping[str, Any]) -> int:
    if "frame_index" in image:
        return int(image["frame_index"])
    match = _LAST_NUMBER.search(str(image["file_name"]))
    if match is None:
        raise ValueError(f"image {image['file_name']} has no frame_index and no number in its name")
    return int(match.group(1))


_READERS: Mapping[str, Callable[[Path], _Labels]] = {"mot": _mot, "cvat": _cvat, "coco": _coco}


def has_identities(frames: TrueFrames) -> bool:
    """Return whether every box has a track id, so that tracking can be measured."""
    return all(each.id >= 0 for objects in frames.values() for each in objects)


def counted_objects(frames: TrueFrames, frame: int) -> Iterator[TrueObject]:
    """Return the objects of one frame that count."""
    return (each for each in frames.get(frame, ()) if each.counts)


def shaken_truth(
    frames: TrueFrames, frame_boxes: Iterable[FrameBoxes], conditions: ConditionSet, size: tuple[int, int]
) -> TrueFrames:
    """Return the true objects of the examined frames, moved as the condition `shake` moved the image.

    size: (width, height) of the footage. Without shaking the frames are returned as they are.
    """
    if not any(each.kind.name == "shake" for each in conditions.conditions):
        return frames
    found = {}
    for boxes in frame_boxes:
        x, y = shake_offset(conditions, boxes.frame, boxes.t)
        objects = (_shifted(each, x / size[0], y / size[1]) for each in frames.get(boxes.frame, ()))
        found[boxes.frame] = tuple(each for each in objects if each.box[2] > each.box[0] and each.box[3] > each.box[1])
    return found


def _shifted(each: TrueObject, x: float, y: float) -> TrueObject:
    x1, y1, x2, y2 = each.box
    box: Box = (_clipped(x1 + x), _clipped(y1 + y), _clipped(x2 + x), _clipped(y2 + y))
    return replace(each, box=box)


def _clipped(share: float) -> float:
    return round(min(1.0, max(0.0, share)), 4)


MEMORY_BYTES_MAX = 16 * 1024 * 1024  # beyond it boxes go to a temporary file: replays run beside each other


class BoxesSpool:
    """A replay log's sink that keeps only the FrameBoxes, many of them in an unnamed temporary file.

    Use as a context manager.

    A day of footage is some 100 MB of boxes: too much for the memory of a small appliance, little for its disk.
    """

    def __init__(self) -> None:
        # A sandbox may write no file, and a kept alert needs none.
        self._file = tempfile.SpooledTemporaryFile(MEMORY_BYTES_MAX, prefix="vedette-boxes-")  # noqa: SIM115 see __exit__

    def __enter__(self) -> BoxesSpool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, line: bytes, /) -> int:
        """One whole line of the log."""
        return self._file.write(line) if line.startswith(_BOXES_LINE) else len(line)

    def frame_boxes(self) -> Iterator[FrameBoxes]:
        """Every FrameBoxes in order. One reader at a time."""
        self._file.seek(0)
        for line in self._file:
            found = decode_log(line)
            if isinstance(found, FrameBoxes):
                yield found


def true_frame_boxes(spool: BoxesSpool, frames: TrueFrames) -> Iterator[FrameBoxes]:
    """Return the FrameBoxes of a perfect detector and tracker at the same frames."""
    for boxes in spool.frame_boxes():
        objects = tuple(
            TrackedObject(track=each.id, label=each.label, score=0.9, box=each.box)
            for each in counted_objects(frames, boxes.frame)
        )
        yield FrameBoxes(camera=boxes.camera, seq=boxes.seq, frame=boxes.frame, t=boxes.t, looked=True, objects=objects)

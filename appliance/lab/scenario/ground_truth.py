"""Reads files of true boxes (MOTChallenge text, CVAT video XML, COCO JSON) as objects per frame, and holds a replay's
boxes on disk to compare with them.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any
from xml.etree import ElementTree

from appliance.errors import ConfigError
from appliance.lab.conditions.condition_spec import ConditionSet
from appliance.lab.conditions.frame_transform import shake_offset
from appliance.lab.scenario.scenario_schema import TruthFile
from appliance.types import Box, FrameBoxes, TrackedObject
from appliance.wire import decode_log

TRUTH_BYTES_MAX = 512 * 1024 * 1024
_DIGITS = re.compile(r"(\d+)\D*$")
# A box without an identity of its own gets one below zero: it can be found, but not followed.
_Identity = int


@dataclass(frozen=True, slots=True)
class TrueObject:
    """One object in one frame. id: who it is, below 0 when the file does not say.

    counts: False for what is nobody's mistake (marked so in the file, or smaller or more hidden than asked for):
    finding it is neither right nor wrong.
    """

    id: int
    label: str
    box: Box
    counts: bool


TrueFrames = Mapping[int, tuple[TrueObject, ...]]
"""Objects by 0-based frame of the clip; a frame that is absent holds nobody."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A box as a file has it: pixels, its own class name."""

    frame: int
    id: _Identity
    name: str
    box: tuple[float, float, float, float]
    visible: float = 1.0
    ignored: bool = False


def read_truth(path: Path, settings: TruthFile, size: tuple[int, int]) -> TrueFrames:
    """The true objects of the labels that are asked for. size: of the clip, where the file or scenario says no other.

    Raises ConfigError when the file is not what it should be.
    """
    try:
        if path.stat().st_size > TRUTH_BYTES_MAX:
            raise ConfigError(str(path), [f"over {TRUTH_BYTES_MAX} bytes"])
        rows, own_size = _READERS[_kind(settings)](path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ElementTree.ParseError) as error:
        raise ConfigError(str(path), [f"not a file of {_kind(settings)} truth: {error}"]) from None
    width, height = settings.size or own_size or size
    names = _names(path, settings, {row.name for row in rows})
    frames: dict[int, list[TrueObject]] = defaultdict(list)
    for row in rows:
        label = names.get(row.name, row.name)
        box = _share(row.box, width, height)
        if label in settings.labels and box[2] > box[0] and box[3] > box[1]:
            hidden = row.visible < settings.visible_min or box[3] - box[1] < settings.height_min
            frames[row.frame].append(TrueObject(row.id, label, box, not (row.ignored or hidden)))
    if not frames:
        known = ", ".join(sorted({names.get(row.name, row.name) for row in rows})) or "no boxes"
        raise ConfigError(str(path), [f"no box of {' or '.join(settings.labels)} in the picture (it has: {known})"])
    return {frame: tuple(objects) for frame, objects in frames.items()}


def _names(path: Path, settings: TruthFile, written: set[str]) -> Mapping[str, str]:
    """Class names of the file to labels. MOT has numbers: one kind of number needs no words, several do."""
    if settings.classes or settings.mot is None:
        return settings.classes
    if len(written) > 1 or len(settings.labels) > 1:
        numbers = ", ".join(sorted(written))
        raise ConfigError(
            str(path), [f"it has the classes {numbers}: say which is which, as in `classes: {{1: person}}`"]
        )
    return dict.fromkeys(written, settings.labels[0])


def _kind(settings: TruthFile) -> str:
    return "mot" if settings.mot else "coco" if settings.coco else "cvat"


def _share(box: tuple[float, float, float, float], width: float, height: float) -> Box:
    x1, y1, x2, y2 = (
        round(min(1.0, max(0.0, each / side)), 4) for each, side in zip(box, (width, height) * 2, strict=True)
    )
    return x1, y1, x2, y2


_Read = tuple[list[_Row], tuple[int, int] | None]


def _mot(path: Path) -> _Read:
    """`frame,id,x,y,w,h[,consider[,class[,visible]]]`, frames from 1 (motchallenge.net)."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        cells = line.replace(" ", ",").split(",") if "," not in line else line.split(",")
        if not line.strip():
            continue
        if len(cells) < 6:
            raise ValueError(f"line {number} has {len(cells)} columns; at least 6 are needed (frame,id,x,y,w,h)")
        frame, who, x, y, w, h = (float(cell) for cell in cells[:6])
        consider = float(cells[6]) if len(cells) > 6 else 1.0
        name = str(int(float(cells[7]))) if len(cells) > 7 else ""
        visible = float(cells[8]) if len(cells) > 8 else 1.0
        # Results, and some truths, have -1 in the columns they do not use.
        name, visible = ("" if name == "-1" else name), (1.0 if visible < 0 else visible)
        rows.append(_Row(int(frame) - 1, int(who), name, (x, y, x + w, y + h), visible, consider == 0))
    return rows, None


def _cvat(path: Path) -> _Read:
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
                _Row(int(box.attrib["frame"]), int(track.attrib["id"]), track.attrib["label"], (x1, y1, x2, y2))
            )
    if not rows:
        raise ValueError("no <track> with a <box> in it (export as `CVAT for video 1.1`)")
    return rows, (int(width), int(height)) if width and height else None


def _coco(path: Path) -> _Read:
    """COCO detection; the frame is `frame_index` of an image, else the last number in its name (from 0, as CVAT)."""
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    names = {each["id"]: str(each["name"]) for each in data["categories"]}
    frames = {each["id"]: _frame(each) for each in data["images"]}
    rows = []
    for number, each in enumerate(data["annotations"]):
        x, y, w, h = (float(side) for side in each["bbox"])
        who = each.get("track_id", each.get("attributes", {}).get("track_id"))
        identity = -1 - number if who is None else int(who)
        box = (x, y, x + w, y + h)
        rows.append(
            _Row(frames[each["image_id"]], identity, names[each["category_id"]], box, 1.0, bool(each.get("iscrowd")))
        )
    first = data["images"][0] if data["images"] else {}
    return rows, (int(first["width"]), int(first["height"])) if "width" in first else None


def _frame(image: Mapping[str, Any]) -> int:
    if "frame_index" in image:
        return int(image["frame_index"])
    match = _DIGITS.search(str(image["file_name"]))
    if match is None:
        raise ValueError(f"image {image['file_name']} has no frame_index and no number in its name")
    return int(match.group(1))


_READERS: Mapping[str, Callable[[Path], _Read]] = {"mot": _mot, "cvat": _cvat, "coco": _coco}


def has_identities(frames: TrueFrames) -> bool:
    """Whether the file says who is who, so that tracking can be measured."""
    return all(each.id >= 0 for objects in frames.values() for each in objects)


def counted_objects(frames: TrueFrames, frame: int) -> Iterator[TrueObject]:
    """The objects of one frame that count."""
    return (each for each in frames.get(frame, ()) if each.counts)


def shaken_truth(
    frames: TrueFrames, looks: Iterable[FrameBoxes], weather: ConditionSet, size: tuple[int, int]
) -> TrueFrames:
    """The true objects of the frames that were looked at, where they stood in the picture that was looked at.

    size: (width, height) of the footage. Only shaking moves anything; without it the frames come back as they are.
    """
    if not any(each.kind.name == "shake" for each in weather.conditions):
        return frames
    found = {}
    for look in looks:
        x, y = shake_offset(weather, look.frame, look.t)
        objects = (_moved(each, x / size[0], y / size[1]) for each in frames.get(look.frame, ()))
        found[look.frame] = tuple(each for each in objects if each.box[2] > each.box[0] and each.box[3] > each.box[1])
    return found


def _moved(each: TrueObject, x: float, y: float) -> TrueObject:
    x1, y1, x2, y2 = each.box
    box: Box = (_inside(x1 + x), _inside(y1 + y), _inside(x2 + x), _inside(y2 + y))
    return replace(each, box=box)


def _inside(share: float) -> float:
    return round(min(1.0, max(0.0, share)), 4)


_BOXES = b'{"type":"boxes"'


class BoxesSpool:
    """A replay log's sink that keeps only the looks, in an unnamed file. Use as a context manager.

    A film of a day is some 100 MB of boxes: too much for the memory of a small box, little for its disk.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="vedette-boxes-")  # noqa: SIM115 closed by __exit__

    def __enter__(self) -> BoxesSpool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, line: bytes, /) -> int:
        """One whole line of the log."""
        return self._file.write(line) if line.startswith(_BOXES) else len(line)

    def flush(self) -> None:
        self._file.flush()

    def frame_boxes(self) -> Iterator[FrameBoxes]:
        """Every look in order. One reader at a time."""
        self._file.seek(0)
        for line in self._file:
            found = decode_log(line)
            if isinstance(found, FrameBoxes):
                yield found


def true_frame_boxes(spool: BoxesSpool, frames: TrueFrames) -> Iterator[FrameBoxes]:
    """What a perfect detector and tracker would have reported at the same frames."""
    for look in spool.frame_boxes():
        objects = tuple(
            TrackedObject(track=each.id, label=each.label, score=0.9, box=each.box)
            for each in counted_objects(frames, look.frame)
        )
        yield FrameBoxes(camera=look.camera, seq=look.seq, frame=look.frame, t=look.t, looked=True, objects=objects)

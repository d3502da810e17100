"""Reads labelled sets to measure a detector on: COCO instances, YOLO folders, and clips with MOTChallenge truth.

Labels are read and checked whole before the first image is decoded, so that a fault shows at once; images are decoded
one at a time.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
from av import VideoFrame
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from appliance.base import yamlfile
from appliance.base.errors import ConfigError, SourceError, UsageError
from appliance.media.decoder import DecodedFrame
from appliance.media.frames import FrameConverter, upright_size
from appliance.replay.footage import ClipSource
from appliance.scenario.ground_truth import TRUTH_BYTES_MAX, LabelRow, read_mot
from appliance.types import Box

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
CLIP_SUFFIXES = (".mp4", ".mkv", ".mov", ".avi", ".webm", ".ts")
VISIBLE_MIN = 0.1  # of a MOT box: of one that shows less, nothing can be expected
# By how much of a side a box may stick out of its image: annotation tools round, and let one draw over the edge.
OVERHANG_MAX = 0.02
_PARENTS_MAX = 3  # folders above the images in which data.yaml is looked for

Pixels = NDArray[np.uint8]
_Size = tuple[int, int]
_SizeOf = Callable[[int, int], _Size]


@dataclass(frozen=True, slots=True)
class TrueBox:
    """A labelled box in shares of the image.

    label: as the file has it. ignored: finding it is neither right nor wrong; with an empty label, whatever it is taken
    for.
    """

    label: str
    box: Box
    ignored: bool = False


@dataclass(frozen=True, slots=True)
class LabelledImage:
    """One image, or one frame of a clip.

    pixels: BGR uint8 (H, W, 3), in the (width, height) that the function given wants of its own; the images of files
    come as they are.
    """

    name: str
    boxes: tuple[TrueBox, ...]
    pixels: Callable[[_SizeOf], Pixels]


@dataclass(frozen=True, slots=True)
class LabelledSet:
    """Images of one kind of view.

    labels: the classes of boxes that count. count: images, None: not known before they are decoded. images: decodes
    them anew at each call; raises UsageError. note: the images or boxes that were left out.
    """

    name: str
    source: Path
    labels: frozenset[str]
    count: int | None
    images: Callable[[], Iterator[LabelledImage]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class ClipOptions:
    """How a clip is taken. classes: what the numbers in its truth mean. every: each so many-th frame is examined."""

    classes: Mapping[int, str]
    every: int = 1


def read_folder_or_clip(name: str, path: Path, options: ClipOptions) -> LabelledSet:
    """Read a YOLO folder (data.yaml), a folder with one COCO file (*.json), or a clip with its truth (.gt.txt)."""
    if path.is_file() and path.suffix.lower() in CLIP_SUFFIXES:
        return read_clip(name, path, path.with_suffix(".gt.txt"), options)
    if not path.is_dir():
        raise UsageError(f"{path}: no such folder or clip")
    if _data_yaml(path):
        return read_yolo(name, path)
    found = sorted(path.glob("*.json"))
    if len(found) != 1:
        raise UsageError(f"{path}: a data.yaml (YOLO) or one .json (COCO) is wanted; it has {len(found)} .json files")
    return read_coco(name, found[0], path / "images" if (path / "images").is_dir() else path)


# COCO


class _CocoPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, hide_input_in_errors=True)


class _CocoCategory(_CocoPart):
    id: int
    name: str


class _CocoImage(_CocoPart):
    id: int | str
    file_name: Annotated[str, Field(min_length=1)]
    width: Annotated[int, Field(ge=1)] | None = None
    height: Annotated[int, Field(ge=1)] | None = None

    @property
    def size(self) -> _Size | None:
        return (self.width, self.height) if self.width and self.height else None


class _CocoAnnotation(_CocoPart):
    image_id: int | str
    category_id: int
    bbox: tuple[float, float, float, float]
    iscrowd: bool = False
    ignore: bool = False


_COCO_FAULTS = {
    "missing": "it is missing",
    "model_type": "an object is wanted",
    "tuple_type": "a list is wanted",
}  # by pydantic's type of the error; the others are plain enough


class _CocoFile(_CocoPart):
    images: tuple[_CocoImage, ...]
    annotations: tuple[_CocoAnnotation, ...]
    categories: tuple[_CocoCategory, ...]


@dataclass(frozen=True, slots=True)
class _PixelBox:
    """A box in pixels (x1, y1, x2, y2), and where it stands."""

    label: str
    corners: Box
    ignored: bool
    where: str


def read_coco(name: str, annotations: Path, images: Path) -> LabelledSet:
    """Read a COCO instances file, its images below `images`. `iscrowd` and `ignore` make a box ignored.

    Raise UsageError.
    """
    content = _coco_file(annotations)
    names = {each.id: each.name for each in content.categories}
    boxes: dict[int | str, list[_PixelBox]] = {each.id: [] for each in content.images}
    sizes = {each.id: each.size for each in content.images}
    for number, each in enumerate(content.annotations):
        where = f"{annotations}: annotations[{number}]"
        if each.image_id not in boxes:
            raise UsageError(f"{where}.image_id: {each.image_id} is none of the file's images")
        if each.category_id not in names:
            known = ", ".join(map(str, sorted(names)))
            raise UsageError(f"{where}.category_id: {each.category_id} is none of the file's categories ({known})")
        x, y, width, height = each.bbox
        if width < 0 or height < 0:
            raise UsageError(f"{where}.bbox: x, y, width, height are wanted, none of the last two below 0")
        ignored = each.iscrowd or each.ignore or width == 0 or height == 0
        box = _PixelBox(names[each.category_id], (x, y, x + width, y + height), ignored, f"{where}.bbox")
        if size := sizes[each.image_id]:
            _share_of(box, size)
        boxes[each.image_id].append(box)
    for row in content.images:
        if not (images / row.file_name).is_file():
            raise UsageError(f"{annotations}: {images / row.file_name} is missing; name its folder with --images")

    labels = [box.label for each in boxes.values() for box in each if not box.ignored]
    decode = partial(_coco_images, annotations.name, images, content.images, boxes)
    return _not_empty(LabelledSet(name, annotations, frozenset(labels), len(content.images), decode))


def _coco_images(
    source: str, folder: Path, rows: Sequence[_CocoImage], boxes: Mapping[int | str, Sequence[_PixelBox]]
) -> Iterator[LabelledImage]:
    for row in rows:
        path = folder / row.file_name
        image = _image(path)
        size = (image.shape[1], image.shape[0])
        if row.size not in (None, size):
            raise UsageError(
                f"{path}: it is {size[0]}x{size[1]}, but {source} labels one of {row.width}x{row.height}; "
                "give the images that were labelled"
            )
        yield LabelledImage(row.file_name, tuple(_share_of(box, size) for box in boxes[row.id]), _as_it_is(image))


def _coco_file(path: Path) -> _CocoFile:
    try:
        content = _CocoFile.model_validate(json.loads(_text(path)))
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}, line {error.lineno}: not JSON: {error.msg}; export the labels again") from None
    except RecursionError:
        raise UsageError(f"{path}: not a COCO instances file: nested too deeply") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
        remedy = "; export boxes: polygons alone are not measured" if "bbox" in first["loc"] else ""
        fault = _COCO_FAULTS.get(first["type"], first["msg"].lower())
        raise UsageError(f"{path}: {key or 'file'}: {fault}: no COCO instances file{remedy}") from None
    except ValueError:  # JSON has no limit of digits
        raise UsageError(f"{path}: a number in it has too many digits: no COCO instances file") from None
    _refuse_twice(path, "images", [each.id for each in content.images])
    _refuse_twice(path, "categories", [each.id for each in content.categories])
    return content


def _refuse_twice(path: Path, key: str, ids: Sequence[int | str]) -> None:
    seen: set[int | str] = set()
    for number, each in enumerate(ids):
        if each in seen:
            raise UsageError(f"{path}: {key}[{number}].id: {each} stands twice")
        seen.add(each)


# YOLO


class _YoloData(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")
    names: tuple[str, ...] | dict[int, str]
    val: Any = None
    test: Any = None


def read_yolo(name: str, folder: Path) -> LabelledSet:
    """Read a YOLO folder: its images and its labels, a text file an image, rows `class x y width height` in shares.

    Accepted are `folder`/images and `folder`/labels, a folder of images below such a one (data/images/val), or those
    that its data.yaml names as `val`, else as `test`. An image without a file shows nothing. Raise UsageError.
    """
    data = _data_yaml(folder)
    if data is None:
        _yolo_folders(folder, ())  # it may lack more than that
        raise UsageError(f"{folder}: no data.yaml here or above; it names the classes (names: [person, car])")
    try:
        known = yamlfile.load(data, _YoloData)
    except ConfigError as error:
        problem = error.problems[0].replace("a valid tuple", "a list")
        raise UsageError(f"{data}, {problem}; it names the classes (names: [person, car])") from None
    names = known.names if isinstance(known.names, dict) else dict(enumerate(known.names))
    images, labels = _yolo_folders(folder, [known.val, known.test] if data.parent == folder.resolve() else [])
    files = sorted(path for path in images.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)
    if not files:
        raise UsageError(f"{images}: no images ({', '.join(IMAGE_SUFFIXES)})")
    rows = {path: (labels / path.relative_to(images)).with_suffix(".txt") for path in files}
    for text in sorted(set(labels.rglob("*.txt")) - set(rows.values())):
        if text.name != "classes.txt":
            raise UsageError(f"{text}: its image is missing below {images}; bring it, or delete the labels")
    boxes = {path: _yolo_rows(text, names) for path, text in rows.items()}

    def decode() -> Iterator[LabelledImage]:
        for path in files:
            image = _image(path)
            yield LabelledImage(path.name, boxes[path], _as_it_is(image))

    counted = frozenset(box.label for each in boxes.values() for box in each)
    return _not_empty(LabelledSet(name, folder, counted, len(files), decode))


def _yolo_folders(folder: Path, splits: Sequence[object]) -> tuple[Path, Path]:
    """Return the folders of images and of labels.

    splits: as data.yaml names them, from its folder; exports write a `../` too many.
    """
    images, labels = folder / "images", folder / "labels"
    named = (folder / each.removeprefix("../") for each in splits if isinstance(each, str))
    if not images.is_dir() and (split := next((each for each in named if each.is_dir()), None)) is not None:
        folder = split
    parts = folder.resolve().parts
    if not images.is_dir() and "images" in parts:
        at = len(parts) - 1 - parts[::-1].index("images")
        images, labels = folder, Path(*parts[:at], "labels", *parts[at + 1 :])
    for each in (images, labels):
        if not each.is_dir():
            raise UsageError(f"{each}: no such folder; a YOLO set has images/ and labels/ side by side")
    return images, labels


def _data_yaml(folder: Path) -> Path | None:
    resolved = folder.resolve()
    places = (resolved, *resolved.parents[:_PARENTS_MAX])
    return next((place / "data.yaml" for place in places if (place / "data.yaml").is_file()), None)


def _yolo_rows(path: Path, names: Mapping[int, str]) -> tuple[TrueBox, ...]:
    if not path.is_file():
        return ()
    boxes = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        if line.strip():
            try:
                boxes.append(_yolo_box(line.split(), names))
            except ValueError as error:
                raise UsageError(f"{path}, line {number}: {error}") from None
    return tuple(boxes)


def _yolo_box(cells: Sequence[str], names: Mapping[int, str]) -> TrueBox:
    """Parse one row. Raise ValueError."""
    if len(cells) > 5:
        raise ValueError(f"a polygon of {len(cells) - 1} numbers; a box has 4: export the labels for detection")
    try:
        number, (x, y, width, height) = int(cells[0]), map(float, cells[1:])
    except ValueError:
        raise ValueError("not `class x y width height`, a whole number and four others") from None
    if number not in names:
        raise ValueError(f"class {number} has no name in data.yaml (it has {', '.join(map(str, sorted(names)))})")
    if not (0 < width <= 1 and 0 < height <= 1):
        raise ValueError("width and height are shares of the image, over 0 and up to 1")
    box = _clipped((x - width / 2, y - height / 2, x + width / 2, y + height / 2))
    if box is None:
        raise ValueError("the box lies outside the image; x and y are its centre, in shares of the image")
    return TrueBox(names[number], box)


# MOTChallenge


def read_clip(name: str, clip: Path, truth: Path, options: ClipOptions) -> LabelledSet:
    """Read a clip and its MOTChallenge rows.

    A box is ignored that does not count, of which under VISIBLE_MIN shows, or whose class has no name. Raise
    UsageError.
    """
    if not clip.is_file():
        raise UsageError(f"{clip}: no such clip")
    rows: dict[int, list[LabelRow]] = defaultdict(list)
    try:
        for row in read_mot(truth):
            rows[row.frame].append(row)
    except OSError as error:
        raise UsageError(f"{truth}: the truth cannot be read: {error.strerror}; name it with --mot") from None
    except ValueError as error:
        raise UsageError(f"{truth}: not MOTChallenge rows: {error}") from None
    label_of = _mot_labels(truth, {row.name for each in rows.values() for row in each}, options.classes)
    if rows and min(rows) < 0:
        raise UsageError(f"{truth}, line {rows[min(rows)][0].line}: frames count from 1")

    counted = [label_of.get(row.name, "") for each in rows.values() for row in each if _counts(row)]
    unnamed = sorted({row.name for each in rows.values() for row in each} - set(label_of))
    decode = partial(_clip_images, clip, _ClipTruth(truth, rows, label_of), options.every)
    note = f"{truth.name}: boxes of class {', '.join(unnamed)} are ignored (--classes names them)" if unnamed else ""
    return _not_empty(LabelledSet(name, clip, frozenset(counted) - {""}, None, decode, note))


@dataclass(frozen=True, slots=True)
class _ClipTruth:
    """Rows by 0-based frame, and the labels of their classes; '' for one that has none."""

    path: Path
    rows: Mapping[int, Sequence[LabelRow]]
    label_of: Mapping[str, str]


def _clip_images(clip: Path, truth: _ClipTruth, every: int) -> Iterator[LabelledImage]:
    source, converter, frames = ClipSource(clip, clip.name), FrameConverter(), 0
    try:
        for frame in source.play():
            assert isinstance(frame, DecodedFrame), "a clip has neither gaps nor sessions"
            frames = frame.index + 1
            if frame.index % every == 0:
                rows, size = truth.rows.get(frame.index, ()), upright_size(frame.av_frame)
                boxes = tuple(_mot_box(truth, row, size) for row in rows)
                yield LabelledImage(f"{clip.name}, frame {frames}", boxes, partial(_scaled, converter, frame.av_frame))
    except SourceError as error:
        raise UsageError(f"{clip}: it cannot be decoded: {error}") from None
    if source.error:
        raise UsageError(f"{clip}: the clip is not whole, bring it again: {source.error}")
    last = max(truth.rows)
    if last >= frames:
        line = truth.rows[last][0].line
        raise UsageError(
            f"{truth.path}, line {line}: frame {last + 1} of a clip of {frames}: is it another clip's truth?"
        )


def _scaled(converter: FrameConverter, frame: VideoFrame, size_of: _SizeOf) -> Pixels:
    """Scale by the decoder, as in the appliance."""
    return converter.bgr(frame, size_of(*upright_size(frame)))


def _mot_labels(truth: Path, written: set[str], classes: Mapping[int, str]) -> dict[str, str]:
    """Return names of the class column's numbers; the only one given stands for a file without that column."""
    if written == {""} and len(classes) == 1:
        return dict.fromkeys(written, *classes.values())
    found = {str(number): label for number, label in classes.items() if str(number) in written}
    if written and not found:
        has = ", ".join(sorted(written - {""})) or "no class column"
        raise UsageError(f"{truth}: --classes names none of its classes (it has {has}), as in --classes 1=person,2=car")
    return found


def _counts(row: LabelRow) -> bool:
    return not row.ignored and row.visible >= VISIBLE_MIN


def _mot_box(truth: _ClipTruth, row: LabelRow, size: _Size) -> TrueBox:
    """Read a MOT box, which may reach beyond the image as far as the object does, but not lie outside."""
    label = truth.label_of.get(row.name, "")
    box = _clipped((row.box[0] / size[0], row.box[1] / size[1], row.box[2] / size[0], row.box[3] / size[1]), np.inf)
    if box is None and label and _counts(row):
        raise UsageError(f"{truth.path}, line {row.line}: the box lies outside the frame of {size[0]}x{size[1]}")
    return TrueBox(label, box or (0.0, 0.0, 0.0, 0.0), box is None or not label or not _counts(row))


# Parts that all formats share


def _share_of(box: _PixelBox, size: _Size) -> TrueBox:
    x1, y1, x2, y2 = box.corners
    shares = _clipped((x1 / size[0], y1 / size[1], x2 / size[0], y2 / size[1]))
    if shares is None and not box.ignored:
        raise UsageError(
            f"{box.where}: the box ({x1:g}, {y1:g}) to ({x2:g}, {y2:g}) lies outside its image of {size[0]}x{size[1]}; "
            "x, y, width, height in pixels are wanted"
        )
    return TrueBox(box.label, shares or (0.0, 0.0, 0.0, 0.0), box.ignored)


def _clipped(box: Box, overhang: float = OVERHANG_MAX) -> Box | None:
    """Clip to the image; None for one that nowhere lies in it or sticks out by more than `overhang`."""
    x1, y1, x2, y2 = (min(1.0, max(0.0, side)) for side in box)
    inside = max(-box[0], -box[1], box[2] - 1, box[3] - 1) <= overhang
    return (x1, y1, x2, y2) if inside and x2 > x1 and y2 > y1 else None


def _not_empty(found: LabelledSet) -> LabelledSet:
    if not found.labels:
        raise UsageError(f"{found.source}: no box in it counts, so there is nothing to find; label some images")
    return found


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > TRUTH_BYTES_MAX:
            raise UsageError(f"{path}: labels of over {TRUTH_BYTES_MAX} bytes; split the set")
        return path.read_text(encoding="utf-8-sig")  # as Windows writes them
    except OSError as error:
        raise UsageError(f"{path}: the labels cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: the labels are not text in UTF-8") from None


def _as_it_is(image: Pixels) -> Callable[[_SizeOf], Pixels]:
    return lambda size_of: image


def _image(path: Path) -> Pixels:
    """Read an image as labelling tools see it: not turned by EXIF."""
    try:
        image = cv2.imread(str(path), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error:
        image = None
    if image is None:
        raise UsageError(f"{path}: missing or not an image; bring it again, or take it out of the labels")
    return np.asarray(image, np.uint8)

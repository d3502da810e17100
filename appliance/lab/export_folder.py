"""An exported data set on disk: its samples, COCO annotations, YOLO labels, README and report, and the zip file."""

from __future__ import annotations

import contextlib
import errno
import json
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from appliance.base.clock import iso_utc
from appliance.base.errors import PreconditionError, UsageError
from appliance.base.local_files import DiskWriteError, discard_temporary, finish_file, temporary_path, write_file
from appliance.types import Box, Review

Split = Literal["train", "val"]
SPLITS: tuple[Split, ...] = ("train", "val")


class LabelledBox(BaseModel):
    """A bounding box as the detector drew it."""

    model_config = ConfigDict(frozen=True)

    label: str
    track: int
    score: float
    box: Box  # shares of the image
    flagged: bool  # its track was what the alert was about


class ExportSample(BaseModel):
    """One image of the data set."""

    model_config = ConfigDict(frozen=True)

    file: str  # its name
    t: float  # the camera's time, UTC seconds
    width: int
    height: int
    drawn: tuple[LabelledBox, ...] = ()  # empty for a background


class ExportedAlert(BaseModel):
    """The samples of one alert."""

    model_config = ConfigDict(frozen=True)

    alert: str
    camera: str
    t_start: float
    review: Review  # at the time of the export
    split: Split
    samples: tuple[ExportSample, ...] = ()
    left_out: str = ""  # why there are no samples
    answered_by: str = ""  # "review", or the kind of judge whose verdict it was; only in the format `training`
    who: str = ""  # the user, "" while all share one token; or the model
    answered_t: float | None = None
    audited: bool = False  # a frame in which nothing was reported; `review` says whether something was missed

    @property
    def background(self) -> bool:
        return self.review == "false_alarm"


MARK = "export.json"
_STATE = ".alerts"
ExportFormat = Literal["coco", "yolo", "training"]


class ExportSettings(BaseModel):
    """The choices that decide which images an export holds; an interrupted export is continued only with the same."""

    model_config = ConfigDict(frozen=True)

    schema_version: Literal[1] = 1
    made_by: Literal["vedette export"] = "vedette export"
    site: str
    format: ExportFormat
    labels: tuple[str, ...]
    cameras: tuple[str, ...] | None
    t_from: float | None
    t_to: float | None
    split: float
    per_alert: int


class ExportFolder:
    """One export on disk. Invariant: the samples of an alert are noted after all its files are whole and on disk."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def begin(self, settings: ExportSettings) -> None:
        """Claim the folder.

        Raises UsageError when it holds anything else, PreconditionError when it holds an export with other settings,
        DiskWriteError.
        """
        if self.root.exists() and not self.root.is_dir():
            raise UsageError(f"{self.root} is a file; an export needs a folder")
        mark = self.root / MARK
        if mark.is_file():
            self._refuse_other_settings(mark, settings)
        elif self.root.is_dir() and any(each.name != temporary_path(mark).name for each in self.root.iterdir()):
            raise UsageError(f"{self.root} holds something that is no export of Vedette: choose a new or empty folder")
        self.write(MARK, _json({**settings.model_dump(mode="json"), "complete": False}))

    def complete(self, settings: ExportSettings) -> None:
        """Mark the export as complete."""
        self.write(MARK, _json({**settings.model_dump(mode="json"), "complete": True}))

    def noted(self, name: str) -> ExportedAlert | None:
        """Return the samples of the alert from an earlier run, if every file of them is still there."""
        try:
            found = ExportedAlert.model_validate_json((self.root / _STATE / f"{name}.json").read_bytes())
        except (OSError, ValidationError):
            return None
        there = all((self.root / self.image(found, sample.file)).is_file() for sample in found.samples)
        return found if there else None

    def note(self, name: str, exported: ExportedAlert) -> None:
        """Remember the samples of an alert."""
        self.write(f"{_STATE}/{name}.json", exported.model_dump_json().encode())

    @staticmethod
    def image(exported: ExportedAlert, file: str) -> str:
        """Return the path of an image, relative to the folder."""
        return f"images/{exported.split}/{file}"

    def write(self, relative: str, data: bytes) -> None:
        """Put a file there, whole and on disk. Raises DiskWriteError."""
        try:
            write_file(self.root / relative, data)
        except DiskWriteError as error:
            raise DiskWriteError(
                f"{error}; make room and run the same command again: it goes on where it was"
            ) from None

    def prune(self, names: Iterable[str], files: Iterable[str]) -> None:
        """Remove what belongs to no alert any more: a review was changed, or a kill left half an alert."""
        wanted = {f"{_STATE}/{name}.json" for name in names} | set(files)
        for file in self._own():
            if file.relative_to(self.root).as_posix() not in wanted:
                with contextlib.suppress(OSError):
                    file.unlink()

    def files(self) -> Iterator[Path]:
        """Return the files that belong to the data set, sorted by name."""
        for file in sorted(self.root.rglob("*")):
            hidden = any(part.startswith(".") for part in file.relative_to(self.root).parts)
            if file.is_file() and not file.is_symlink() and not hidden:
                yield file

    def _own(self) -> Iterator[Path]:
        for name in ("images", "labels", _STATE):
            yield from (each for each in sorted((self.root / name).rglob("*")) if each.is_file())

    def _refuse_other_settings(self, mark: Path, settings: ExportSettings) -> None:
        try:
            before = ExportSettings.model_validate(
                {k: v for k, v in json.loads(mark.read_bytes()).items() if k != "complete"}
            )
        except (OSError, ValueError, AttributeError):
            raise UsageError(
                f"{self.root} holds something that is no export of Vedette: choose another folder"
            ) from None
        if before != settings:
            was, now = before.model_dump(mode="json"), settings.model_dump(mode="json")
            changed = ", ".join(f"{key} was {was[key]}, is {now[key]}" for key in was if was[key] != now[key])
            raise PreconditionError(
                f"{self.root} holds an export with other settings ({changed}): choose another folder"
            )


def _json(content: object) -> bytes:
    return json.dumps(content, indent=2).encode() + b"\n"


_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest that ZIP can hold: the same content gives the same bytes
_STORED_SUFFIXES = {".jpg"}


def zip_folder(folder: ExportFolder) -> Path:
    """Write `FOLDER.zip`, whole or not at all. Raises DiskWriteError."""
    root = folder.root if folder.root.name not in ("", "..") else folder.root.resolve()  # `--to .` has no name
    target = root.with_name(f"{root.name}.zip")
    temporary = temporary_path(target)
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as out:
            for file in folder.files():
                _add(out, file, file.relative_to(folder.root).as_posix())
    except OSError as error:
        discard_temporary(temporary)
        cause = error.strerror or errno.errorcode.get(error.errno or 0, "the disk refused it")
        raise DiskWriteError(f"{target.name} cannot be written: {cause}") from None
    except BaseException:
        discard_temporary(temporary)
        raise
    finish_file(target)
    return target


def _add(out: zipfile.ZipFile, file: Path, name: str) -> None:
    entry = zipfile.ZipInfo(name, _DATE)
    entry.external_attr = 0o644 << 16
    entry.compress_type = zipfile.ZIP_STORED if file.suffix in _STORED_SUFFIXES else zipfile.ZIP_DEFLATED
    out.writestr(entry, file.read_bytes())


NOT_REVIEWED = "not reviewed"
STILL_OPEN = "still lasting"
NO_CONSENT = "of a camera without `training: true`"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """The contents of an export and its omissions, in numbers."""

    site: str
    format: ExportFormat
    labels: tuple[str, ...]
    pictures: Mapping[Split, int]  # by part
    boxes: int
    backgrounds: int
    alerts: Mapping[str, int]  # `right`, `false alarm` and, where there are any, `audited frame` that gave images
    left_out: Mapping[str, int]  # alerts by reason
    reused: int = 0  # alerts whose images an earlier run had made

    @property
    def left_out_text(self) -> str:
        """`12 not reviewed, 1 without a picture`."""
        return ", ".join(f"{count} {reason}" for reason, count in self.left_out.items() if count) or "none"


def report_of(
    exported: Iterable[ExportedAlert],
    skipped: Mapping[str, int],
    site: str,
    format_: ExportFormat,
    labels: tuple[str, ...],
    reused: int,
) -> ExportReport:
    """Count what was exported. skipped: alerts that were not exported at all, by reason."""
    images: Counter[Split] = Counter(dict.fromkeys(SPLITS, 0))
    alerts = Counter({"right": 0, "false alarm": 0})
    left_out = Counter({reason: count for reason, count in skipped.items() if count})
    boxes = backgrounds = 0
    for each in exported:
        if not each.samples:
            left_out[each.left_out] += 1
            continue
        images[each.split] += len(each.samples)
        alerts["audited frame" if each.audited else "false alarm" if each.background else "right"] += 1
        boxes += sum(len(sample.drawn) for sample in each.samples)
        backgrounds += len(each.samples) if each.background else 0
    return ExportReport(
        site=site, format=format_, labels=labels, pictures=dict(images), boxes=boxes, backgrounds=backgrounds,
        alerts=dict(alerts), left_out=dict(left_out), reused=reused,
    )  # fmt: skip


MACHINE_MADE = (
    "Boxes and labels were drawn by the detector of the appliance. A person reviewed each incident as right or as a "
    "false alarm, and did not check whether a box is tight or complete."
)


def coco_files(exported: Sequence[ExportedAlert], labels: Sequence[str], site: str) -> dict[str, bytes]:
    """Return `annotations/instances_train.json` and `…_val.json`; the same input gives the same bytes."""
    return {
        f"annotations/instances_{split}.json": json.dumps(_content(exported, labels, site, split), indent=1).encode()
        for split in SPLITS
    }


def _content(exported: Sequence[ExportedAlert], labels: Sequence[str], site: str, split: Split) -> dict[str, Any]:
    numbers = {label: number for number, label in enumerate(labels, start=1)}
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for each in exported:
        for sample in each.samples if each.split == split else ():
            images.append(_image(each, sample, len(images) + 1))
            for drawn in sample.drawn:
                annotations.append(_annotation(drawn, sample, numbers, len(annotations) + 1, len(images)))
    return {
        "info": {
            "description": f"Reviewed alerts of {site}, exported by Vedette for fine-tuning",
            "version": "1",
            "contributor": site,
            "machine_made_labels": True,
            "labels": MACHINE_MADE,
        },
        "licenses": [],
        "categories": [{"id": number, "name": label, "supercategory": ""} for label, number in numbers.items()],
        "images": images,
        "annotations": annotations,
    }


def _image(each: ExportedAlert, sample: ExportSample, number: int) -> dict[str, Any]:
    return {
        "id": number,
        "file_name": sample.file,
        "width": sample.width,
        "height": sample.height,
        "date_captured": iso_utc(sample.t),
        "alert": each.alert,
        "camera": each.camera,
        "background": each.background,
    }


def _annotation(
    drawn: LabelledBox, sample: ExportSample, numbers: Mapping[str, int], number: int, image: int
) -> dict[str, Any]:
    left, top, right, bottom = drawn.box
    x, y = left * sample.width, top * sample.height
    width, height = (right - left) * sample.width, (bottom - top) * sample.height
    return {
        "id": number,
        "image_id": image,
        "category_id": numbers[drawn.label],
        "bbox": [round(side, 2) for side in (x, y, width, height)],
        "area": round(width * height, 2),
        "segmentation": [],
        "iscrowd": 0,
        "score": drawn.score,
        "track": drawn.track,
        "flagged": drawn.flagged,
    }


_HEAD = """\
# Exported by Vedette. Without `path`, trainers count from this file's own folder: give them this file's whole path.
# The boxes were drawn by a detector and not checked one by one: see README.md.
"""


def yolo_data_yaml(labels: Sequence[str]) -> bytes:
    """Write `data.yaml`: where the parts are, and the classes by number."""
    content = {
        "train": "images/train",
        "val": "images/val",
        "nc": len(labels),
        "names": dict(enumerate(labels)),
    }
    return (_HEAD + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)).encode()


def yolo_label_file(exported: ExportedAlert, sample: ExportSample) -> str:
    """Return the path of an image's labels, relative to the export."""
    return f"labels/{exported.split}/{sample.file.rpartition('.')[0]}.txt"


def yolo_label_text(sample: ExportSample, labels: Sequence[str]) -> bytes:
    """Write `class x y width height` a line, the middle of the box, all shares of the image; nothing: a background."""
    lines = []
    for drawn in sample.drawn:
        left, top, right, bottom = drawn.box
        shares = ((left + right) / 2, (top + bottom) / 2, right - left, bottom - top)
        lines.append(" ".join([str(labels.index(drawn.label)), *(f"{share:.6f}" for share in shares)]))
    return "".join(f"{line}\n" for line in lines).encode()


_TEXT = """\
# Reviewed alerts of {site}

Exported by `vedette export` for fine-tuning a detector.

{pictures} pictures of {right} alerts that were {answered} as right, with {boxes} boxes, and of {false} false alarms
({backgrounds} pictures without labels). Classes: {labels}. Parts: {train} pictures to train, {val} to validate. A part
holds whole incidents: what follows on each other within 30 s on one camera is never in both.

Left out: {left_out}.

## What the labels are worth

{machine_made}

- A picture may show somebody whom the detector missed; nobody has a label there.
- In the pictures of right alerts every tracked object of the classes has its label, also who was not the reason for
  the alert ({flagged_words}).
- The pictures of false alarms show what deceived the detector, and nothing else that it tracked. They have no label.
- Trained on alone, such labels teach a network what it already thinks. Correct them in a labelling tool, or mix them
  with data that people have drawn; measure on data that people have drawn.

## Personal data

The pictures show people who did not ask to be filmed. Keep them as long as they are needed, give them to nobody who
does not need them, and delete them then: `vedette` does not.
"""
_LAYOUT = {
    "coco": """
## Layout

`annotations/instances_train.json` and `instances_val.json` (COCO detection); `file_name` counts from `images/train`
and `images/val`. Beyond COCO: `flagged`, `track` and `score` of an annotation; `alert`, `camera` and `background` of
an image.
""",
    "training": """
## Layout

`index.jsonl`, one line a picture, as `python -m models.train.finetune` and `models.train.run` read it: `boxes` of what
was answered to be right, `rejected` ones of false alarms, and `ignore` for all that nobody answered for. `provenance`
has the camera, the alert, its time, who answered, and the key of the site file that allows it. Beside people's reviews
the verdicts of a vision-language model count. A frame in which nothing was reported and that was sent for an audit
(`provenance.of`) has no boxes if nothing was missed, and else those of the model (`boxes_by`). Run the export again
after `training` was switched off for a camera: its pictures are removed.
""",
    "yolo": """
## Layout

`images/` and `labels/`, each with `train` and `val`, and `data.yaml` with the classes (give trainers its whole path).
An empty label file is a background.
""",
}


def export_readme(report: ExportReport) -> bytes:
    """Return the README.md of an export."""
    marked = "`flagged` is true for who was" if report.format == "coco" else "this format cannot mark who was"
    text = _TEXT.format(
        site=report.site,
        pictures=sum(report.pictures.values()),
        right=report.alerts["right"],
        false=report.alerts["false alarm"],
        boxes=report.boxes,
        backgrounds=report.backgrounds,
        labels=", ".join(report.labels),
        train=report.pictures["train"],
        val=report.pictures["val"],
        left_out=report.left_out_text,
        machine_made=MACHINE_MADE,
        flagged_words=marked,
        answered="answered" if report.format == "training" else "reviewed",
    )
    return (text + _LAYOUT[report.format]).encode()

"""The files of an export: COCO annotations, YOLO labels, the README, and the report in numbers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from appliance.base.clock import iso_utc
from appliance.lab.export.export_folder import SPLITS, ExportedAlert, ExportFormat, ExportSample, LabelledBox, Split

NOT_REVIEWED = "not reviewed"
STILL_OPEN = "still lasting"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """The contents of an export and its omissions, in numbers."""

    site: str
    format: ExportFormat
    labels: tuple[str, ...]
    pictures: Mapping[Split, int]  # by part
    boxes: int
    backgrounds: int
    alerts: Mapping[str, int]  # `right` and `false alarm` that gave images
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
    """Count. skipped: alerts that were not exported at all, by reason."""
    images: Counter[Split] = Counter(dict.fromkeys(SPLITS, 0))
    alerts = Counter({"right": 0, "false alarm": 0})
    left_out = Counter({reason: count for reason, count in skipped.items() if count})
    boxes = backgrounds = 0
    for each in exported:
        if not each.samples:
            left_out[each.left_out] += 1
            continue
        images[each.split] += len(each.samples)
        alerts["false alarm" if each.background else "right"] += 1
        boxes += sum(len(sample.drawn) for sample in each.samples)
        backgrounds += len(each.samples) if each.background else 0
    return ExportReport(
        site=site, format=format_, labels=labels, pictures=dict(images), boxes=boxes, backgrounds=backgrounds,
        alerts=dict(alerts), left_out=dict(left_out), reused=reused,
    )  # fmt: skip


MACHINE_MADE = (
    "Boxes and labels were drawn by the detector that ran on the box. A person reviewed each incident as right or as a "
    "false alarm, and did not check whether a box is tight or complete."
)


def coco_files(exported: Sequence[ExportedAlert], labels: Sequence[str], site: str) -> dict[str, bytes]:
    """`annotations/instances_train.json` and `…_val.json`; the same input gives the same bytes."""
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
    """`data.yaml`: where the parts are, and the classes by number."""
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
    """`class x y width height` a line, the middle of the box, all shares of the image; nothing: a background."""
    lines = []
    for drawn in sample.drawn:
        left, top, right, bottom = drawn.box
        shares = ((left + right) / 2, (top + bottom) / 2, right - left, bottom - top)
        lines.append(" ".join([str(labels.index(drawn.label)), *(f"{share:.6f}" for share in shares)]))
    return "".join(f"{line}\n" for line in lines).encode()


_TEXT = """\
# Reviewed alerts of {site}

Exported by `vedette export` for fine-tuning a detector.

{pictures} pictures of {right} alerts that a person reviewed as right, with {boxes} boxes, and of {false} false alarms
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
    "yolo": """
## Layout

`images/` and `labels/`, each with `train` and `val`, and `data.yaml` with the classes (give trainers its whole path).
An empty label file is a background.
""",
}


def export_readme(report: ExportReport) -> bytes:
    """README.md of an export."""
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
    )
    return (text + _LAYOUT[report.format]).encode()

"""COCO detection JSON: https://cocodataset.org/#format-data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from appliance.clock import iso_utc
from appliance.export.sample import SPLITS, Drawn, Exported, Sample, Split

MACHINE_MADE = (
    "Boxes and labels were drawn by the detector that ran on the box. A person reviewed each incident as right or as a "
    "false alarm, and did not check whether a box is tight or complete."
)


def files(exported: Sequence[Exported], labels: Sequence[str], site: str) -> dict[str, bytes]:
    """`annotations/instances_train.json` and `…_val.json`; the same input gives the same bytes."""
    return {
        f"annotations/instances_{split}.json": json.dumps(_content(exported, labels, site, split), indent=1).encode()
        for split in SPLITS
    }


def _content(exported: Sequence[Exported], labels: Sequence[str], site: str, split: Split) -> dict[str, Any]:
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


def _image(each: Exported, sample: Sample, number: int) -> dict[str, Any]:
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


def _annotation(drawn: Drawn, sample: Sample, numbers: Mapping[str, int], number: int, image: int) -> dict[str, Any]:
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

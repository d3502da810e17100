"""The README of an export: what is in it, what it is good for, and what it is not."""

from __future__ import annotations

from appliance.export.coco import MACHINE_MADE
from appliance.export.report import Report

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


def readme(report: Report) -> bytes:
    """README.md of the export that `report` tells of."""
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
        left_out=report.left_out_words,
        machine_made=MACHINE_MADE,
        flagged_words=marked,
    )
    return (text + _LAYOUT[report.format]).encode()

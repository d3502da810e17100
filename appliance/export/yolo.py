"""The layout that YOLO trainers read: a text file beside each picture, and data.yaml above them."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from appliance.export.sample import Exported, Sample

_HEAD = """\
# Exported by Vedette. Without `path`, trainers count from this file's own folder: give them this file's whole path.
# The boxes were drawn by a detector and not checked one by one: see README.md.
"""


def data_yaml(labels: Sequence[str]) -> bytes:
    """`data.yaml`: where the parts are, and the classes by number."""
    content = {
        "train": "images/train",
        "val": "images/val",
        "nc": len(labels),
        "names": dict(enumerate(labels)),
    }
    return (_HEAD + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)).encode()


def label_file(exported: Exported, sample: Sample) -> str:
    """Where the labels of a picture lie, relative to the export."""
    return f"labels/{exported.split}/{sample.file.rpartition('.')[0]}.txt"


def label_text(sample: Sample, labels: Sequence[str]) -> bytes:
    """`class x y width height` a line, the middle of the box, all shares of the picture; nothing: a background."""
    lines = []
    for drawn in sample.drawn:
        left, top, right, bottom = drawn.box
        shares = ((left + right) / 2, (top + bottom) / 2, right - left, bottom - top)
        lines.append(" ".join([str(labels.index(drawn.label)), *(f"{share:.6f}" for share in shares)]))
    return "".join(f"{line}\n" for line in lines).encode()

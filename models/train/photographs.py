"""Reads the labelled photographs of `data/train`: which sources may be used, and what their lines say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from models.train.index import CLASSES, IndexFault, Label, labels

CAR = CLASSES.index("car")
SCORE_MIN = 0.35  # of an agreed pseudo label to be learnt; the same bound as in merged.jsonl
# Far vehicles in these are too many and too small for teachers and labellers alike: cells there learn no vehicle.
FIXED_CAMERAS = frozenset({"manaus_traffic", "traffic_atl", "daynight_webcam"})
# Labels that people drew on heads and parts: what the teachers agree on outweighs them.
PARTS_LABELLED = frozenset({"construction_site"})


@dataclass(frozen=True, slots=True)
class Source:
    """The entry of one source in sources.json."""

    name: str
    use: str
    licence: str

    @property
    def clear(self) -> bool:
        """True if the uploader stated a permissive licence."""
        return self.use.startswith("good")


@dataclass(frozen=True, slots=True)
class Photograph:
    """One picture of data/train and what is known of it."""

    path: Path
    source: Source
    boxes: tuple[Label, ...]
    ignore: tuple[Label, ...]


def sources(train: Path) -> dict[str, Source]:
    """Return all sources of sources.json. Raise IndexFault."""
    try:
        table = json.loads((train / "sources.json").read_text(encoding="utf-8"))
        return {name: Source(name, str(row["use"]), str(row["licence"])) for name, row in table.items()}
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise IndexFault(f"{train / 'sources.json'}: cannot be read: {error!r}") from None


def photographs(train: Path, *, unclear: bool = False) -> Iterator[Photograph]:
    """Yield every picture of merged.jsonl whose source's licence is clear (or all of them, if `unclear`)."""
    known = sources(train)
    for number, line in enumerate((train / "merged.jsonl").read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            source, image = known[row["source"]], str(row["image"])
            boxes, ignore = labels(row["boxes"]), labels(row["ignore"])
        except (ValueError, KeyError, TypeError) as error:
            raise IndexFault(f"{train / 'merged.jsonl'}, line {number}: {error!r}") from None
        if source.clear or unclear:
            yield _by_the_rules(Photograph(train / image, source, boxes, ignore))


def _by_the_rules(shot: Photograph) -> Photograph:
    """Return the boxes to learn and regions to leave alone, by what is known of the source (data/train/MANIFEST.md)."""
    boxes = tuple(_tidy(label) for label in shot.boxes if label.score >= SCORE_MIN)
    ignore = [_tidy(label) for label in shot.ignore]
    if shot.source.name in PARTS_LABELLED:
        # A drawn box that holds no whole person is smaller than a person ever is beside the others: leave it alone.
        tall = sorted((label.y2 - label.y1 for label in boxes if label.cls == 0), reverse=True)
        least = 0.2 * tall[0] if tall else 0.0
        parts = [label for label in boxes if label.cls == 0 and label.score == 1.0 and label.y2 - label.y1 < least]
        boxes = tuple(label for label in boxes if label not in parts)
        ignore += parts
    if shot.source.name in FIXED_CAMERAS and boxes:
        ignore += _horizon(boxes)
    return replace(shot, boxes=boxes, ignore=tuple(ignore))


def _horizon(boxes: tuple[Label, ...]) -> list[Label]:
    """Return the strip above the highest labelled vehicle: anything that drives there was too far to be labelled."""
    tops = [label.y1 for label in boxes if CLASSES[label.cls] in ("car", "bus", "truck")]
    top = min(tops, default=0.0)
    return [Label(CAR, 0.0, 0.0, 1.0, round(top, 4))] if top > 0.02 else []


def _tidy(label: Label) -> Label:
    x1, y1, x2, y2 = (min(1.0, max(0.0, value)) for value in (label.x1, label.y1, label.x2, label.y2))
    return Label(label.cls, x1, y1, x2, y2, label.score)

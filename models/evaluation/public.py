"""Labelled pictures of public repositories to judge networks by.

The command is python -m models.evaluation.public --clones DIR --out DIR. It brings six kinds of view, from sources that
are never learnt from, each at a fixed commit (`SOURCES`). The pictures stay in the cache and are never committed; their
perceptual hashes are (hashes.txt beside this file), and every picture that looks like one of them is left out of every
training set (`models.train.assemble`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from appliance.base.errors import UsageError
from appliance.detect.class_labels import COCO_80
from models.evaluation.sets import Labelled, SetFault
from models.train.dataset import as_hex, distances, phash, shrunk
from models.train.sources import Repository, find

Kind = Literal["stills", "indoor", "night", "vehicles", "pets", "streets"]
PUBLIC_KINDS: tuple[Kind, ...] = ("stills", "indoor", "night", "vehicles", "pets", "streets")
CAMERA_KINDS = ("ceilings", "above", "halls", "shops", "far", "yards", "dark-streets", "infrared", "thermal")
KINDS: tuple[str, ...] = (*PUBLIC_KINDS, *CAMERA_KINDS)
NAME, HASHES = "evaluation.jsonl", Path(__file__).with_name("hashes.txt")
SIDE_MAX = 1280
ALIKE_MAX = 2  # bits: frames of one camera that differ by less are one picture
GREY_MAX = 8.0  # mean difference of the colour channels of what an infrared camera sees
SUFFIXES = (".jpg", ".jpeg", ".png")
Pixels = NDArray[np.uint8]
Choice = Callable[[Pixels], bool]


def upright(picture: Pixels) -> bool:
    """Return whether no corner is black, as rotated copies of an export have them."""
    height, width = (side // 12 for side in picture.shape[:2])
    corners = (
        picture[:height, :width],
        picture[:height, -width:],
        picture[-height:, :width],
        picture[-height:, -width:],
    )
    return min(float(np.median(corner)) for corner in corners) > 6 or float(np.median(picture)) < 12


def grey(picture: Pixels) -> bool:
    """Return whether there is no colour in it."""
    spread = picture.max(axis=2).astype(np.int16) - picture.min(axis=2)
    return float(spread.mean()) < GREY_MAX


def upright_grey(picture: Pixels) -> bool:
    """Return whether it is an upright picture without colour."""
    return upright(picture) and grey(picture)


def upright_coloured(picture: Pixels) -> bool:
    """Return whether it is an upright picture in colour."""
    return upright(picture) and not grey(picture)


@dataclass(frozen=True, slots=True)
class Source:
    """The share of one repository in a kind of view.

    `labels` leads from a picture's path to its YOLO file's, by regular expression. `classes` are the names by those
    files' numbers. `judged` are the classes that people labelled throughout.
    """

    name: str
    kind: Kind
    repository: str
    commit: str
    pattern: str
    labels: tuple[str, str]
    classes: dict[int, str]
    judged: tuple[str, ...]
    licence: str
    most: int = 1000
    choice: Choice | None = field(default=None, compare=False)


PERSON = ("person",)
ALL = ("person", "bicycle", "car", "motorcycle", "bus", "truck", "cat", "dog")
BESIDE = (r"images/(.*)\.\w+$", r"labels/\1.txt")
CLIPS = "ansonmatt/Person-and-Boundary-Detection", "d19a8348a815492c83e7b8d047963aa30471e517"
RETAIL = "H-ottr/retail-monitor", "de264667e25c5122f250898735e99cd16535be23"
SOURCES: tuple[Source, ...] = (
    Source(
        "coco_val",
        "stills",
        "lightly-ai/coco128_yolo",
        "6d6f7a059ea63efffdbe48aca2d52c04d4c510e9",
        r"^images/val2017/",
        (r"^images/(.*)\.\w+$", r"object_detection/labels/\1.txt"),
        dict(enumerate(COCO_80)),
        ALL,
        "labels CC BY 4.0 (COCO); pictures from Flickr, licence by picture",
    ),
    Source(
        "clips_colour",
        "indoor",
        *CLIPS,
        r"^datasets/",
        BESIDE,
        {0: "person"},
        PERSON,
        "CC BY 4.0 (README.dataset.txt), origin of the clips unknown",
        90,
        upright_coloured,
    ),
    Source(
        "office",
        "indoor",
        "brianhuster/human-dataset",
        "9d1b33ddbecf64270e672027bc34beb566e3b2d3",
        r"human_tracking",
        BESIDE,
        {0: "person"},
        PERSON,
        "CC BY 4.0 (README.dataset.txt)",
        24,
    ),
    Source(
        "clips_grey",
        "night",
        *CLIPS,
        r"^datasets/",
        BESIDE,
        {0: "person"},
        PERSON,
        "CC BY 4.0 (README.dataset.txt), origin of the clips unknown",
        90,
        upright_grey,
    ),
    Source(
        "atl_traffic",
        "vehicles",
        "yuskun/object_detected",
        "aa099629e3c774c7c77fd9404f39f355be164941",
        r"^datasets/car/(valid|test)/images/",
        BESIDE,
        {1: "bus", 2: "car", 3: "truck"},
        ("vehicle",),
        "CC BY 4.0 (README.dataset.txt, atl-version-2)",
    ),
    Source(
        "cat_dog",
        "pets",
        "YeakubSadlil/Cat_Dog_Detection",
        "6b7252ba6950999995e6d3a524e41774446ce4a5",
        r"^Cat_dog_data/images/",
        BESIDE,
        {0: "cat", 1: "dog"},
        ("cat", "dog"),
        "none stated: judged by only",
    ),
    Source(
        "loitering",
        "streets",
        *RETAIL,
        r"^Who's-Loitering-2/",
        BESIDE,
        {0: "car", 1: "person", 2: "person", 3: "person"},
        PERSON,
        "CC BY 4.0 (README.dataset.txt)",
    ),
    Source(
        "runners", "streets", *RETAIL, r"^Running-man-1/", BESIDE, {0: "person"}, PERSON,
        "CC BY 4.0 (README.dataset.txt)", 40,
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Brought:
    """One picture of the cache: its labels as names and shares of the picture.

    ignored: regions in shares; an answer in one of them is neither right nor wrong.
    """

    image: str
    source: str
    kind: str
    judged: tuple[str, ...]
    boxes: tuple[tuple[str, float, float, float, float], ...]
    path: str
    sha256: str
    look: int
    ignored: tuple[tuple[float, float, float, float], ...] = ()

    def line(self) -> str:
        """Write one line of JSON."""
        boxes = [[name, *(round(side, 5) for side in sides)] for name, *sides in self.boxes]
        row = {
            "image": self.image, "source": self.source, "kind": self.kind, "judged": self.judged, "boxes": boxes,
            "path": self.path, "sha256": self.sha256, "phash": as_hex(self.look),
        }  # fmt: skip
        if self.ignored:
            row["ignored"] = self.ignored
        return json.dumps(row, separators=(",", ":"))


def bring(source: Source, repository: Repository, out: Path) -> Iterator[Brought]:
    """Yield the pictures of one source, written below `out`, in an order that is random but fixed."""
    everything = repository.names()
    present = set(everything)
    names = [name for name in everything if name.lower().endswith(SUFFIXES) and re.search(source.pattern, name)]
    names.sort(key=lambda name: hashlib.sha256(name.encode()).digest())
    looks: list[int] = []
    for name in names:
        beside = re.sub(*source.labels, name)
        if len(looks) >= source.most:
            return
        if beside == name or beside not in present:
            continue
        picture = cv2.imdecode(np.frombuffer(repository.read(name), np.uint8), cv2.IMREAD_COLOR)
        if picture is None:
            continue
        pixels = np.asarray(picture, np.uint8)
        if source.choice is not None and not source.choice(pixels):
            continue
        look = phash(pixels)
        if distances(np.array([look], np.uint64), np.array(looks, np.uint64)).min(initial=64) <= ALIKE_MAX:
            continue
        looks.append(look)
        boxes = tuple(_boxes(repository.read(beside).decode("utf-8", "replace"), source.classes))
        image = f"images/{source.name}/{hashlib.sha256(name.encode()).hexdigest()[:12]}.jpg"
        target = out / image
        target.parent.mkdir(parents=True, exist_ok=True)
        coded = cv2.imencode(".jpg", shrunk(pixels, SIDE_MAX), [cv2.IMWRITE_JPEG_QUALITY, 95])[1].tobytes()
        target.write_bytes(coded)
        digest = hashlib.sha256(coded).hexdigest()
        yield Brought(image, source.name, source.kind, source.judged, boxes, name, digest, look)


def read(folder: Path, name: str = NAME) -> list[Brought]:
    """Read everything that one command brought into a cache. Raise SetFault."""
    path = folder / name
    found = []
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            boxes = tuple((str(name), *map(float, sides)) for name, *sides in row["boxes"])
            found.append(
                Brought(
                    row["image"],
                    row["source"],
                    row["kind"],
                    tuple(row["judged"]),
                    boxes,  # type: ignore[arg-type]
                    row["path"],
                    row["sha256"],
                    int(row["phash"], 16),
                    tuple(tuple(map(float, box)) for box in row.get("ignored", ())),  # type: ignore[misc]
                )
            )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SetFault(f"{path}: not a cache of models.evaluation.public: {error!r}") from None
    return found


def labelled(folder: Path, brought: Sequence[Brought]) -> Iterator[Labelled]:
    """Yield the pictures and labels in pixels."""
    for each in brought:
        picture = cv2.imread(str(folder / each.image), cv2.IMREAD_COLOR)
        if picture is None:
            raise SetFault(f"{folder / each.image}: missing or not a picture")
        height, width = picture.shape[:2]
        boxes = (*(box[1:] for box in each.boxes), *each.ignored)
        sides = np.array(boxes, float).reshape(-1, 4) * [width, height, width, height]
        names = (*(box[0] for box in each.boxes), *("" for _ in each.ignored))
        crowd = np.arange(len(names)) >= len(each.boxes)
        pixels = np.asarray(picture, np.uint8)
        yield Labelled(each.image, pixels, sides, names, crowd, (width, height))


def _boxes(text: str, classes: dict[int, str]) -> Iterator[tuple[str, float, float, float, float]]:
    for line in text.splitlines():
        words = line.split()
        if len(words) < 5 or not words[0].isdigit():
            continue
        values = [float(word) for word in words[1:]]
        if len(values) == 4:
            x, y, width, height = values
            values = [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
        across, down = ([min(1.0, max(0.0, value)) for value in values[start::2]] for start in (0, 1))
        name = classes.get(int(words[0]))
        if name in ALL and max(across) > min(across) and max(down) > min(down):
            yield name, min(across), min(down), max(across), max(down)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and bring; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m models.evaluation.public", description=__doc__)
    parser.add_argument(
        "--clones", type=Path, required=True, help="folder of git repositories; missing ones are cloned"
    )
    parser.add_argument("--out", type=Path, required=True, help="the cache to fill")
    parser.add_argument("--hashes", type=Path, help=f"also write perceptual hashes there ({HASHES.name} is this file)")
    options = parser.parse_args(arguments)
    rows: list[Brought] = []
    try:
        for source in SOURCES:
            before = len(rows)
            rows += bring(source, find(options.clones, source.repository, source.commit), options.out)
            print(f"{len(rows) - before:5d}  {source.kind:9} {source.name}")
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    (options.out / NAME).write_text("".join(row.line() + "\n" for row in rows), encoding="utf-8")
    if options.hashes:
        options.hashes.write_text("".join(as_hex(look) + "\n" for look in sorted({row.look for row in rows})))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Bring pictures of public repositories into a cache: python -m models.train.gather --clones DIR --data DIR --out DIR.

Which repositories, at which commits, under which licences is `PUBLIC`. What looks like an evaluation picture, or like a
picture that is already there, is left out; what people did not label three teachers label. The folder that comes out
has the layout of data/train (merged.jsonl, sources.json, images/) and is given to `models.train.assemble
--photographs`; provenance.csv lists every picture by repository, commit and path. None of the pictures is ever
committed.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np

from appliance.base.errors import UsageError
from models.train import assemble, dataset, pseudo_labels
from models.train.dataset import CLASSES, IndexFault, Label, as_hex, distances, mirrored, phash, shrunk
from models.train.pseudo_labels import Teachers, with_drawn
from models.train.sources import Repository, find

log = logging.getLogger(__name__)
SIDE_MAX, SHORT_MIN = 416, 96
JPEG_QUALITY = 80
ALIKE_MAX = 6  # bits; two pictures nearer to each other show the same
SUFFIXES = (".jpg", ".jpeg", ".png")


@dataclass(frozen=True, slots=True)
class Public:
    """The pictures of one repository.

    `pattern` is that of their paths. `classes` are the classes that people labelled in YOLO files beside them, by those
    files' numbers (images/x.jpg has labels/x.txt), empty for none. No more than `most` are taken.
    """

    name: str
    repository: str
    commit: str
    pattern: str
    licence: str
    classes: dict[int, str] = field(default_factory=dict)
    most: int = 100_000


HUMANS = "brianhuster/human-dataset", "9d1b33ddbecf64270e672027bc34beb566e3b2d3"
OFFICES = "ahsanirfan961/Person-Tracker", "49473929cfd908d54becb8a0c8d9e9f7709f5aa1"
HUMANS_LICENCE = "CC BY 4.0 (README.dataset.txt); a collection of other sets, the uploader's statement"
OFFICES_LICENCE = "CC BY 4.0 (README.dataset.txt, siwookim/capston2 v11), the uploader's statement"

PUBLIC: tuple[Public, ...] = (
    Public(
        "oi_people",
        *HUMANS,
        r"/images/[0-9a-f]{16}_jpg",
        "CC BY 4.0 (README.dataset.txt); by their names Open Images, CC BY 2.0 pictures",
        {0: "person"},
    ),
    Public(
        "cats",
        "g3ngi/real-time-cat-detection",
        "1db2541dae956d023ef454db8a0db20d39a72798",
        r"^Cats-1/(train|valid|test)/images/",
        "CC BY 4.0 (README.dataset.txt: boxes); pictures Oxford-IIIT Pet, CC BY-SA 4.0",
        {0: "cat"},
        450,
    ),
    Public("pedestrians", *HUMANS, r"/images/img_\d+_jpg", HUMANS_LICENCE, {0: "person"}),
    Public("crosswalks", *HUMANS, r"/images/(train|val)_all_data--", HUMANS_LICENCE, {0: "person"}),
    Public("railways", *HUMANS, r"/images/crossing_people", HUMANS_LICENCE, {0: "person"}),
    Public("from_above", *HUMANS, r"/images/-\d+-_jpg", HUMANS_LICENCE, {0: "person"}, 400),
    Public("car_park_above", *HUMANS, r"/images/DJI_", HUMANS_LICENCE, {0: "person"}, 40),
    Public("campus_people", *OFFICES, r"/images/img\d+_jpg", OFFICES_LICENCE, {0: "person"}),
    Public("office_frames", *OFFICES, r"/images/frame_", OFFICES_LICENCE, {0: "person"}, 80),
    Public("office_camera", *OFFICES, r"/images/opencv_frame_", OFFICES_LICENCE, {0: "person"}, 50),
    Public("lobby", *OFFICES, r"/images/(clip_main_lobby|output|clip\d+_mp)", OFFICES_LICENCE, {0: "person"}, 80),
    Public("football", *OFFICES, r"/images/\d+_pp_jpg", OFFICES_LICENCE, {0: "person"}, 40),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One picture that was taken."""

    image: str
    source: Public
    path: str
    sha256: str
    look: int
    boxes: tuple[Label, ...]
    ignore: tuple[Label, ...]


class Gathering:
    """A folder that fills; knows every picture that it must not take."""

    def __init__(self, out: Path, guard: assemble.Fence, known: Sequence[int], panel: Teachers) -> None:
        """known: perceptual hashes of pictures that are learnt from already."""
        self._out, self._guard, self._panel = out, guard, panel
        self._looks = np.array(known, np.uint64)
        self.rows: list[Row] = []

    def take(self, source: Public, repository: Repository) -> int:
        """Take all fitting pictures of one source, in an order that is random but fixed; return how many."""
        names = [name for name in repository.names() if _fits(name, source)]
        names.sort(key=lambda name: hashlib.sha256(name.encode()).digest())
        present = set(repository.names()) if source.classes else set()
        before = len(self.rows)
        for name in names:
            if len(self.rows) - before >= source.most:
                break
            self._one(source, repository, name, labels_path(name) in present)
        return len(self.rows) - before

    def _one(self, source: Public, repository: Repository, name: str, labelled: bool) -> None:
        coded = repository.read(name)
        picture = cv2.imdecode(np.frombuffer(coded, np.uint8), cv2.IMREAD_COLOR)
        if picture is None or min(picture.shape[:2]) < SHORT_MIN:
            return
        pixels = np.asarray(picture, np.uint8)
        look, flipped = phash(pixels), mirrored(pixels)
        if self._guard.forbids(hashlib.sha256(coded).hexdigest(), look, flipped):
            log.info("%s: looks like an evaluation picture", name)
            return
        one = np.array([look, flipped], np.uint64)
        if distances(one, self._looks).min(initial=64) <= ALIKE_MAX:
            return
        self._looks = np.append(self._looks, one[0])
        text = repository.read(labels_path(name)).decode("utf-8", "replace") if labelled else ""
        drawn = tuple(yolo(text, source.classes))
        small = shrunk(pixels, SIDE_MAX)
        said = with_drawn(drawn, self._panel.label(small))
        image = f"images/{source.name}/{hashlib.sha256(coded).hexdigest()[:12]}.jpg"
        target = self._out / image
        target.parent.mkdir(parents=True, exist_ok=True)
        written = cv2.imencode(".jpg", small, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])[1].tobytes()
        target.write_bytes(written)
        digest = hashlib.sha256(written).hexdigest()
        self.rows.append(Row(image, source, name, digest, look, said.boxes, said.ignore))

    def write(self) -> None:
        """merged.jsonl, sources.json and provenance.csv for what was taken."""
        self._out.mkdir(parents=True, exist_ok=True)
        with (self._out / "merged.jsonl").open("w", encoding="utf-8") as file:
            for row in self.rows:
                boxes, ignore = ([label.row() for label in each] for each in (row.boxes, row.ignore))
                line = {"image": row.image, "source": row.source.name, "boxes": boxes, "ignore": ignore}
                file.write(json.dumps(line, separators=(",", ":")) + "\n")
        used = {row.source.name: row.source for row in self.rows}
        table = {
            name: {"use": "good", "licence": each.licence, "repo": each.repository, "commit": each.commit}
            for name, each in used.items()
        }
        (self._out / "sources.json").write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
        with (self._out / "provenance.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["image", "sha256", "phash", "repository", "commit", "path", "licence"])
            for row in self.rows:
                source = row.source
                writer.writerow(
                    [
                        row.image,
                        row.sha256,
                        as_hex(row.look),
                        source.repository,
                        source.commit,
                        row.path,
                        source.licence,
                    ]
                )


def labels_path(image: str) -> str:
    """Return where YOLO exports keep a picture's labels."""
    return str(Path(image.replace("images/", "labels/", 1)).with_suffix(".txt"))


def yolo(text: str, classes: dict[int, str]) -> Iterator[Label]:
    """Yield the labels from lines of class, centre and size, or class and a polygon; others are passed over."""
    for line in text.splitlines():
        cls, *words = line.split() or [""]
        try:
            name, values = classes.get(int(cls)), [float(word) for word in words]
        except ValueError:
            continue
        if name not in CLASSES or len(values) < 4:
            continue
        if len(values) == 4:
            x, y, width, height = values
            values = [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
        across, down = ([min(1.0, max(0.0, value)) for value in values[start::2]] for start in (0, 1))
        label = Label(CLASSES.index(name), min(across), min(down), max(across), max(down))
        if label.x2 - label.x1 > 1e-3 and label.y2 - label.y1 > 1e-3:
            yield label


def _fits(name: str, source: Public) -> bool:
    return name.lower().endswith(SUFFIXES) and re.search(source.pattern, name) is not None


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and gather; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m models.train.gather", description=__doc__)
    parser.add_argument(
        "--clones", type=Path, required=True, help="folder of git repositories; missing ones are cloned"
    )
    parser.add_argument("--data", type=Path, required=True, help="the reference data: evaluation pictures, teachers")
    parser.add_argument(
        "--beside", type=Path, action="append", default=[], help="assembled sets; what is in is not taken"
    )
    parser.add_argument("--fence", type=Path, action="append", default=[], help="further files of perceptual hashes")
    parser.add_argument("--only", action="append", help="only this source of PUBLIC; repeatable")
    parser.add_argument("--most", type=int, help="at most so many pictures of each source")
    parser.add_argument("--quick", action="store_true", help="one teacher labels, not three: a quarter of the time")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        guard = assemble.build_fence(options.data)
        for path in options.fence:
            guard = guard.wider(assemble.hashes_of(path))
        known = [int(entry.phash, 16) for folder in options.beside for entry in dataset.read(folder)]
        teachers = pseudo_labels.quick if options.quick else pseudo_labels.panel
        gathering = Gathering(options.out, guard, known, teachers(options.data / "models"))
        for source in PUBLIC:
            if not options.only or source.name in options.only:
                count = gathering.take(source, find(options.clones, source.repository, source.commit))
                log.info("%6d  %s", count, source.name)
        if not gathering.rows:
            raise IndexFault("nothing was taken")
        gathering.write()
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Put the training data together: python -m models.train.assemble --data ../shared/data --out vedette-data/set.

Photographs with people's and teachers' labels, frames of our rendered clips, our practice stills, and frames of
third-party footage that teachers label here, in one folder with one index. What is, or looks like, an evaluation
picture is left out by a fence of hashes and counted; sources without a clear licence are left out unless
--unclear-licences asks for them. Nothing in the folder may be published.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from appliance.base.command_exit import whole_number_between
from appliance.base.errors import UsageError
from models.evaluation import cameras
from models.train import dataset, pseudo_labels, sources
from models.train.dataset import Entry, IndexFault, Label, Split, as_hex, distances, from_hex, mirrored, phash, shrunk
from models.train.pseudo_labels import Opinion
from models.train.sources import Photograph, photographs

FENCED_FILMS = ("pets09_s2l1_vtest_768x576.mp4", "pets09_s2l1_vtest_480x360.mp4", "intel_one-by-one-person.mp4")
FENCED_WORDS = ("pets09", "pets2009", "one-by-one", "one_by_one", "groundtruth")
FENCED_EVERY = 5
FENCED_HASHES = Path("train/fence_hashes.txt")  # below the data: further evaluation pictures, by their hashes alone
OWN_FENCED_HASHES = Path(__file__).parents[1] / "evaluation" / "hashes.txt"  # what models.evaluation.public brings
NEAR_MAX = 6  # bits; the reference data were made unlike each other by the same bounds
NEAR_MIRRORED_MAX = 3
PICTURES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")


@dataclass(frozen=True, slots=True)
class Fence:
    """Hashes of everything behind it. Nothing is ever taken off."""

    sha256: frozenset[str] = frozenset()
    looks: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    mirrored: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))

    def forbids(self, sha256: str, look: int, flipped: int | None = None) -> bool:
        """Return whether a picture is an evaluation picture, or looks like one.

        The picture has this file hash and perceptual hash (`flipped`: of its mirror image).
        """
        if sha256 in self.sha256:
            return True
        one = np.array([look], np.uint64)
        near = distances(one, self.looks).min(initial=64) <= NEAR_MAX
        turned = distances(one, self.mirrored).min(initial=64) <= NEAR_MIRRORED_MAX
        if flipped is not None and not turned:
            other = np.array([flipped], np.uint64)
            turned = distances(other, self.looks).min(initial=64) <= NEAR_MIRRORED_MAX
        return bool(near or turned)

    def wider(self, looks: Sequence[int]) -> Fence:
        """Return this fence with further pictures, by their perceptual hashes."""
        return replace(self, looks=np.concatenate([self.looks, np.array(looks, np.uint64)]))


def barred(path: Path) -> bool:
    """Return whether the name alone says that a file is for evaluation only."""
    name = str(path).lower()
    return any(word in name for word in FENCED_WORDS)


def build_fence(data: Path) -> Fence:
    """Build the fence around all pictures that may not be learnt from.

    They are every 5th frame of the evaluation footage, every picture under groundtruth/ of `data`, the hashes of
    `FENCED_HASHES` and `OWN_FENCED_HASHES`, and those of the camera pictures (models/evaluation/cameras.jsonl).
    """
    shas, looks, flips = set(), [], []
    for path in sorted((data / "groundtruth").rglob("*")):
        if path.is_file():
            shas.add(hashlib.sha256(path.read_bytes()).hexdigest())
    for picture in _evaluation_pictures(data):
        looks.append(phash(picture))
        flips.append(mirrored(picture))
    fence = Fence(frozenset(shas), np.array(looks, np.uint64), np.array(flips, np.uint64))
    further = [path for path in (data / FENCED_HASHES, OWN_FENCED_HASHES) if path.is_file()]
    fence = fence.wider([look for path in further for look in hashes_of(path)])
    return fence.wider([picture.look for picture in cameras.table()])


def hashes_of(path: Path) -> list[int]:
    """Return the perceptual hashes of a file with one of 16 hex digits a line. Raise IndexFault."""
    try:
        return [from_hex(line.strip()) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise IndexFault(f"{path}: not a list of hashes: {error}") from None


def _evaluation_pictures(data: Path) -> Iterator[NDArray[np.uint8]]:
    for name in FENCED_FILMS:
        yield from (picture for _, picture, _ in sources.frames(data / "footage" / name, FENCED_EVERY))
    for path in sorted((data / "groundtruth").rglob("*")):
        if path.suffix.lower() in PICTURES:
            picture = cv2.imread(str(path))
            if picture is not None:
                yield np.asarray(picture, np.uint8)


log = logging.getLogger(__name__)
SIDE_MAX = 640  # of a frame that is stored; photographs stay as they are
JPEG_QUALITY = 90
VAL_SHARE = 0.06
# Whole clips that are only ever judged by: a room, a shop, a face at the door, the second mast of the rendered yard.
VAL_CLIPS = frozenset({"intel_preview_store-aisle-detection", "kvs_vogels_330", "gate"})


class Assembly:
    """A folder that fills with pictures. `counts` says what went in and what was left out, by source."""

    def __init__(self, out: Path, guard: Fence) -> None:
        self._out = out
        self._guard = guard
        self._seen: set[str] = set()
        self._images: set[str] = set()
        self.entries: list[Entry] = []
        self.counts: Counter[str] = Counter()

    def photograph(self, shot: Photograph) -> None:
        """Add a JPEG file as it is."""
        try:
            coded = shot.path.read_bytes()
        except OSError as error:
            raise IndexFault(f"{shot.path}: {error.strerror}") from None
        name = shot.source.name
        group = f"{name}/{shot.path.stem}"
        split = _side(hashlib.sha256(coded).hexdigest())
        image = f"images/{name}/{shot.path.name}"
        self._add(coded, _draft(image, shot.boxes, shot.ignore, name, split, shot.source.licence, group))

    def still(self, shot: sources.PracticeStill, source: str, licence: str) -> None:
        """Add one of our practice stills as it is; its folder's name keeps apart what other folders name alike."""
        try:
            coded = shot.path.read_bytes()
        except OSError as error:
            raise IndexFault(f"{shot.path}: {error.strerror}") from None
        name = f"{shot.path.parents[1].name}-{shot.path.stem}"
        split = _side(hashlib.sha256(coded).hexdigest())
        image = f"images/{source}/{name}.jpg"
        self._add(coded, _draft(image, shot.boxes, shot.ignore, source, split, licence, f"{source}/{name}"))

    def frame(self, picture: NDArray[np.uint8], name: str, said: Opinion, source: str, licence: str) -> None:
        """Add a frame of a film; `name` is its clip's stem and frame number."""
        picture = shrunk(picture, SIDE_MAX)
        coded = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])[1].tobytes()
        clip = name.rsplit("-", 1)[0]
        split: Split = "val" if clip in VAL_CLIPS else "train"
        image = f"images/{source}/{name}.jpg"
        self._add(coded, _draft(image, said.boxes, said.ignore, source, split, licence, f"{source}/{clip}"))

    def _add(self, coded: bytes, draft: Entry) -> None:
        picture = cv2.imdecode(np.frombuffer(coded, np.uint8), cv2.IMREAD_COLOR) if coded else None
        if picture is None:
            self.counts[f"{draft.source}: not a picture"] += 1
            return
        pixels = np.asarray(picture, np.uint8)
        sha256, look = hashlib.sha256(coded).hexdigest(), phash(pixels)
        if sha256 in self._seen:
            self.counts[f"{draft.source}: twice"] += 1
            return
        if self._guard.forbids(sha256, look, mirrored(pixels)):
            self.counts[f"{draft.source}: looks like an evaluation picture"] += 1
            log.warning("%s looks like an evaluation picture: left out", draft.image)
            return
        if draft.image in self._images:
            raise IndexFault(f"{draft.image}: two pictures have this name; one would get the labels of the other")
        self._seen.add(sha256)
        self._images.add(draft.image)
        target = self._out / draft.image
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(coded)
        height, width = picture.shape[:2]
        self.entries.append(replace(draft, sha256=sha256, phash=as_hex(look), width=width, height=height))
        self.counts[f"{draft.source}: {draft.split}"] += 1


def _draft(
    image: str, boxes: tuple[Label, ...], ignore: tuple[Label, ...], source: str, split: Split, licence: str, group: str
) -> Entry:
    """Return an entry that does not know its file's bytes yet."""
    return Entry(image, "", "", 0, 0, boxes, ignore, source, split, licence, group)


def assemble(options: argparse.Namespace) -> Assembly:
    """Assemble all kinds of pictures into options.out, and its index."""
    assembly = Assembly(options.out, build_fence(options.data))
    for folder in (options.data / "train", *options.photographs):
        for shot in photographs(folder, unclear=options.unclear_licences):
            assembly.photograph(shot)
    for folder in options.clips:
        for clip in sources.rendered_clips(folder):
            for number, picture, boxes, ignore in sources.rendered_pictures(clip, options.every):
                assembly.frame(picture, f"{clip.stem}-{number:05d}", Opinion(boxes, ignore), "rendered", "Apache-2.0")
    names = Counter(folder.resolve().name for folder in options.stills)
    if twice := [name for name, count in names.items() if count > 1]:
        raise IndexFault(f"--stills: two folders are named {twice[0]}; their pictures would overwrite each other")
    for folder in options.stills:
        for still in sources.stills(folder.resolve()):
            assembly.still(still, "practice", "Apache-2.0")
    if not options.no_footage:
        _footage(assembly, options.data)
    dataset.write(options.out, assembly.entries)
    return assembly


def _footage(assembly: Assembly, data: Path) -> None:
    teachers = pseudo_labels.pair(data / "models")
    for clip in sources.FOOTAGE:
        path = data / clip.path
        if barred(path.relative_to(data)):
            raise IndexFault(f"{clip.path}: evaluation footage is never learnt from")
        for number, picture, _ in sources.frames(path, clip.every):
            name = f"{path.stem}-{number:05d}"
            assembly.frame(picture, name, teachers.label(picture), "footage", clip.licence)


def _side(sha256: str) -> Split:
    """Choose the side of the split: one in sixteen photographs judges.

    The content decides, so that the answer outlives a new assembly.
    """
    return "val" if int(sha256[:8], 16) / 2**32 < VAL_SHARE else "train"


def report(assembly: Assembly) -> Iterator[str]:
    """Lines for a person: pictures by source, boxes by class and side of the split."""
    yield from (f"{count:6d}  {what}" for what, count in sorted(assembly.counts.items()))
    for side in ("train", "val"):
        labels = Counter(
            dataset.CLASSES[box.cls] for entry in assembly.entries if entry.split == side for box in entry.boxes
        )
        yield f"{side}: {json.dumps({name: labels[name] for name in dataset.CLASSES})}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and assemble; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m models.train.assemble", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the reference data folder (has train/, footage/ ...)")
    parser.add_argument("--out", type=Path, required=True, help="folder to fill; pictures already there stay")
    parser.add_argument("--clips", type=Path, action="append", help="folder of rendered clips (default fixtures/clips)")
    parser.add_argument(
        "--stills", type=Path, action="append", default=[], help="folder of practice stills (fixtures.render practice)"
    )
    help_photographs = "further folder in the layout of data/train (models.train.gather); repeatable"
    parser.add_argument("--photographs", type=Path, action="append", default=[], help=help_photographs)
    count = whole_number_between(1, 10_000, "count")
    parser.add_argument("--every", type=count, default=6, help="take every Nth frame of a rendered clip (default 6)")
    parser.add_argument("--unclear-licences", action="store_true", help="also sources marked check or unclear")
    parser.add_argument("--no-footage", action="store_true", help="leave out third-party footage (needs no teachers)")
    options = parser.parse_args(arguments)
    options.clips = options.clips or [Path(__file__).parents[2] / "fixtures" / "clips"]
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        assembly = assemble(options)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(report(assembly)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

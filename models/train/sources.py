"""Where a training set's pictures and labels come from.

- Files of public git repositories at a fixed commit, read without a work tree.
- Frames of films. No other module of training opens a container.
- The labelled photographs of `data/train`: which sources may be used, and what their lines say.
- Third-party footage that training may use, with labels from the teachers. A list, not a folder scan: what is not named
  here is not used, so that evaluation footage cannot slip in by being there.
- Our own rendered clips and practice stills, with exact boxes.
"""

from __future__ import annotations

import csv
import json
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from appliance.media.frames import upright_bgr, upright_size
from models.train.dataset import CLASSES, IndexFault, Label, labels

HOST = "https://github.com/"


class Repository:
    """One repository's files at one commit, through `git cat-file`."""

    def __init__(self, folder: Path, commit: str) -> None:
        """folder: a git directory or a clone. Raise IndexFault if the commit is not in it."""
        self._folder, self._commit = folder, commit
        self._run("cat-file", "-e", f"{commit}^{{commit}}")

    def names(self) -> list[str]:
        """Return all paths, in git's order."""
        listed = self._run("ls-tree", "-r", "-z", "--name-only", self._commit)
        return [name for name in listed.decode("utf-8", "replace").split("\0") if name]

    def read(self, path: str) -> bytes:
        """Read one file's bytes. Raise IndexFault."""
        return self._run("cat-file", "blob", f"{self._commit}:{path}")

    def _run(self, *arguments: str) -> bytes:
        done = subprocess.run(
            ["git", "-C", str(self._folder), *arguments], capture_output=True, check=False, timeout=300
        )
        if done.returncode:
            raise IndexFault(f"{self._folder}: git {arguments[0]}: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout


def find(clones: Path, name: str, commit: str) -> Repository:
    """Return the repository OWNER/NAME below `clones`; clone it if it is not there yet. Raise IndexFault."""
    flat = name.replace("/", "+")
    for folder in (clones / flat / "repo", clones / flat, clones / name, clones / f"{name}.git"):
        if folder.is_dir():
            return Repository(folder, commit)
    target = clones / f"{name}.git"
    target.parent.mkdir(parents=True, exist_ok=True)
    command = ["git", "clone", "--quiet", "--bare", f"{HOST}{name}.git", str(target)]
    done = subprocess.run(command, capture_output=True, check=False, timeout=3600)
    if done.returncode:
        raise IndexFault(f"{name}: cannot be cloned: {done.stderr.decode(errors='replace').strip()}")
    return Repository(target, commit)


def frames(path: Path, every: int) -> Iterator[tuple[int, NDArray[np.uint8], tuple[int, int]]]:
    """Yield (0-based number, BGR picture, its width and height) of every `every`th frame, upright as shown.

    A film that breaks off gives what came before the damage. Raise IndexFault if it does not open at all.
    """
    given = False
    try:
        with av.open(str(path)) as container:
            for index, frame in enumerate(container.decode(video=0)):
                if index % every:
                    continue
                given = True
                yield index, upright_bgr(frame), upright_size(frame)
    except (av.FFmpegError, OSError, IndexError) as error:
        if not given:
            raise IndexFault(f"{path}: no frame can be decoded: {error}") from None


CAR = CLASSES.index("car")
AGREED_SCORE_MIN = 0.35  # of an agreed pseudo label to be learnt; the same bound as in merged.jsonl
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


def photograph_sources(train: Path) -> dict[str, Source]:
    """Return all sources of sources.json. Raise IndexFault."""
    try:
        table = json.loads((train / "sources.json").read_text(encoding="utf-8"))
        return {name: Source(name, str(row["use"]), str(row["licence"])) for name, row in table.items()}
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise IndexFault(f"{train / 'sources.json'}: cannot be read: {error!r}") from None


def photographs(train: Path, *, unclear: bool = False) -> Iterator[Photograph]:
    """Yield every picture of merged.jsonl whose source's licence is clear (or all of them, if `unclear`)."""
    known = photograph_sources(train)
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
    boxes = tuple(_tidy(label) for label in shot.boxes if label.score >= AGREED_SCORE_MIN)
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


APACHE, CC_BY, BSD = "Apache-2.0", "CC-BY-4.0", "BSD"


@dataclass(frozen=True, slots=True)
class FootageClip:
    """A film under data/, its licence as its repository states it, and that every Nth frame is taken."""

    path: str
    licence: str
    every: int


FOOTAGE: tuple[FootageClip, ...] = (
    FootageClip("footage/ambianic_frontdoor_720p.mkv", APACHE, 4),
    FootageClip("footage/ambianic_office_1fps.avi", APACHE, 1),
    FootageClip("footage/aws_building_street_vfr.mkv", APACHE, 15),
    FootageClip("footage/intel_preview_people-detection.gif", CC_BY, 4),
    FootageClip("footage/intel_preview_store-aisle-detection.gif", CC_BY, 5),
    FootageClip("footage/intel_preview_worker-zone-detection.gif", CC_BY, 5),
    FootageClip("footage/intel_preview_classroom.gif", CC_BY, 8),
    FootageClip("footage/intel_preview_face-demographics-walking.gif", CC_BY, 4),
    FootageClip("streams/kvs_bezos_vogels.mkv", APACHE, 30),
    FootageClip("streams/kvs_output-get-media-non-increasing-timecode.mkv", APACHE, 20),
    FootageClip("streams/kvs_output_get_media_sparse_fragments.mkv", APACHE, 15),
    FootageClip("streams/kvs_vogels_330.mkv", APACHE, 45),
    FootageClip("streams/decord_pancake.mkv", APACHE, 30),
    FootageClip("streams/media3_internal_emulator_transformer_output_270_rotated.mp4", APACHE, 15),
    FootageClip("streams/media3_sample_without_stss.mp4", APACHE, 15),
    FootageClip("streams/media3_sample_12_5fps_720p_1s.mp4", APACHE, 6),
    FootageClip("streams/media3_bt601.mp4", APACHE, 15),
    FootageClip("streams/openh264_BA_MW_D_IDR_LOST.264", BSD, 20),
    FootageClip("streams/openh264_Cisco_Men_whisper_640x320_CABAC_Bframe_9.264", BSD, 8),
    FootageClip("streams/openh264_VID_1280x720_cabac_temporal_direct.264", BSD, 30),
    FootageClip("streams/openh264_Zhling_1280x720.264", BSD, 9),
    FootageClip("streams/torchcodec_nasa_13013.mp4", BSD, 25),
)


SEEN_MIN = 0.3  # share of a body that must be visible for its box to be learnt
SIDE_MIN = 6  # pixels of the rendered picture
# Names of the renderer that are not ours. On the van the teachers differ: YOLOX-nano says car a little more often than
# truck, DEIMv2-Femto mostly truck; judge vehicles together (models.evaluate --merge vehicle=car,bus,truck).
ALIASES = {"van": "car", "bike": "bicycle", "motorbike": "motorcycle", "lorry": "truck"}


STILLS = "stills.jsonl"  # as `python -m fixtures.render practice` writes it


@dataclass(frozen=True, slots=True)
class PracticeStill:
    """A practice picture: its JPEG file, what is to be learnt and what is to be ignored in it."""

    path: Path
    boxes: tuple[Label, ...]
    ignore: tuple[Label, ...]


def rendered_clips(folder: Path) -> list[Path]:
    """Return the clips of `folder` that have a truth file."""
    return [path for path in sorted(folder.glob("*.mp4")) if path.with_suffix(".gt.txt").is_file()]


def rendered_pictures(
    clip: Path, every: int
) -> Iterator[tuple[int, NDArray[np.uint8], tuple[Label, ...], tuple[Label, ...]]]:
    """Yield (frame, BGR picture, boxes, ignore) of every `every`th frame. Raise IndexFault."""
    classes = _classes(clip.with_suffix(".truth.json"))
    rows = _rows(clip.with_suffix(".gt.txt"))
    for number, picture, (width, height) in frames(clip, every):
        boxes: list[Label] = []
        ignore: list[Label] = []
        for cls, x, y, w, h, seen in rows.get(number + 1, ()):
            label = _label(classes[cls], (x, y, x + w, y + h), (width, height))
            (boxes if _clear(w, h, seen) else ignore).append(label)
        yield number, picture, tuple(boxes), tuple(ignore)


def stills(folder: Path) -> Iterator[PracticeStill]:
    """Yield the practice stills of `folder`, in the order of its index. Raise IndexFault with the wrong line."""
    path = folder / STILLS
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise IndexFault(f"{path}: the stills cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        try:
            yield _still(folder, json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise IndexFault(f"{path}, line {number}: not a still: {error!r}") from None


def _still(folder: Path, row: dict[str, object]) -> PracticeStill:
    size = int(str(row["width"])), int(str(row["height"]))
    boxes: list[Label] = []
    ignore: list[Label] = []
    if not isinstance(row["boxes"], list):
        raise TypeError("boxes are not a list")
    for name, *sides, seen in row["boxes"]:
        x1, y1, x2, y2 = (float(side) for side in sides)
        if ALIASES.get(name, name) not in CLASSES:
            raise ValueError(f"there is no class {name!r}")
        label = _label(CLASSES.index(ALIASES.get(name, name)), (x1, y1, x2, y2), size)
        (boxes if _clear(x2 - x1, y2 - y1, float(seen)) else ignore).append(label)
    return PracticeStill(folder / str(row["image"]), tuple(boxes), tuple(ignore))


def _label(cls: int, sides: tuple[float, float, float, float], size: tuple[int, int]) -> Label:
    """Return a box in pixels as shares of the picture, cut at its edges."""
    (x1, y1, x2, y2), (width, height) = sides, size
    return Label(cls, max(0.0, x1 / width), max(0.0, y1 / height), min(1.0, x2 / width), min(1.0, y2 / height))


def _clear(width: float, height: float, seen: float) -> bool:
    """Return whether a box of that many pixels and visible share is learnt; the rest is ignored."""
    return seen >= SEEN_MIN and min(width, height) >= SIDE_MIN


def _classes(truth: Path) -> dict[int, int]:
    try:
        names = json.loads(truth.read_text(encoding="utf-8"))["classes"]
        return {int(number): CLASSES.index(ALIASES.get(name, name)) for number, name in names.items()}
    except (OSError, ValueError, KeyError) as error:
        raise IndexFault(f"{truth}: its classes cannot be understood: {error!r}") from None


def _rows(path: Path) -> dict[int, list[tuple[int, float, float, float, float, float]]]:
    """Return the MOTChallenge rows by frame (from 1): class, x, y, width, height in pixels, visible share."""
    rows = defaultdict(list)
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.reader(file):
            x, y, w, h = (float(value) for value in row[2:6])
            if w > 0 and h > 0:
                rows[int(row[0])].append((int(row[7]), x, y, w, h, float(row[8])))
    return dict(rows)

"""Pictures of fixed cameras, labelled by eye: python -m models.evaluation.cameras --clones DIR --out DIR.

cameras.jsonl beside this file holds one line a picture: repository, commit, path, frame of a clip, the file's sha256,
perceptual hash, kind of view, site, persons and ignored regions in shares of the picture. Reference networks proposed
boxes at a low score (in infrared the difference from an empty frame did, or nobody); each picture was looked at, and
`proposals` counts what was kept, drawn anew (tightened), added and removed. The pictures stay in the cache.
The fence of `models.train.assemble` reads their perceptual hashes: none is learnt from.

None of them is in a commit either; several show sets of others (LLVIP, CDnet, I2R, CAVIAR, ETH/UCY, Mall). Licences:
Kitware/kwiver BSD-3-Clause; crowdbotp/OpenTraj MIT, the pictures are ETH's and UCY's; bupt-ai-cz/LLVIP free for
academic, not for commercial use, so judged by only; e-sha/Background-subtraction GPL-2.0, the pictures are CDnet's.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import av
import cv2
import numpy as np

from appliance.base.errors import UsageError
from models.evaluation.public import PERSON, SIDE_MAX, Brought, Pixels
from models.evaluation.sets import SetFault
from models.train.dataset import distances, from_hex, phash, shrunk
from models.train.sources import Repository, find

TABLE = Path(__file__).with_name("cameras.jsonl")
NAME = "cameras.jsonl"  # of what lies in a cache
LOOK_MAX = 2  # bits that a decoder may differ by

Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class CameraPicture:
    """One line of the table: boxes and ignored are x1 y1 x2 y2 in shares; frame: 0-based, None for a still."""

    repository: str
    commit: str
    path: str
    frame: int | None
    sha256: str
    look: int
    kind: str
    site: str
    boxes: tuple[Box, ...]
    ignored: tuple[Box, ...]
    proposals: dict[str, int]


def table(path: Path = TABLE) -> list[CameraPicture]:
    """Read the table. Raise SetFault with the line."""
    found = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SetFault(f"{path}: cannot be read: {error.strerror}") from None
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            boxes, ignored = (tuple(_box(box) for box in row[key]) for key in ("boxes", "ignored"))
            if not row["by_eye"]:
                raise ValueError("not labelled by eye")
            found.append(
                CameraPicture(
                    row["repository"],
                    row["commit"],
                    row["path"],
                    row["frame"],
                    row["sha256"],
                    from_hex(row["phash"]),
                    row["kind"],
                    row["site"],
                    boxes,
                    ignored,
                    row["proposals"],
                )
            )
        except (ValueError, KeyError, TypeError) as error:
            raise SetFault(f"{path}, line {number}: not a labelled picture: {error}") from None
    return found


def bring(pictures: Sequence[CameraPicture], clones: Path, out: Path) -> Iterator[Brought]:
    """Write the pictures below `out` and yield their rows; a file is read, and a clip decoded, once."""
    groups: dict[tuple[str, str, str], list[CameraPicture]] = defaultdict(list)
    for picture in pictures:
        groups[picture.repository, picture.commit, picture.path].append(picture)
    repositories: dict[tuple[str, str], Repository] = {}
    for (name, commit, path), wanted in groups.items():
        if (name, commit) not in repositories:
            repositories[name, commit] = find(clones, name, commit)
        content = repositories[name, commit].read(path)
        if hashlib.sha256(content).hexdigest() != wanted[0].sha256:
            raise SetFault(f"{name}: {path}: another file than the one that was labelled")
        for picture, pixels in _pixels(content, wanted):
            if (
                int(distances(np.array([picture.look], np.uint64), np.array([phash(pixels)], np.uint64)).min())
                > LOOK_MAX
            ):
                raise SetFault(f"{name}: {path}, frame {picture.frame}: looks unlike the one that was labelled")
            yield _written(picture, pixels, out)


def _pixels(content: bytes, wanted: Sequence[CameraPicture]) -> Iterator[tuple[CameraPicture, Pixels]]:
    frames = {picture.frame: picture for picture in wanted}
    if None in frames:
        decoded = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)
        if decoded is None:
            raise SetFault(f"{wanted[0].path}: not a picture")
        yield frames[None], np.asarray(decoded, np.uint8)
        return
    last = max(number for number in frames if number is not None)
    with av.open(io.BytesIO(content), "r") as container:
        for number, frame in enumerate(container.decode(video=0)):
            if number in frames:
                yield frames[number], np.asarray(frame.to_ndarray(format="bgr24"), np.uint8)
            if number >= last:
                return
    raise SetFault(f"{wanted[0].path}: the film ends before frame {last}, which was labelled")


def _written(picture: CameraPicture, pixels: Pixels, out: Path) -> Brought:
    place = f"{picture.repository}:{picture.path}:{picture.frame}"
    image = f"images/cameras/{hashlib.sha256(place.encode()).hexdigest()[:12]}.jpg"
    target = out / image
    target.parent.mkdir(parents=True, exist_ok=True)
    coded = cv2.imencode(".jpg", shrunk(pixels, SIDE_MAX), [cv2.IMWRITE_JPEG_QUALITY, 95])[1].tobytes()
    target.write_bytes(coded)
    return Brought(
        image, picture.site, picture.kind, PERSON, tuple(("person", *box) for box in picture.boxes), picture.path,
        hashlib.sha256(coded).hexdigest(), picture.look, picture.ignored,
    )  # fmt: skip


def _box(sides: Sequence[float]) -> Box:
    x1, y1, x2, y2 = map(float, sides)
    if not (0 <= x1 < x2 <= 1 and 0 <= y1 < y2 <= 1):
        raise ValueError(f"{sides} is no box in the picture")
    return x1, y1, x2, y2


def text(pictures: Sequence[CameraPicture]) -> str:
    """Write, for people, how many pictures, sites and persons each kind has, and the share that eyes changed."""
    lines = ["| kind | pictures | persons | sites |", "|---|---|---|---|"]
    for kind in sorted({picture.kind for picture in pictures}):
        mine = [picture for picture in pictures if picture.kind == kind]
        sites = sorted({picture.site for picture in mine})
        lines.append(f"| {kind} | {len(mine)} | {sum(len(each.boxes) for each in mine)} | {', '.join(sites)} |")
    counts = Counter[str]()
    for picture in pictures:
        counts.update(picture.proposals)
    changed = counts["tightened"] + counts["added"] + counts["removed"]
    lines += [
        "",
        f"{len(pictures)} pictures of {len({picture.site for picture in pictures})} sites; proposed boxes kept "
        f"{counts['kept']}, drawn anew {counts['tightened']}, removed {counts['removed']}; persons added "
        f"{counts['added']}: {changed / (changed + counts['kept']):.0%} changed by eye.",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and bring; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m models.evaluation.cameras", description=__doc__)
    parser.add_argument("--clones", type=Path, required=True, help="folder of git repositories; missing are cloned")
    parser.add_argument("--out", type=Path, required=True, help="the cache to fill, that of models.evaluation.public")
    options = parser.parse_args(arguments)
    try:
        pictures = table()
        rows = list(bring(pictures, options.clones, options.out))
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    (options.out / NAME).write_text("".join(row.line() + "\n" for row in rows), encoding="utf-8")
    print(text(pictures))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

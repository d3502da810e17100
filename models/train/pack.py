"""Pack an assembled set for a remote trainer: python -m models.train.pack --index vedette-data/set --out set.zip.

A borrowed GPU machine may take only so many bytes. Pictures are coded again, as WebP, at the best quality at which
all of them fit, smaller where even the least quality does not, and lie in one zip beside a new index. Unpack
there and train:

    python3 -m zipfile -e set.zip /tmp && python3 -m models.train.run --index /tmp/set --out ...

What does not fit at once travels in parts, `--part 1/2` and `--part 2/2`, each with an index of its own; there:

    for part in set-*.zip; do python3 -m zipfile -e $part /tmp; done; cat /tmp/set/index-*.jsonl > /tmp/set/index.jsonl
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import cv2

from appliance.base.errors import UsageError
from models.train import index
from models.train.index import Entry, IndexFault

FOLDER = "set"
# (longest side, WebP quality), best first. WebP needs about two thirds of JPEG's bytes at the same looks.
STEPS = ((416, 80), (416, 70), (416, 60), (416, 50), (416, 40), (384, 40), (352, 40), (320, 35), (288, 30))
PROBE = 60
OVERHEAD = 160  # bytes a file costs in a zip, names included twice
WRITTEN = (1980, 1, 1, 0, 0, 0)  # the same set makes the same zip


@dataclass(frozen=True, slots=True)
class Packed:
    """The result of packing: its size in bytes, the step that fitted."""

    size: int
    side: int
    quality: int
    pictures: int


def pack(root: Path, entries: Sequence[Entry], out: Path, budget: int, name: str = index.NAME) -> Packed:
    """Write the zip, at most `budget` bytes, its index called `name`.

    Raise IndexFault if nothing fits or a picture is missing.
    """
    for side, quality in STEPS:
        probe = entries[:: max(1, len(entries) // PROBE)]
        guess = sum(len(_coded(root, entry, side, quality)[0]) + OVERHEAD for entry in probe)
        if guess * len(entries) / len(probe) > budget * 1.1:
            continue
        if _write(root, entries, out, (side, quality), budget, name):
            return Packed(out.stat().st_size, side, quality, len(entries))
    raise IndexFault(f"{len(entries)} pictures do not fit into {budget} bytes; leave sources out with --drop")


def _write(root: Path, entries: Sequence[Entry], out: Path, step: tuple[int, int], budget: int, name: str) -> bool:
    """Write the zip and return whether everything went in.

    The budget is checked on the way, so that a wrong guess costs little.
    """
    fresh, lines, used = out.with_suffix(".part"), [], 0
    with zipfile.ZipFile(fresh, "w", zipfile.ZIP_STORED) as box:
        for coded, entry in _recoded(root, entries, step):
            _add(box, f"{FOLDER}/{entry.image}", coded)
            lines.append(entry.line() + "\n")
            used += len(coded) + len(lines[-1]) + OVERHEAD
            if used > budget:
                fresh.unlink()
                return False
        _add(box, f"{FOLDER}/{name}", "".join(lines).encode())
    if fresh.stat().st_size > budget:
        fresh.unlink()
        return False
    fresh.replace(out)
    return True


def _recoded(root: Path, entries: Sequence[Entry], step: tuple[int, int]) -> Iterator[tuple[bytes, Entry]]:
    for entry in entries:
        coded, (height, width) = _coded(root, entry, *step)
        sha256, image = hashlib.sha256(coded).hexdigest(), str(Path(entry.image).with_suffix(".webp"))
        yield coded, replace(entry, image=image, sha256=sha256, height=height, width=width)


def _coded(root: Path, entry: Entry, side: int, quality: int) -> tuple[bytes, tuple[int, int]]:
    """Return the WebP bytes and (height, width)."""
    path = root / entry.image
    picture = cv2.imread(str(path), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION) if path.is_file() else None
    if picture is None:
        raise IndexFault(f"{path}: missing or not a picture, but the index names it")
    shrink = side / max(picture.shape[:2])
    if shrink < 1:
        picture = cv2.resize(picture, None, fx=shrink, fy=shrink, interpolation=cv2.INTER_AREA)
    coded = cv2.imencode(".webp", picture, [cv2.IMWRITE_WEBP_QUALITY, quality])[1].tobytes()
    return coded, (picture.shape[0], picture.shape[1])


def _add(box: zipfile.ZipFile, name: str, content: bytes) -> None:
    box.writestr(zipfile.ZipInfo(name, WRITTEN), content)


def chosen(entries: Sequence[Entry], drop: Sequence[str]) -> list[Entry]:
    """Return the entries whose source is not dropped."""
    return [entry for entry in entries if entry.source not in drop]


def part(entries: Sequence[Entry], text: str) -> tuple[list[Entry], str]:
    """Return every Nth entry from the Kth, for the text K/N, and the name of that part's index. Raise IndexFault."""
    first, mark, parts = text.partition("/")
    if not (mark and first.isdigit() and parts.isdigit() and 1 <= int(first) <= int(parts)):
        raise IndexFault(f"--part {text}: K/N with whole numbers, K from 1 to N")
    name = index.NAME if parts == "1" else f"index-{first}.jsonl"
    return list(entries[int(first) - 1 :: int(parts)]), name


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and pack; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m models.train.pack", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--index", type=Path, required=True, help="folder of an assembled set")
    parser.add_argument("--out", type=Path, required=True, help="the .zip to write")
    parser.add_argument("--mib", type=float, default=55, help="most it may have, in MiB (default 55)")
    parser.add_argument("--drop", action="append", default=[], metavar="SOURCE", help="leave a source out; repeatable")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="only every Nth picture from the Kth")
    options = parser.parse_args(arguments)
    try:
        entries, name = part(chosen(index.read(options.index), options.drop), options.part)
        packed = pack(options.index, entries, options.out, int(options.mib * 2**20), name)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    size = packed.size / 2**20
    print(f"{options.out}: {packed.pictures} pictures at {packed.side} px, quality {packed.quality}, {size:.1f} MiB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Train on a borrowed GPU machine that has PyTorch and no network, in slices of minutes.

Here, once: the set in parts of at most 40 MiB, the teacher, the weights to start with, and the settings of the run:

    python -m models.train.remote pack --index vedette-data/set --teacher yolox_nano_416.onnx --init last.pt \\
        --out carry -- --design full --size 416 --scales 3 --steps 30000 --batch 64 --rate 0.003 --fall 0.5

Pictures are coded again, as WebP, at the best quality at which all of them fit, smaller where even the least quality
does not; each part is a zip with an index of its own.

There, with the repository and `carry`: one command, the same each time until it exits with 0 (3: not done yet).

    python3 -m models.train.remote slice --carry carry --out back --minutes 9

It checks the sha256 of all that came, trains, judges the average by the held-back pictures, exports it, and fills
`back`: at most 8 files of at most 16 MiB. If the machine was wiped, bring the last `back` along: --state DIR.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import shutil
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from appliance.base.errors import UsageError
from appliance.base.local_files import sha256_of
from models.train import dataset, run
from models.train.dataset import Entry, IndexFault, shrunk

FOLDER = "set"
# (longest side, WebP quality), best first. WebP needs about two thirds of JPEG's bytes at the same looks.
QUALITIES = ((416, 80), (416, 70), (416, 60), (416, 50), (416, 40), (384, 40), (352, 40), (320, 35), (288, 30))
PROBED_PICTURES = 60
ZIP_ENTRY_BYTES = 160  # bytes a file costs in a zip, names included twice
CARRIED, RETURNED = "carry.json", "back.json"
PART_MIB = 40.0  # what the borrowed machines that we know take at once is 64 MiB, the repository's 20 among them
FILES_MAX, FILE_MIB_MAX = 8, 16.0  # what they give back; a checkpoint of the design `full` is two files of 8 MiB
END_MINUTES = 1.5  # judging 573 pictures at 320 px and an export took 75 s on a core shared with four others
NEEDED = ("torch", "numpy", "cv2", "onnx")
WRITTEN = (1980, 1, 1, 0, 0, 0)  # the same set makes the same zip


@dataclass(frozen=True, slots=True)
class PackedSet:
    """The result of packing: its size in bytes, the step that fitted."""

    size: int
    side: int
    quality: int
    pictures: int


def packed_set(root: Path, entries: Sequence[Entry], out: Path, budget: int, name: str = dataset.NAME) -> PackedSet:
    """Write the zip, at most `budget` bytes, its index called `name`.

    Raise IndexFault if nothing fits or a picture is missing.
    """
    for side, quality in QUALITIES:
        probe = entries[:: max(1, len(entries) // PROBED_PICTURES)]
        guess = sum(len(_coded(root, entry, side, quality)[0]) + ZIP_ENTRY_BYTES for entry in probe)
        if guess * len(entries) / len(probe) > budget * 1.1:
            continue
        if _write_zip(root, entries, out, (side, quality), budget, name):
            return PackedSet(out.stat().st_size, side, quality, len(entries))
    raise IndexFault(f"{len(entries)} pictures do not fit into {budget} bytes; leave sources out with --drop")


def _write_zip(root: Path, entries: Sequence[Entry], out: Path, step: tuple[int, int], budget: int, name: str) -> bool:
    """Write the zip and return whether everything went in.

    The budget is checked on the way, so that a wrong guess costs little.
    """
    fresh, lines, used = out.with_suffix(".part"), [], 0
    with zipfile.ZipFile(fresh, "w", zipfile.ZIP_STORED) as box:
        for coded, entry in _recoded(root, entries, step):
            _add_to_zip(box, f"{FOLDER}/{entry.image}", coded)
            lines.append(entry.line() + "\n")
            used += len(coded) + len(lines[-1]) + ZIP_ENTRY_BYTES
            if used > budget:
                fresh.unlink()
                return False
        _add_to_zip(box, f"{FOLDER}/{name}", "".join(lines).encode())
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
    small = shrunk(np.asarray(picture, np.uint8), side)
    coded = cv2.imencode(".webp", small, [cv2.IMWRITE_WEBP_QUALITY, quality])[1].tobytes()
    return coded, (small.shape[0], small.shape[1])


def _add_to_zip(box: zipfile.ZipFile, name: str, content: bytes) -> None:
    box.writestr(zipfile.ZipInfo(name, WRITTEN), content)


def fill(options: argparse.Namespace) -> None:
    """Write all that must be carried into options.out. Raise IndexFault."""
    run.parser().parse_args([*options.settings, *places(Path("set"), Path("run"), 0)])  # exits where one is wrong
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    for old in (path for name in ("set-*.zip", "teacher.*", "init.*") for path in out.glob(name)):
        old.unlink()  # of a pack before: a slice takes whatever is there
    entries = [entry for entry in dataset.read(options.index) if entry.source not in options.drop]
    if len(entries) < options.parts:
        raise IndexFault(f"{len(entries)} pictures are left of {options.index}, for --parts {options.parts}")
    for number in range(1, options.parts + 1):
        chosen = entries[number - 1 :: options.parts]
        name = dataset.NAME if options.parts == 1 else f"index-{number}.jsonl"
        path = out / f"set-{number}.zip"
        packed = packed_set(options.index, chosen, path, int(options.mib * 2**20), name)
        print(f"{path}: {packed.pictures} pictures at {packed.side} px, {packed.size / 2**20:.1f} MiB")
    for given, name in ((options.teacher, "teacher"), (options.init, "init")):
        if given:
            shutil.copyfile(given, out / f"{name}{given.suffix}")
    write_list(out, CARRIED, settings=options.settings)
    print(f"carry the repository and {out}; there: python3 -m models.train.remote slice --carry {out} --out back")


def train_slice(options: argparse.Namespace) -> int:
    """Train for options.minutes, unpacking and judging included, and fill options.out; 0: the run is done, 3: not yet.

    Raise IndexFault where something is missing, was damaged on the way or does not fit.
    """
    begun = time.monotonic()
    settings = read_list(options.carry, CARRIED)["settings"]
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise IndexFault(f"this machine has no {', '.join(missing)}: bring wheels for its Python {sys.version[:4]}")
    work: Path = options.work
    folder, training = work / FOLDER, work / "run"
    unpack(options.carry, work)
    if options.state and not (training / "last.pt").is_file():
        training.mkdir(parents=True, exist_ok=True)
        for name in read_list(options.state, RETURNED)["files"]:
            shutil.copyfile(options.state / name, training / name)
    dataset.decoded(folder, dataset.read(folder), folder / "pictures.bin")  # a minute of the slice, not of the run
    given = [f"--{path.stem}={path}" for path in sorted(options.carry.glob("*")) if path.stem in ("teacher", "init")]
    left = options.minutes - END_MINUTES - (time.monotonic() - begun) / 60 if options.minutes else 0.0
    if options.minutes and left <= 0:
        raise IndexFault(f"--minutes {options.minutes:g}: checking and unpacking left no time; {END_MINUTES:g} is kept")
    arguments = [*settings, *given, *places(folder, training, left)]
    status = run.main(arguments)
    if status in (0, 3):
        bring_back(training, folder, options.out, run.parser().parse_args(arguments).size)
    return status


def bring_back(training: Path, folder: Path, out: Path, side: int) -> None:
    """Judge and export the averaged network of a run, and copy what the next slice and its owner need into `out`.

    side: of the pictures that it is judged by, in pixels. The export is for the size in use, as that of any run.
    """
    from models.train import export
    from models.train.checkpoint import judge

    network = export.load(training / "last.pt")
    entries = dataset.read(folder)
    held = [number for number, entry in enumerate(entries) if entry.split == "val"]
    pictures = dataset.decoded(folder, entries, folder / "pictures.bin")
    verdict = judge(network, pictures, entries, held, side)
    print(f"held back: AP50 {verdict.mean:.3f}, person {verdict.person:.3f} on {len(held)} pictures")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for path in (training / "last.pt", training / "log.jsonl", *training.glob("optimizer-*.pt")):
        shutil.copyfile(path, out / path.name)
    export.export(network, out / "network.onnx")
    write_list(out, RETURNED, ap50=verdict.mean, person=verdict.person, classes=verdict.classes)
    files = sorted(out.iterdir())
    large = [path.name for path in files if path.stat().st_size > FILE_MIB_MAX * 2**20]
    if large or len(files) > FILES_MAX:
        raise IndexFault(f"{out}: at most {FILES_MAX} files of {FILE_MIB_MAX:g} MiB come back: {', '.join(large)}")


def places(folder: Path, training: Path, minutes: float) -> list[str]:
    """Return the arguments that `pack` cannot know: where the set and the run lie there, and the minutes."""
    return ["--index", str(folder), "--out", str(training), "--minutes", f"{minutes:.3f}"]


def unpack(carry: Path, work: Path) -> None:
    """Unpack the parts into `work` and join their indices, unless that was done before from the same parts."""
    marker, listed = work / "unpacked", (carry / CARRIED).read_text(encoding="utf-8")
    if marker.is_file() and marker.read_text(encoding="utf-8") == listed:
        return
    shutil.rmtree(work / FOLDER, ignore_errors=True)  # another set's indices would be joined, too
    for part in sorted(carry.glob("set-*.zip")):
        with zipfile.ZipFile(part) as box:
            box.extractall(work)
    indices = sorted((work / FOLDER).glob("index-*.jsonl"))
    if indices:
        (work / FOLDER / dataset.NAME).write_text("".join(path.read_text() for path in indices))
    marker.write_text(listed, encoding="utf-8")


def write_list(folder: Path, name: str, **facts: Any) -> None:
    """Write the list of a folder's files with their sha256, and `facts` beside."""
    files = {path.name: sha256_of(path) for path in sorted(folder.iterdir()) if path.name != name and path.is_file()}
    (folder / name).write_text(json.dumps({**facts, "files": files}, indent=1) + "\n", encoding="utf-8")


def read_list(folder: Path, name: str) -> dict[str, Any]:
    """Return the list of a folder whose files are all there and as they were. Raise IndexFault."""
    try:
        listed: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise IndexFault(f"{folder / name}: {error}; models.train.remote writes it") from None
    for each, wanted in listed["files"].items():
        path = folder / each
        if not path.is_file():
            raise IndexFault(f"{path} is missing: carry it again")
        if sha256_of(path) != wanted:
            raise IndexFault(f"{path} is not what was sent (its sha256 differs): carry it again")
    return listed


def parser() -> argparse.ArgumentParser:
    """Return the parser of both commands."""
    made = argparse.ArgumentParser(
        prog="python -m models.train.remote", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = made.add_subparsers(required=True, metavar="pack|slice")
    here = commands.add_parser("pack", help="write the folder to carry")
    here.add_argument("--index", type=Path, required=True, help="folder of an assembled set")
    here.add_argument("--teacher", type=Path, help="yolox_nano_416.onnx")
    here.add_argument("--init", type=Path, help="last.pt or best.pt of a run, or one of our .onnx")
    here.add_argument("--out", type=Path, required=True, help="folder to fill")
    here.add_argument("--parts", type=int, default=3, help="of the set (default 3)")
    here.add_argument("--mib", type=float, default=PART_MIB, help=f"most a part may have (default {PART_MIB:g})")
    here.add_argument("--drop", action="append", default=[], metavar="SOURCE", help="leave a source out; repeatable")
    here.add_argument("settings", nargs="*", help="of models.train.run, after --")
    here.set_defaults(do=fill)
    there = commands.add_parser("slice", help="train there for some minutes")
    there.add_argument("--carry", type=Path, required=True, help="the folder that `pack` filled")
    there.add_argument("--out", type=Path, required=True, help="folder of what comes back; what is in it is replaced")
    there.add_argument("--work", type=Path, default=Path("/tmp/vedette-remote"), help="folder for the set and the run")
    there.add_argument("--state", type=Path, help="what an earlier slice gave back, where --work was lost")
    there.add_argument("--minutes", type=float, default=9, help="all in all; 0: no limit (default 9)")
    there.set_defaults(do=train_slice)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and pack or train; returns the exit status."""
    options = parser().parse_args(arguments)
    try:
        return options.do(options) or 0
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())

"""Input of Hailo's compiler, for our network or one of Hailo's zoo: python -m models.hailo_recipe NAME --out DIR.

The Dataflow Compiler and the model zoo's `hailomz` are Hailo's, behind a login, and run on x86-64 alone: they are not
called here. FOLDER gets everything they need, and compile.sh, which calls them:

- vedette-nano (or a path to an .onnx that models.train.export wrote): the network for one shape, cut behind its last
  convolutions, since what follows (exponents, grid, sigmoid) is wasted on integers and done by `HailoGridHead`; a
  calibration set (N, height, width, 3) uint8 RGB as the appliance lays frames out; the model script (normalisation on
  the chip, outputs in 16 bits, for a side of 13 cells has to be told from one of 13.4); the notes for the .hef.
- yolox_s_leaky (Apache-2.0): the zoo has network and script; FOLDER gets the calibration images and the notes.

`--site` calibrates on what the site's cameras recorded, spread over cameras and hours; the set in FOLDER is then
pictures of the site, which a person carries to the compiler and deletes. `--clip` is other footage; without both the
two clips of fixtures/ are taken, which is enough to try the tools and too little for use. `--check FOLDER` says whether
what came out fits.
"""

from __future__ import annotations

import argparse
import ast
import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
import onnx

from appliance import config
from appliance.base.command_exit import whole_number_between
from appliance.base.errors import ModelError, VedetteError
from appliance.detect import hef_file
from appliance.detect.letterbox import Letterbox
from appliance.detect.network_inputs import packed_frame
from models import shapes, variants
from models.train import sources
from models.train.dataset import IndexFault
from models.variants import Frame

MODELS = Path(__file__).parent
CLIPS = MODELS.parent / "fixtures" / "clips"
OWN = "vedette-nano"
ARCHITECTURES = ("hailo8", "hailo8l", "hailo8r")  # of Dataflow Compiler 3.x and zoo 2.x
COUNT, COUNT_MIN = 1024, 64  # the compiler's finer optimisations want 1024; calibration alone 64
EVERY = 25
RECIPE = "recipe.json"
SCRIPT = """\
normalization1 = normalization([0.0, 0.0, 0.0], [255.0, 255.0, 255.0])
model_optimization_config(calibration, batch_size=8, calibset_size={count})
quantization_param({{output_layer*}}, precision_mode=a16_w16)
"""


@dataclass(frozen=True, slots=True)
class ZooNetwork:
    """A network of Hailo's model zoo 2.x. size: of its input; placing: as its yaml lays images out."""

    size: tuple[int, int]
    placing: Literal["corner", "centre", "stretch"]


# hailo_model_zoo/cfg/base/yolox.yaml: centered false, padding_color 114; input_conversion(bgr_to_rgb) in its script.
ZOO = {"yolox_s_leaky": ZooNetwork((640, 640), "corner")}


class RecipeFault(ValueError):
    """It cannot be written, or what came out does not fit; the text says why."""


def write_own(model: Path, folder: Path, architecture: str, frames: Iterable[Frame], count: int) -> str:
    """Write everything for a network of ours, and return the name that the .hef will have.

    Raise RecipeFault, NotOurs.
    """
    source = shapes.load(model)
    told = _notes(source)
    if lacking := [key for key in ("imgsz", "names") if key not in told]:
        raise shapes.NotOurs(f"its metadata lack {' and '.join(lacking)}, which models.train.export writes")
    height, width = (int(side) for side in told["imgsz"].strip("[]").split(","))
    stem, name = model.stem, model.stem.replace("-", "_")  # the compiler's names of layers have no dashes
    onnx.save(shapes.cut_behind_convolutions(source, width, height), str(folder / f"{name}.onnx"))
    written = write_calibration(folder / "calibration.npy", frames, count, Letterbox(width, height, "centre"))
    (folder / f"{name}.alls").write_text(SCRIPT.format(count=written))
    names = ast.literal_eval(told["names"])
    hef = f"{stem}.{architecture}.hef"
    _write_notes(folder / hef, {"names": list(names.values()), "scores": "logits", "sides": "exponent"})
    _write_commands(
        folder,
        ["hailo", "parser", "onnx", f"{name}.onnx", "--hw-arch", architecture, "--har-path", f"{name}.har"],
        ["hailo", "optimize", f"{name}.har", "--hw-arch", architecture, "--calib-set-path", "calibration.npy",
         "--model-script", f"{name}.alls", "--output-har-path", f"{name}_optimized.har"],
        ["hailo", "compiler", f"{name}_optimized.har", "--hw-arch", architecture, "--output-dir", "."],
        ["mv", f"{name}.hef", hef],
    )  # fmt: skip
    _write_recipe(folder, stem, architecture, hef, written, [height, width, 3])
    return hef


def write_zoo(name: str, folder: Path, architecture: str, frames: Iterable[Frame], count: int) -> str:
    """Write everything for a network of Hailo's zoo that its tools do not bring. See `write_own`."""
    images = folder / "calibration"
    images.mkdir(exist_ok=True)
    for old in images.glob("*.png"):  # of another run, and perhaps of another site
        old.unlink()
    written = 0
    for written, frame in enumerate(islice(frames, count), 1):
        cv2.imwrite(str(images / f"{written:05}.png"), frame)
    _must_be_enough(written)
    hef = f"{name}.{architecture}.hef"
    _write_notes(folder / hef, {"names": "coco-80", "placing": ZOO[name].placing})
    _write_commands(
        folder,
        ["hailomz", "compile", name, "--hw-arch", architecture, "--calib-path", "calibration/"],
        ["mv", f"{name}.hef", hef],
    )
    width, height = ZOO[name].size
    _write_recipe(folder, name, architecture, hef, written, [height, width, 3])
    return hef


def write_calibration(target: Path, frames: Iterable[Frame], count: int, box: Letterbox) -> int:
    """Write at most `count` frames, laid out as the appliance does, RGB, and return how many there were.

    Raise RecipeFault.
    """
    room = target.with_suffix(".part")  # half a gigabyte need not lie in memory
    rows = np.lib.format.open_memmap(room, "w+", np.uint8, (count, box.height, box.width, 3))
    written = 0
    for written, frame in enumerate(islice(frames, count), 1):
        rows[written - 1] = packed_frame(box.lay(frame), "NHWC", rgb=True)
    np.save(target, rows[:written])
    room.unlink()
    _must_be_enough(written)
    return written


def check(folder: Path) -> str:
    """Describe the compiler's output in a line. Raise RecipeFault if it is missing, or for something else."""
    try:
        recipe: dict[str, Any] = json.loads((folder / RECIPE).read_text(encoding="utf-8"))
        hef, architecture = folder / recipe["hef"], recipe["architecture"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecipeFault(f"{folder / RECIPE}: it is no recipe of ours ({error}): write it anew with --out") from None
    if not hef.is_file():
        raise RecipeFault(f"{hef} is not there: run compile.sh where Hailo's tools are, and copy it back")
    try:
        header, notes = hef_file.read_header(hef), hef_file.read_notes(hef)
    except ModelError as error:
        raise RecipeFault(str(error)) from None
    if header.architecture != architecture:
        raise RecipeFault(f"{hef} was compiled for {header.architecture or '?'}, not {architecture}")
    if not notes.labels:
        raise RecipeFault(f"{hef_file.notes_file(hef)} names no classes: copy it beside the .hef")
    return (
        f"{hef}: for {header.architecture}, by Dataflow Compiler {header.compiler or '?'}, {len(notes.labels)} classes"
    )


def _frames(clips: Sequence[Path], count: int, every: int) -> Iterator[Frame]:
    """Yield the same share of each clip, so that no camera crowds out another."""
    share = -(-count // max(1, len(clips)))
    left = count
    for clip in clips:
        for taken, (_, frame, _) in enumerate(sources.frames(clip, every), 1):
            yield frame
            left -= 1
            if taken >= share or not left:
                break
        if not left:
            return


def _must_be_enough(written: int) -> None:
    if written < COUNT_MIN:
        raise RecipeFault(
            f"{written} frames are too few to calibrate with, {COUNT_MIN} the least: record more, --clip, or --every 1"
        )


def _notes(model: onnx.ModelProto) -> dict[str, str]:
    return {each.key: each.value for each in model.metadata_props}


def _write_notes(hef: Path, notes: dict[str, object]) -> None:
    hef_file.notes_file(hef).write_text(json.dumps(notes, indent=1) + "\n", encoding="utf-8")


def _write_commands(folder: Path, *commands: list[str]) -> None:
    script = folder / "compile.sh"
    # The parser may ask whether to add a post-process; ours is the appliance's.
    lines = [("yes n | " if each[1] == "parser" else "") + shlex.join(each) for each in commands]
    script.write_text('#!/bin/sh\nset -eu\ncd "$(dirname "$0")"\n' + "\n".join(lines) + "\n", encoding="utf-8")
    script.chmod(0o755)


def _write_recipe(folder: Path, name: str, architecture: str, hef: str, frames: int, shape: list[int]) -> None:
    recipe = {"network": name, "architecture": architecture, "hef": hef, "frames": frames, "input": shape}
    (folder / RECIPE).write_text(json.dumps(recipe, indent=1) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and write, or check; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m models.hailo_recipe", description=__doc__)
    parser.add_argument("network", nargs="?", help=f"{OWN}, {', '.join(ZOO)}, or a path to an .onnx of ours")
    parser.add_argument("--out", type=Path, help="the folder to write")
    parser.add_argument("--arch", choices=ARCHITECTURES, default="hailo8l", help="of the device (default hailo8l)")
    parser.add_argument("--site", type=Path, metavar="FILE", help="calibrate on what this site's cameras recorded")
    parser.add_argument(
        "--clip", type=Path, action="append", default=[], help="or with this footage; repeatable, without --site"
    )
    count = whole_number_between(1, 100_000, "count")
    parser.add_argument("--count", type=count, default=COUNT, help=f"frames at most (default {COUNT})")
    parser.add_argument("--every", type=count, default=EVERY, help=f"take every Nth frame (default {EVERY})")
    parser.add_argument("--check", type=Path, metavar="FOLDER", help="say whether what was compiled there fits")
    options = parser.parse_args(arguments)
    try:
        if options.check:
            print(check(options.check))
            return 0
        if not options.network or not options.out:
            parser.error("a network and --out, or --check")
        if options.site and options.clip:
            raise RecipeFault("--site and --clip are both given: calibrate on one of them, and leave the other out")
        options.out.mkdir(parents=True, exist_ok=True)
        model = MODELS / f"{OWN}.onnx" if options.network == OWN else Path(options.network)
        if options.site:
            site = config.load(options.site)
            frames = variants.each_recorded_frame(site.storage.dir, sorted(site.cameras), options.count)
        else:
            frames = _frames(options.clip or sorted(CLIPS.glob("*.mp4")), options.count, options.every)
        asked = (options.out, options.arch, frames, options.count)
        if options.network in ZOO:
            hef = write_zoo(options.network, *asked)
        elif model.is_file():
            hef = write_own(model, *asked)
        else:
            raise RecipeFault(f"{options.network} is neither {OWN}, {', '.join(ZOO)} nor a file")
    except (RecipeFault, shapes.NotOurs, IndexFault, VedetteError) as error:
        print(f"hailo_recipe: {error}")
        return 2
    print(f"{options.out}: holds frames of the footage, so keep it as you would a recording")
    print(
        f"{options.out}: run compile.sh where Hailo's tools are, then --check; the appliance wants {hef} and its .json"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

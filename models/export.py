"""Converts networks of others, and variants of any network, to files that the appliance loads.

    python -m models.export ultralytics yolo11n.pt --out models/yolo11n.onnx --size 416 416
    python -m models.export rfdetr nano --weights checkpoint.pth --out models/rfdetr-nano.onnx
    python -m models.export detr ../D-FINE --config configs/dfine/dfine_hgnetv2_n_coco.yml --weights dfine_n_coco.pth
                                 --labels coco-80 --out models/dfine-n.onnx
    python -m models.export variant models/yolo11n.onnx --kind int8 --site site.yaml --out models/yolo11n-int8.onnx
    vedette scenario compare models/yolo11n.onnx models/yolo11n-int8.onnx my-footage/

Each file says of itself what it is: names, stride, source, licence, sha256 of the weights, exporter. It is loaded once
as the appliance would before it is called done. The exporters are not part of Vedette: Ultralytics is AGPL-3.0 (code
and weights), which whoever uses it here accepts; RF-DETR, D-FINE and DEIM are Apache-2.0 but for some weights.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

import onnx

from appliance import config
from appliance.base.command_exit import os_error_text, whole_number_between
from appliance.base.errors import ModelError, UsageError, VedetteError
from appliance.bundle.manifest import sha256_of
from appliance.detect import class_labels
from appliance.detect.model_advice import VARIANT_KEY
from appliance.detect.network_detector import NetworkDetector
from appliance.detect.onnx_runtime import OnnxRuntime
from appliance.detect.yolo_detr_ssd_heads import HEAD_KEY, NORMALISATION_KEY
from models import shapes, variants
from models.variants import NotExportable

OPSET = 17  # ONNX Runtime, OpenVINO 2025, TensorRT 10.3 and Hailo's compiler read it
AGPL = (
    "Ultralytics, its networks and what is exported from them are AGPL-3.0, or under a licence bought from them: who "
    "serves them must offer the whole source. Vedette itself does not import it."
)
ULTRALYTICS_CURE = "pip install 'vedette[export]' (AGPL-3.0), in an environment of its own"
RFDETR_CURE = "pip install 'rfdetr[onnx]', in an environment of its own"
RFDETR_SIZES = {"nano": "RFDETRNano", "small": "RFDETRSmall", "medium": "RFDETRMedium", "large": "RFDETRLarge"}
EXPORT_S_MAX, GIT_S_MAX = 1800.0, 10.0
CLIPS = Path(__file__).parents[1] / "fixtures" / "clips"
CLIPS_EVERY = 60


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """The written file. `input` is the frame's, as text; `head` says how the appliance reads its answer."""

    path: str
    sha256: str
    bytes: int
    head: str
    input: str
    opset: int
    labels: tuple[str, ...]
    licence: str
    source: str
    variant: str = ""


def export_ultralytics(
    weights: Path, folder: Path, size: tuple[int, int], *, end_to_end: bool, free: bool
) -> tuple[Path, dict[str, str]]:
    """Export the weights; return the file and what is known of it. Raise UsageError if Ultralytics is not installed."""
    os.environ.setdefault("YOLO_AUTOINSTALL", "false")  # it would install packages by itself
    os.environ.setdefault("YOLO_OFFLINE", "true")
    try:
        from ultralytics import YOLO  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise UsageError(f"ultralytics cannot be imported ({error}): {ULTRALYTICS_CURE}") from None
    copied = folder / weights.name  # it writes beside the weights
    shutil.copyfile(weights, copied)
    # nms None: the usual head [1, 4 + classes, n], of YOLO26 too; False: the one without NMS, [1, 300, 6].
    made = YOLO(str(copied), task="detect").export(
        format="onnx",
        imgsz=[size[1], size[0]],
        opset=OPSET,
        dynamic=free,
        simplify=False,  # it would install onnxslim by itself
        nms=False if end_to_end else None,
        batch=1,
        device="cpu",
    )
    version = _version("ultralytics")
    return Path(made), {
        "source": f"ultralytics {version}, {weights.name}",
        "exporter": f"ultralytics {version}",
        HEAD_KEY: "yolo",
    }


def export_rfdetr(size: str, weights: Path, folder: Path, side: int | None) -> tuple[Path, dict[str, str]]:
    """Export the weights; return the file and what is known of it. Raise UsageError."""
    try:
        import rfdetr  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise UsageError(f"rfdetr cannot be imported ({error}): {RFDETR_CURE}") from None
    model = getattr(rfdetr, RFDETR_SIZES[size])(pretrain_weights=str(weights))
    shape = None if side is None else (side, side)
    path = model.export(output_dir=str(folder), opset_version=OPSET, shape=shape, batch_size=1, verbose=False)
    found = Path(path) if path is not None else folder / "inference_model.onnx"  # rfdetr before 1.5 returns nothing
    version = _version("rfdetr")
    return found, {
        "names": str(dict(enumerate(model.class_names))),
        "source": f"rfdetr {version}, {size}, {weights.name}",
        "exporter": f"rfdetr {version}",
        "license": str(getattr(model.model_config, "license", "Apache-2.0")),
        HEAD_KEY: "rf-detr",
    }


def export_detr(
    repository: Path, settings: Path, weights: Path, folder: Path, *, python: str, imagenet: bool
) -> tuple[Path, dict[str, str]]:
    """By the repository's own tools/deployment/export_onnx.py (D-FINE, DEIM, DEIMv2). Raise UsageError."""
    script = repository / "tools" / "deployment" / "export_onnx.py"
    if not script.is_file():
        raise UsageError(
            f"{repository} has no tools/deployment/export_onnx.py: give a checkout of D-FINE, DEIM or DEIMv2"
        )
    copied = folder / f"{weights.stem}.pth"
    shutil.copyfile(weights, copied)
    place = settings if settings.is_absolute() else repository / settings
    command = [python, str(script.resolve()), "--config", str(place.resolve()), "--resume", str(copied)]
    try:
        done = subprocess.run(
            command, cwd=repository, capture_output=True, text=True, timeout=EXPORT_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{' '.join(command)}: {error}") from None
    made = copied.with_suffix(".onnx")
    if not made.is_file():  # a failing `--simplify` comes after the file was written
        last = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        raise UsageError(f"{script} ended with {done.returncode} and wrote nothing: {last[:300]}")
    exporter = f"{repository.resolve().name} {_commit(repository)}"
    notes = {
        "source": f"{exporter}, {settings.name}, {weights.name}",
        "exporter": exporter,
        "license": "Apache-2.0",
        HEAD_KEY: "detr",
    }
    if imagenet or "dinov3" in settings.name.lower():
        notes |= {NORMALISATION_KEY: "imagenet", "license": "Apache-2.0, of a DINOv3 backbone: read Meta's licence"}
    return made, notes


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def _commit(repository: Path) -> str:
    command = ["git", "-C", str(repository), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_S_MAX, check=False)
    except (OSError, subprocess.TimeoutExpired):  # no git here, for what is only a note
        return "of no known commit"
    return done.stdout.strip() or "of no commit"


def finish(path: Path, target: Path, notes: Mapping[str, str], labels: tuple[str, ...] = ()) -> ExportedFile:
    """Check what an exporter wrote, note in it what is known, and load it as the appliance does. Raise ModelError."""
    model = onnx.load(str(path))
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        raise ModelError(f"{path}: {str(error).splitlines()[0]}") from None
    known = {each.key: each.value for each in model.metadata_props}
    told = {**known, **notes, "task": known.get("task", "detect")}
    if labels:
        told["names"] = str(dict(enumerate(labels)))
    onnx.helper.set_model_props(model, told)
    draft = _draft(target)
    try:
        onnx.save(model, str(draft))
        found = describe(draft)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return replace(found, path=str(target))


def describe(path: Path, labels: tuple[str, ...] = ()) -> ExportedFile:
    """Describe the file as the appliance loads it. Raise ModelError."""
    network = NetworkDetector(path, OnnxRuntime(path), label_names=labels)
    notes = network.runtime.metadata
    head, shape = network.head_name, str(network.runtime.inputs[0])
    return _described(path, onnx.load(str(path)), notes, head, shape, network.labels)


def describe_for_hailo(path: Path) -> ExportedFile:
    """Describe a file for Hailo's compiler, which the appliance does not load."""
    model = onnx.load(str(path))
    notes = {each.key: each.value for each in model.metadata_props}
    head = f"raw grids, for Hailo's compiler: {', '.join(each.name for each in model.graph.output)}"
    shape = ", ".join(str(each.dim_value) for each in model.graph.input[0].type.tensor_type.shape.dim)
    return _described(path, model, notes, head, shape, ())


def _described(
    path: Path, model: onnx.ModelProto, notes: Mapping[str, str], head: str, shape: str, labels: tuple[str, ...]
) -> ExportedFile:
    return ExportedFile(
        path=str(path),
        sha256=sha256_of(path),
        bytes=path.stat().st_size,
        head=head,
        input=shape,
        opset=max(each.version for each in model.opset_import if each.domain in ("", "ai.onnx")),
        labels=labels,
        licence=notes.get("license", ""),
        source=notes.get("source", ""),
        variant=notes.get(VARIANT_KEY, ""),
    )


def _exported(options: argparse.Namespace, folder: Path) -> ExportedFile:
    """Run one of the three exporters. Raise UsageError, ModelError."""
    weights: Path = options.weights
    if not weights.is_file():
        raise UsageError(f"{weights}: no such file (nothing is downloaded here: fetch the weights, read their licence)")
    labels = class_labels.read(options.labels) if options.labels else ()
    _say(f"{weights.name}: exporting …")
    if options.verb == "ultralytics":
        _say(AGPL)
        size = (options.size[0], options.size[1])
        path, notes = export_ultralytics(weights, folder, size, end_to_end=options.end_to_end, free=options.free)
    elif options.verb == "rfdetr":
        path, notes = export_rfdetr(options.kind, weights, folder, options.side)
    else:
        path, notes = export_detr(
            options.repository, options.config, weights, folder, python=options.python, imagenet=options.imagenet
        )
    return finish(path, options.out, {**notes, "weights_sha256": sha256_of(weights)}, labels)


def _variant(options: argparse.Namespace) -> ExportedFile:
    """Write the variant. Raise UsageError, NotExportable, ModelError, StoreError, ConfigError."""
    if options.site is not None and options.clip:
        raise UsageError("--site and --clip are both given: calibrate on one of them, and leave the other out")
    if not options.model.is_file():
        raise UsageError(f"{options.model}: no such file")
    if options.out.resolve() == options.model.resolve():
        raise UsageError(f"--out {options.out} is the network that the variant is made of: name another file")
    OnnxRuntime(options.model)  # refuses what is no network
    labels = class_labels.read(options.labels) if options.labels else ()
    frames = _calibration(options) if options.kind in ("int8", "tensorrt") else []
    _say(f"{options.model.name}: making the {options.kind} variant …")
    draft = _draft(options.out)
    try:
        variants.make_variant(options.model, draft, options.kind, frames, labels, options.float, options.bits)
        found = describe_for_hailo(draft) if options.kind == "hailo" else describe(draft, labels)
        draft.replace(options.out)
    finally:
        draft.unlink(missing_ok=True)
    return replace(found, path=str(options.out))


def _draft(target: Path) -> Path:
    """Return where `target` is written first, in its folder, which is made: a file under its own name was loaded."""
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.with_name(f".{target.stem}.draft.onnx")


def _calibration(options: argparse.Namespace) -> list[Any]:
    if options.site is None:
        clips = options.clip or sorted(CLIPS.glob("*.mp4"))
        if not options.clip:
            _say("calibrating on the bundled clips: --site calibrates on what your cameras recorded")
        return variants.clip_frames(clips, options.every)
    site = config.load(options.site)
    frames = variants.recorded_frames(
        site.storage.dir, sorted(site.cameras), options.frames, lambda done, of: _progress(options, done, of)
    )
    _say(f"calibrating on {len(frames)} recorded frames; none is kept, and nothing leaves this box")
    return frames


def _progress(options: argparse.Namespace, done: int, of: int) -> None:
    if sys.stderr.isatty() and not options.json:
        print(f"\r{done + 1}/{of} frames of the recording", end="" if done + 1 < of else "\n", file=sys.stderr)


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _print(found: ExportedFile, options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps(asdict(found), indent=1))
        return
    classes = f"{len(found.labels)} classes ({', '.join(found.labels[:4])}{' …' if len(found.labels) > 4 else ''})"
    print(f"{found.path}: {found.bytes / 1e6:.2f} MB, opset {found.opset}, input {found.input}")
    print(f"  read as {found.head}{f', {classes}' if found.labels else ''}")
    print(f"  from {found.source or 'unknown'}, licence: {found.licence or 'unknown: ask who made it'}")
    print(f"  sha256 {found.sha256}")
    if found.variant and found.variant != "hailo":
        print(f"  not yet measured: vedette scenario compare {options.model} {found.path} FOOTAGE")


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    root = argparse.ArgumentParser(prog="python -m models.export", description=__doc__, formatter_class=form)
    verbs = root.add_subparsers(dest="verb", metavar="VERB", required=True)

    def verb(name: str, text: str) -> argparse.ArgumentParser:
        parser = verbs.add_parser(name, help=text, description=text)
        parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the .onnx to write")
        parser.add_argument("--labels", type=Path, metavar="FILE", help="names of the classes, one a line, or coco-80")
        parser.add_argument("--json", action="store_true", help="print a JSON object instead of text")
        return parser

    yolo = verb("ultralytics", "a .pt of Ultralytics (AGPL-3.0): YOLOv8, YOLO11, YOLO26 …")
    yolo.add_argument("weights", type=Path, help="the .pt; nothing is downloaded")
    yolo.add_argument(
        "--size", type=int, nargs=2, default=(416, 416), metavar=("WIDTH", "HEIGHT"), help="default 416 416"
    )
    yolo.add_argument(
        "--free", action="store_true", help="height and width stay free: small inputs for parts of frames"
    )
    yolo.add_argument(
        "--end-to-end", action="store_true", help="the head without NMS, of YOLOv10 and YOLO26: [1, 300, 6]"
    )
    rfdetr = verb("rfdetr", "a checkpoint of RF-DETR (Apache-2.0; the largest sizes have another licence)")
    rfdetr.add_argument("kind", choices=sorted(RFDETR_SIZES), help="its size")
    rfdetr.add_argument("--weights", type=Path, required=True, help="the .pth; nothing is downloaded")
    rfdetr.add_argument("--side", type=int, help="of the square input (default: the network's own)")
    detr = verb("detr", "a checkpoint of D-FINE, DEIM or DEIMv2 (Apache-2.0), by their own script")
    detr.add_argument("repository", type=Path, help="a checkout of theirs")
    detr.add_argument("--config", type=Path, required=True, help="the .yml of the network, in the repository")
    detr.add_argument("--weights", type=Path, required=True, help="the .pth")
    detr.add_argument("--python", default=sys.executable, help="a Python that has what they need (torch …)")
    detr.add_argument("--imagenet", action="store_true", help="the input wants ImageNet's mean (DEIMv2 s to x do)")
    made = verb("variant", "FP16, integers (CPU or TensorRT), or what Hailo's compiler takes, of any .onnx")
    made.add_argument("model", type=Path, help="the .onnx, in float32")
    made.add_argument("--kind", choices=get_args(variants.Kind), required=True, help="what it is for")
    made.add_argument("--site", type=Path, metavar="FILE", help="calibrate on what this site's cameras recorded")
    count = whole_number_between(1, 10_000, "count")
    made.add_argument("--frames", type=count, default=variants.FRAMES, help=f"how many (default {variants.FRAMES})")
    made.add_argument(
        "--clip", type=Path, action="append", default=[], help="or on this film; repeatable, without --site"
    )
    made.add_argument("--every", type=count, default=CLIPS_EVERY, help=f"every Nth frame of it (default {CLIPS_EVERY})")
    made.add_argument(
        "--bits",
        type=int,
        choices=(7, 8),
        default=7,
        help="of int8's weights; 8 is slow on x86 without VNNI",
    )
    made.add_argument(
        "--float", action="append", default=[], metavar="NAME", help="leave layers with this in their name in float32"
    )
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and export; returns the exit status: 0 done, 2 not, with the reason in one line."""
    options = _parser().parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="vedette-export-") as folder:
            found = _variant(options) if options.verb == "variant" else _exported(options, Path(folder))
    except (VedetteError, NotExportable, shapes.NotOurs) as error:
        print(f"python -m models.export: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"python -m models.export: {os_error_text(error)}", file=sys.stderr)
        return 2
    _print(found, options)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Fine-tune the head of our network on a site's answers: python -m models.train.finetune --site SET --out new.onnx.

`vedette export --format training` makes the set. Backbone and neck stay as they are, byte for byte, so a bundle of the
result moves its head alone. The head is one small function at every cell of the grid (a 3x3 convolution, then 1x1 ones
for sides and classes), so what it reads is computed once, and it is trained on rows of cells: minutes on one CPU core.

Each cell is to answer as the network did before (distillation: nothing is forgotten), on pictures of the site and on
others (`--base`), but for what was answered: in a rejected box the class and those it is mistaken for are to be 0, in
a right one the network is to be a little surer. Of regions to ignore nothing is learnt. The whole network is trained
by `models.train.run --init`, on a GPU, with the site's set among others.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, smooth_l1_loss, unfold

from appliance.base.config_model import DetectorConfig
from appliance.base.errors import UsageError
from appliance.bundle.manifest import MANIFEST_FILE, BundleManifest, sha256_of
from appliance.detect import detector_loader
from appliance.detect.bundle_maker import CARD_FILE, describe_file
from appliance.detect.letterbox import Letterbox
from appliance.detect.model_advice import BASE_KEY
from appliance.detect.model_files import OWN_MODEL, present_models
from appliance.scenario.metrics import LabelledBoxes, average_precision
from models import shapes
from models.train import dataset, sources
from models.train.dataset import Entry, IndexFault, Label, kin
from models.train.geometry import Pixels
from models.train.loss import ious
from models.train.network import STRIDES, cells, corners

OWN = Path(__file__).parents[1] / "vedette-nano.onnx"
OWN_INT8 = OWN.with_name("vedette-nano-int8.onnx")
CLIPS = Path(__file__).parents[2] / "fixtures"
CLIP_EVERY = 25  # frames of our clips from one picture to the next
INT8_MAX = 127  # of weights, as `--bits 8` of models.export makes them
SIDE, STEP = 416, 32  # px: the network's input and the multiple that its sides are
SEEN_MIN = 0.02  # a cell that scores less is background, of which a sample is enough
BACKGROUND_CELLS = 150  # of a picture, drawn by chance
SAME_IOU = 0.4  # a cell means a box if its own overlaps it as much
SURER = 0.5  # log-odds by which a right box is to score higher than before
REJECTED_WEIGHT = 6.0  # of a cell in a rejected box, against 1 of any other: they are few
SIDES_WEIGHT = 2.0  # of the sides' error in log cells, against the cross entropy
BATCH, RATE = 4096, 2e-3  # cells a step; of Adam, falling to 0 by a cosine
SURE = 0.5  # score from which rules report, by default
LAYER = re.compile(r"^network\.branches\.(\d)\.(side_tower\.0\.fused|sides|classes)\.(weight|bias)$")


class Head(nn.Module):
    """The head at one stride, as a function of a cell's 3x3 neighbourhood."""

    def __init__(self, layers: Mapping[str, Tensor]) -> None:
        """layers: weight and bias of the convolutions `side_tower.0.fused`, `sides` and `classes`."""
        super().__init__()
        self.tower, self.sides, self.classes = (
            _linear(layers[f"{name}.weight"], layers[f"{name}.bias"])
            for name in ("side_tower.0.fused", "sides", "classes")
        )

    def forward(self, rows: Tensor) -> Tensor:
        """Turn (N, channels x 9) into (N, 4 + classes): log of the sides in cells, logits."""
        seen = torch.relu(self.tower(rows))
        return torch.cat([self.sides(seen), self.classes(seen)], 1)

    def layers(self) -> dict[str, Tensor]:
        """Return weights and biases under the names of the convolutions, flat."""
        parts = {"side_tower.0.fused": self.tower, "sides": self.sides, "classes": self.classes}
        return {
            f"{name}.{kind}": getattr(part, kind).detach()
            for name, part in parts.items()
            for kind in ("weight", "bias")
        }


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    made = nn.Linear(weight[0].numel(), len(weight))
    with torch.no_grad():
        made.weight.copy_(weight.flatten(1))
        made.bias.copy_(bias)
    return made


@dataclass(frozen=True, slots=True)
class TrainingPicture:
    """A picture to learn from: BGR pixels, and boxes as shares of it."""

    pixels: Pixels
    right: tuple[Label, ...] = ()
    rejected: tuple[Label, ...] = ()
    ignore: tuple[Label, ...] = ()

    def mirrored(self) -> TrainingPicture:
        """Return it as a mirror shows it."""
        flip = lambda labels: tuple(Label(each.cls, 1 - each.x2, each.y1, 1 - each.x1, each.y2) for each in labels)  # noqa: E731
        return TrainingPicture(self.pixels[:, ::-1], flip(self.right), flip(self.rejected), flip(self.ignore))


@dataclass(frozen=True, slots=True)
class Rows:
    """Cells of one stride: what the head reads (N, channels x 9), is to answer (N, classes) and sides (N, 4).

    weight: (N, classes), 0 where nothing is learnt; sides_weight: (N,).
    """

    seen: Tensor
    scores: Tensor
    sides: Tensor
    weight: Tensor
    sides_weight: Tensor


class Start:
    """The network before: its file, its heads, and its answers with what the heads read, picture by picture."""

    def __init__(self, path: Path) -> None:
        """Raise IndexFault if it is no network of the design `full`."""
        try:
            self.path, self.model = path, shapes.load(path)
        except shapes.NotOurs as error:
            raise IndexFault(f"{path}: {error}") from None
        layers: dict[int, dict[str, Tensor]] = {}
        for each in self.model.graph.initializer:
            if found := LAYER.match(each.name):
                value = torch.from_numpy(numpy_helper.to_array(each).copy())
                layers.setdefault(int(found[1]), {})[f"{found[2]}.{found[3]}"] = value
        if sorted(layers) != [0, 1, 2] or any(len(each) != 6 for each in layers.values()):
            raise IndexFault(f"{path}: not one of our networks with the head of the design `full`")
        self.heads = [Head(layers[number]) for number in range(len(STRIDES))]
        first = {f"network.branches.{number}.side_tower.0.fused.weight": number for number in layers}
        reads = {first.get(each.input[1]): each.input[0] for each in self.model.graph.node if each.op_type == "Conv"}
        self._reads = [reads[number] for number in range(len(STRIDES))]
        wider = onnx.ModelProto()
        wider.CopyFrom(self.model)
        wider.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in self._reads)
        settings = ort.SessionOptions()
        settings.intra_op_num_threads = 1
        self._session = ort.InferenceSession(wider.SerializeToString(), settings, providers=["CPUExecutionProvider"])
        self.box = Letterbox(SIDE, SIDE, "centre", STEP)

    def views(self, pixels: Pixels) -> list[Tensor]:
        """Return what the heads read, (1, channels, H, W) for each stride."""
        laid = self.box.lay(np.ascontiguousarray(pixels))[:, :, ::-1].transpose(2, 0, 1)
        feed = {"images": np.ascontiguousarray(laid, np.float32)[None] / np.float32(255)}
        return [torch.from_numpy(each) for each in self._session.run(self._reads, feed)]

    def place(self, labels: Sequence[Label], pixels: Pixels) -> Tensor:
        """Return boxes (N, 4) in pixels of the input."""
        at = self.box.placement(pixels.shape[1], pixels.shape[0])
        rows = [(each.x1, each.y1, each.x2, each.y2) for each in labels]
        size, corner = torch.tensor([at.width, at.height] * 2), torch.tensor([at.left, at.top] * 2)
        return torch.tensor(rows, dtype=torch.float32).reshape(-1, 4) * size + corner

    def saved(self, heads: Sequence[Head], out: Path) -> None:
        """Write the network with these heads; everything else stays as it is."""
        changed = onnx.ModelProto()
        changed.CopyFrom(self.model)
        for each in changed.graph.initializer:
            if found := LAYER.match(each.name):
                value = heads[int(found[1])].layers()[f"{found[2]}.{found[3]}"]
                array = value.numpy().reshape(tuple(each.dims)).astype(np.float32)
                each.CopyFrom(numpy_helper.from_array(array, each.name))
        onnx.save(changed, str(out))


@torch.no_grad()
def rows_of(start: Start, lesson: TrainingPicture, rng: np.random.Generator) -> list[Rows]:
    """Return the cells of a picture that are learnt from, by stride."""
    views = start.views(lesson.pixels)
    height, width = (side * STRIDES[0] for side in views[0].shape[2:])
    seen = [unfold(view, 3, padding=1)[0].t() for view in views]
    answers = [head(rows) for head, rows in zip(start.heads, seen, strict=True)]
    answer, grid = torch.cat(answers), cells(width, height)
    boxes = corners(answer.t()[None], grid)[0]
    scores, weight, sides_weight, wanted = _targets(start, lesson, answer, boxes, grid)
    background = np.flatnonzero(~wanted.numpy())
    chosen = wanted.clone()
    chosen[rng.choice(background, min(BACKGROUND_CELLS, len(background)), replace=False)] = True
    found, at = [], 0
    for part, own in zip(seen, answers, strict=True):
        where = slice(at, at + len(part))
        keep = chosen[where]
        found.append(
            Rows(part[keep].half(), scores[where][keep], own[keep, :4], weight[where][keep], sides_weight[where][keep])
        )
        at += len(part)
    return found


def _targets(
    start: Start, lesson: TrainingPicture, answer: Tensor, boxes: Tensor, grid: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return scores to answer with, their weights, those of the sides, and the cells that must be learnt from."""
    before = answer[:, 4:]
    logits, weight = before.clone(), torch.ones_like(before)
    best = before.sigmoid().amax(1)
    sides_weight, wanted = torch.where(best > SEEN_MIN, best, 0.0), best > SEEN_MIN
    for kind, labels in (("right", lesson.right), ("ignore", lesson.ignore), ("rejected", lesson.rejected)):
        for label, place in zip(labels, start.place(labels, lesson.pixels), strict=True):
            means = ious(boxes, place) >= SAME_IOU
            inside = ((grid[:2].t() > place[:2]) & (grid[:2].t() < place[2:])).all(1)
            classes = list(kin(label.cls))
            if kind == "right":
                logits[means, label.cls] = before[means, label.cls] + SURER
            elif kind == "ignore":
                weight[means | inside] = 0.0
            else:
                # A walker before the false object has a box of another shape: such cells answer as before.
                false = means | (inside & (best < SURE))
                logits[false.nonzero(), torch.tensor(classes)] = -12.0
                weight[false] = REJECTED_WEIGHT
                sides_weight[false] = 0.0
            wanted |= means | inside
    return logits.sigmoid(), weight, sides_weight, wanted


def joined(parts: Sequence[Rows]) -> Rows:
    """Return the cells of many pictures as one."""
    return Rows(*(torch.cat([getattr(part, name) for part in parts]) for name in Rows.__slots__))


def fit(head: Head, rows: Rows, epochs: int, seed: int) -> None:
    """Train a head in place."""
    optimizer = torch.optim.Adam(head.parameters(), lr=RATE)
    steps = max(1, -(-len(rows.seen) // BATCH)) * epochs
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for chosen in torch.randperm(len(rows.seen), generator=generator).split(BATCH):
            answer = head(rows.seen[chosen].float())
            wrong = binary_cross_entropy_with_logits(answer[:, 4:], rows.scores[chosen], reduction="none")
            away = smooth_l1_loss(answer[:, :4], rows.sides[chosen], reduction="none", beta=0.1).sum(1)
            loss = (wrong * rows.weight[chosen]).sum() + SIDES_WEIGHT * (away * rows.sides_weight[chosen]).sum()
            optimizer.zero_grad()
            # Shared out over what the cells are to answer, as in training: the many empty ones weigh nothing.
            (loss / rows.scores[chosen].sum().clamp(min=1.0)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            falling.step()


@dataclass(frozen=True, slots=True)
class Answers:
    """Answered boxes of some pictures that a network rejects or still reports."""

    rejected: int
    still_reported: int
    right: int
    found: int


def fine_tune(
    start: Start, lessons: Sequence[TrainingPicture], others: Sequence[TrainingPicture], epochs: int, seed: int
) -> list[Head]:
    """Return the heads, trained on pictures of the site (also as a mirror shows them) and on others."""
    rng = np.random.default_rng(seed)
    parts = [rows_of(start, each, rng) for lesson in lessons for each in (lesson, lesson.mirrored())]
    parts += [rows_of(start, each, rng) for each in others]
    heads = copy.deepcopy(start.heads)
    for number, head in enumerate(heads):
        fit(head, joined([part[number] for part in parts]), epochs, seed)
    return heads


@torch.no_grad()
def answers(start: Start, heads: Sequence[Head], lessons: Sequence[TrainingPicture]) -> Answers:
    """Count the answered boxes in which a cell that means them scores SURE or more."""
    counts = dict.fromkeys(("rejected", "still_reported", "right", "found"), 0)
    for lesson in lessons:
        views = start.views(lesson.pixels)
        height, width = (side * STRIDES[0] for side in views[0].shape[2:])
        answer = torch.cat([head(unfold(v, 3, padding=1)[0].t()) for head, v in zip(heads, views, strict=True)])
        boxes, scores = corners(answer.t()[None], cells(width, height))[0], answer[:, 4:].sigmoid()
        for total, sure, labels in (("rejected", "still_reported", lesson.rejected), ("right", "found", lesson.right)):
            for label, place in zip(labels, start.place(labels, lesson.pixels), strict=True):
                means = ious(boxes, place) >= SAME_IOU
                counts[total] += 1
                counts[sure] += bool((scores[means][:, list(kin(label.cls))] >= SURE).any())
    return Answers(**counts)


def measured(before: Path, written: Sequence[Path], lessons: Sequence[TrainingPicture]) -> list[float]:
    """Return the AP50 of each file against what the network before is sure of in these pictures; []: of nothing.

    Both precisions are measured alike, so it tells whether the INT8 variant may stand in for the float file.
    """
    truth = [each.boxes[each.values >= SURE] for each in _found(before, lessons)]
    if not sum(map(len, truth)):
        return []
    return [round(average_precision(_found(path, lessons), truth), 4) for path in written]


def _found(path: Path, lessons: Sequence[TrainingPicture]) -> list[LabelledBoxes]:
    network = detector_loader.load(DetectorConfig(model=str(path.resolve()), backend="onnx", device="cpu"))
    try:
        found = (network.detect([np.ascontiguousarray(each.pixels)])[0] for each in lessons)
        return [LabelledBoxes(each.boxes.astype(float), each.scores.astype(float)) for each in found]
    finally:
        network.close()


def site_lessons(folder: Path, split: dataset.Split) -> list[TrainingPicture]:
    """Return the pictures of one side of a site's set. Raise IndexFault, also where a path leads out of the folder."""
    return [
        TrainingPicture(_pixels(folder, each), each.boxes, each.rejected, each.ignore)
        for each in dataset.of(dataset.read(folder), split)
    ]


def base_lessons(folder: Path, count: int, seed: int) -> list[TrainingPicture]:
    """Return `count` pictures of an assembled set, or every one of our rendered clips' at an interval."""
    if folder == CLIPS:
        clips = [clip for part in ("clips", "family") for clip in sources.rendered_clips(folder / part)]
        frames = [picture for clip in clips for _, picture, _, _ in sources.rendered_pictures(clip, CLIP_EVERY)]
        return [
            TrainingPicture(frames[at]) for at in np.linspace(0, len(frames) - 1, min(count, len(frames))).astype(int)
        ]
    entries = dataset.read(folder)
    chosen = np.random.default_rng(seed).permutation(len(entries))[:count]
    return [TrainingPicture(_pixels(folder, entries[at])) for at in sorted(chosen)]


def _pixels(folder: Path, entry: Entry) -> Pixels:
    path = (folder / entry.image).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise IndexFault(f"{folder}: the index names {entry.image}, which is outside: take a set from `vedette export`")
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != entry.sha256:
        raise IndexFault(f"{path}: missing, or not the picture of the index: export the set again")
    picture = cv2.imread(str(path), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    if picture is None:
        raise IndexFault(f"{path}: not a picture")
    return np.asarray(picture, np.uint8)


def with_head(integers: onnx.ModelProto, heads: Sequence[Head]) -> onnx.ModelProto:
    """Return the INT8 variant of the network before with these heads; all else stays as it is.

    Weights of the towers get a scale a channel of their own; their inputs and outputs keep the ranges that were
    measured, since what is before them did not change, and what is after is float.
    """
    changed = onnx.ModelProto()
    changed.CopyFrom(integers)
    values = {each.name: each for each in changed.graph.initializer}

    def put(name: str, array: NDArray[Any]) -> None:
        made = array.reshape(tuple(values[name].dims)).astype(numpy_helper.to_array(values[name]).dtype)
        values[name].CopyFrom(numpy_helper.from_array(made, name))

    for number, head in enumerate(heads):
        layers = {name: value.numpy() for name, value in head.layers().items()}
        for part in ("sides", "classes"):
            for kind in ("weight", "bias"):
                put(f"network.branches.{number}.{part}.{kind}", layers[f"{part}.{kind}"])
        tower = f"network.branches.{number}.side_tower.0.fused"
        weight, bias = layers["side_tower.0.fused.weight"], layers["side_tower.0.fused.bias"]
        old_scale = numpy_helper.to_array(values[f"{tower}.weight_scale"])
        old_bias_scale = numpy_helper.to_array(values[f"{tower}.bias_quantized_scale"])
        scale = np.abs(weight).max(1) / INT8_MAX
        bias_scale = old_bias_scale / old_scale * scale
        put(f"{tower}.weight_scale", scale)
        put(f"{tower}.weight_quantized", np.clip(np.rint(weight / scale[:, None]), -INT8_MAX, INT8_MAX))
        put(f"{tower}.bias_quantized_scale", bias_scale)
        put(f"{tower}.bias_quantized", np.rint(bias / bias_scale))
    return changed


def save(start: Start, heads: Sequence[Head], out: Path, integers: Path | None) -> list[Path]:
    """Write the network, and beside it, as NAME-int8.onnx, the variant that `integers` becomes; return their paths."""
    start.saved(heads, out)
    if integers is None:
        return [out]
    made = with_head(onnx.load(str(integers)), heads)
    notes = {each.key: each.value for each in made.metadata_props}
    onnx.helper.set_model_props(made, {**notes, BASE_KEY: sha256_of(out)})
    beside = out.with_name(f"{out.stem}-int8.onnx")
    onnx.save(made, str(beside))
    return [out, beside]


def must_be_new(folder: Path) -> None:
    """Raise IndexFault if something is in the folder of a bundle."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise IndexFault(f"{folder} is there and not empty: name a new folder")


def write_bundle(written: Sequence[Path], folder: Path, pictures: int, figures: Sequence[float] = ()) -> BundleManifest:
    """Write the bundle of a re-trained vedette-nano: its float file and perhaps its INT8 variant; return the manifest.

    What was measured of vedette-nano is not true of it and left out. figures: those of `measured`, by which an
    appliance knows whether the variant is as accurate. Raise IndexFault if the folder holds something.
    """
    must_be_new(folder)
    known = present_models()
    own = known[OWN_MODEL]
    names = dict(zip((OWN_MODEL, f"{OWN_MODEL}-int8"), written, strict=False))
    entries, files = {}, {}
    for number, (name, path) in enumerate(names.items()):
        entry, data = known[name], path.read_bytes()
        files[entry.file] = data
        made = {"sha256": sha256_of(path), "bytes": len(data), "recall": {}, "unseen": {}, "url": ""}
        accuracy = {"as_before_ap50": figures[number]} if figures else {}
        entries[name] = entry.model_copy(update={**made, "accuracy": accuracy, "variants": {}})
    variants = {precision: name for precision, name in own.variants.items() if name in names}
    entries[OWN_MODEL] = entries[OWN_MODEL].model_copy(update={"variants": variants})
    text = f"# {OWN_MODEL}, its head re-trained on {pictures} pictures of a site\n\nLicence: {own.licence}\n"
    files[CARD_FILE] = text.encode()
    manifest = BundleManifest(
        name=OWN_MODEL, version=f"site-{entries[OWN_MODEL].sha256[:12]}", entries=entries,
        files={file: describe_file(file, data) for file, data in files.items()}, card=CARD_FILE,
        score_scale="common" if own.calibration else "own",
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    for file, data in {**files, MANIFEST_FILE: manifest.to_bytes()}.items():
        (folder / file).write_bytes(data)
    return manifest


@dataclass(frozen=True, slots=True)
class Retrained:
    """A network with a re-trained head: its files, the pictures that it learnt, and the answers before and after.

    figures: of each file, see `measured`.
    """

    written: list[Path]
    pictures: int
    others: int
    before: Answers
    after: Answers
    figures: list[float]


def retrain(start: Start, site: Path, out: Path, integers: Path | None, options: argparse.Namespace) -> Retrained:
    """Train the head on a site's set, as the options base, others, epochs and seed say, and write it to `out`.

    Raise IndexFault.
    """
    lessons, held_back = (site_lessons(site, split) for split in ("train", "val"))
    if not any(each.rejected or each.right for each in lessons):
        raise IndexFault(f"{site}: nothing was answered in it that could be learnt")
    others = base_lessons(options.base, options.others, options.seed)
    heads = fine_tune(start, lessons, others, options.epochs, options.seed)
    written = save(start, heads, out, integers)
    before, after = (answers(start, each, held_back) for each in (start.heads, heads))
    figures = measured(start.path, written, [*held_back, *others])
    return Retrained(written, len(lessons), len(others), before, after, figures)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, train, judge and write; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m models.train.finetune",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--site", type=Path, required=True, help="set of `vedette export --format training`")
    add("--out", type=Path, required=True, help="the .onnx to write; its INT8 variant lies beside it")
    add("--bundle", type=Path, metavar="DIR", help="also write a bundle there, for `vedette models publish`")
    add("--init", type=Path, default=OWN, help="the network to begin with (default: vedette-nano)")
    add("--integers", type=Path, help="its INT8 variant (default: that of vedette-nano, if --init is it)")
    add("--base", type=Path, default=CLIPS, help="an assembled set of other pictures (default: our rendered clips)")
    add("--others", type=int, default=150, help="how many of them (default 150)")
    add("--epochs", type=int, default=20, help="how often each cell is shown (default 20)")
    add("--threads", type=int, default=1, help="of PyTorch (default 1)")
    add("--seed", type=int, default=0, help="of the background cells, the other pictures and their order (default 0)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    try:
        if options.bundle:
            must_be_new(options.bundle)  # said before minutes of training
        start = Start(options.init)
        integers = options.integers or (OWN_INT8 if options.init == OWN else None)
        made = retrain(start, options.site, options.out, integers, options)
        bundle = write_bundle(made.written, options.bundle, made.pictures, made.figures) if options.bundle else None
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    report = {
        "written": [str(path) for path in made.written], "bundle": str(bundle.ref) if bundle else None,
        "pictures": made.pictures, "others": made.others, "before": asdict(made.before), "after": asdict(made.after),
        "as_before_ap50": made.figures,
    }  # fmt: skip
    print(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

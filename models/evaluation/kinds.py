"""One table for all networks and kinds of view: python -m models.evaluation.kinds --cache DIR NETWORK ...

The pictures are those of `models.evaluation.public` and, where they were brought, `models.evaluation.cameras`. Networks
are names of models.toml or paths to .onnx files, perhaps with what runs them (`vedette-nano+openvino-bf16`, whose cost
is not measured: --rounds 0); the first is what the others' shares are of. AP50, AP at IoU 0.7 and
AP50:95 with intervals of 90 % from a bootstrap over pictures; precision, recall and expected calibration error at a
score of 0.5 of persons; persons by height in the network's input; animals that are taken for a person; the CPU time of
one look. Every reading appends a line a network to models/runs/readings.jsonl.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from appliance.base.box_arrays import HeightFigures, iou_matrix
from appliance.base.command_exit import whole_number_between
from appliance.base.errors import VedetteError
from appliance.config import DetectorConfig
from appliance.detect import detector_loader, model_files
from appliance.detect.detector import ObjectDetector, UpscalingDetector
from models.evaluation import cameras, cost, public
from models.evaluation.arithmetic import Floats, Judged, Matched, average_precision, figures_by_height, joined, match
from models.evaluation.public import CAMERA_KINDS, KINDS, PUBLIC_KINDS, Brought
from models.evaluation.sets import Labelled, SetFault

SCORE_MIN = 0.02
READINGS = Path(__file__).parents[1] / "runs" / "readings.jsonl"
TIGHT = 0.7
IOUS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
ROUNDS = 300
BINS = 10
SURE = 0.5
ADVICE_MIN = 20  # boxes below which a figure says nothing
NAMES = ("person", "vehicle", "bicycle", "cat", "dog")
VEHICLES = ("car", "bus", "truck")
ANIMALS = ("cat", "dog")
ALIASES = {"motorbike": "motorcycle"}


@dataclass(frozen=True, slots=True)
class Figure:
    """The figures of one network on one class of one kind of view; ap70: AP at IoU 0.7.

    `low` and `high` are those of AP50, 90 % of the bootstrap. `precision` and `recall` are at SURE, IoU 0.5. `ece` is
    the mean distance between score and share of right answers, over answers from 0.1 on.
    """

    kind: str
    name: str
    boxes: int
    pictures: int
    ap50: float
    low: float
    high: float
    ap: float
    precision: float
    recall: float
    ece: float
    ap70: float


def load(name: str, threads: int = 1, score_min: float = SCORE_MIN) -> ObjectDetector:
    """Return a detector by name or file; each picture fills its input. Raise VedetteError."""
    model, _, runtime = name.partition("+")
    backend, _, precision = runtime.partition("-")
    asked = {"backend": backend, "precision": precision} if runtime else {}
    settings = {"model": model, "score_min": score_min, "threads": threads, **asked}
    return UpscalingDetector(detector_loader.load(DetectorConfig.model_validate(settings)))


def judged(eye: ObjectDetector, pictures: Iterable[Labelled], names: Mapping[str, str] = ALIASES) -> Iterator[Judged]:
    """Yield every picture with its labels and what the detector finds in it. names: the one that counts by others."""
    for picture in pictures:
        said = eye.detect([picture.pixels])[0]
        found = (eye.labels[cls] for cls in said.class_ids)
        yield Judged(
            picture.boxes,
            tuple(names.get(name, name) for name in picture.names),
            picture.crowd,
            said.boxes.astype(float) * np.array([*picture.size, *picture.size], float),
            tuple(names.get(name, name) for name in found),
            said.scores.astype(float),
            eye.preferred_size(picture.pixels.shape[1], picture.pixels.shape[0])[1] / picture.size[1],
        )


def figures(rows: Sequence[Brought], seen: Sequence[Judged], rounds: int = ROUNDS) -> list[Figure]:
    """Return all figures of one network, kind by kind and class by class; `vehicle` is any car, bus or truck."""
    table = []
    for kind in KINDS:
        for name in NAMES:
            wanted = VEHICLES if name == "vehicle" else (name,)
            places = [
                place
                for place, row in enumerate(rows)
                if row.kind == kind and (name in row.judged or set(wanted) <= set(row.judged))
            ]
            if places:
                found = figure(kind, name, wanted, [seen[place] for place in places], rounds)
                if found.boxes >= ADVICE_MIN:
                    table.append(found)
    return table


def figure(kind: str, name: str, wanted: Sequence[str], seen: Sequence[Judged], rounds: int = ROUNDS) -> Figure:
    """Return the figures of one class: any of `wanted`. Regions of these or without a name are ignored."""
    answers, truths, ignored = [], [], []
    for each in seen:
        mine = np.array([found in wanted for found in each.found_names], bool)
        right = np.array([truth in wanted for truth in each.truth_names], bool)
        answers.append((each.found[mine], each.scores[mine]))
        truths.append(each.truth[right & ~each.crowd])
        nameless = np.array([not truth for truth in each.truth_names], bool)
        ignored.append(each.truth[each.crowd & (right | nameless)])
    if len(wanted) > 1:
        answers = [_once(boxes, scores) for boxes, scores in answers]
    each_picture = [match([one], [truth], [void]) for one, truth, void in zip(answers, truths, ignored, strict=True)]
    whole = joined(each_picture)
    rng = np.random.default_rng(0)
    spread = [
        average_precision(joined([each_picture[place] for place in rng.integers(0, len(seen), len(seen))]))
        for _ in range(rounds)
    ]
    low, high = np.nanquantile(spread, (0.05, 0.95)) if spread else (np.nan, np.nan)
    by_iou = [average_precision(match(answers, truths, ignored, iou)) for iou in IOUS]
    precision, recall = at(whole, SURE)
    return Figure(
        kind, name, len(whole.found), len(seen), average_precision(whole), float(low), float(high),
        float(np.mean(by_iou)), precision, recall, calibration_error(whole), by_iou[IOUS.index(TIGHT)],
    )  # fmt: skip


def heights(rows: Sequence[Brought], seen: Sequence[Judged]) -> dict[str, tuple[HeightFigures, ...]]:
    """Return persons' AP by height in the network's input, of COCO's stills and of all fixed cameras together."""
    table = {}
    for name, group in (("stills", ("stills",)), ("cameras", CAMERA_KINDS)):
        chosen = [each for row, each in zip(rows, seen, strict=True) if row.kind in group and "person" in row.judged]
        found, truth = [], []
        for each in chosen:
            mine = np.array([found_name == "person" for found_name in each.found_names], bool)
            right = np.array([truth_name == "person" for truth_name in each.truth_names], bool) & ~each.crowd
            found.append((each.found[mine], each.scores[mine]))
            truth.append(each.truth[right])
        if chosen:
            ignored, scales = [each.truth[each.crowd] for each in chosen], [each.scale for each in chosen]
            table[name] = figures_by_height(found, truth, ignored, scales)
    return table


def at(matched: Matched, score: float) -> tuple[float, float]:
    """Return the precision and recall of the answers from `score` on; those on ignored regions do not count."""
    sure = (matched.scores >= score) & ~matched.void
    right = int(matched.hits[sure].sum())
    return right / max(1, int(sure.sum())), right / max(1, len(matched.found))


def calibration_error(matched: Matched) -> float:
    """Return the expected calibration error (arXiv:1706.04599) of answers from 0.1 on, in bins of a tenth.

    Answers on ignored regions do not count.
    """
    keep = (matched.scores >= 0.1) & ~matched.void
    scores, hits = matched.scores[keep], matched.hits[keep].astype(float)
    if len(scores) == 0:
        return float("nan")
    bins = np.minimum((scores * BINS).astype(int), BINS - 1)
    gaps = [
        abs(float(scores[bins == number].mean() - hits[bins == number].mean())) * int((bins == number).sum())
        for number in range(BINS)
        if (bins == number).any()
    ]
    return sum(gaps) / len(scores)


def taken_for_person(seen: Sequence[Judged], animal: str) -> tuple[int, int]:
    """Count the boxes of `animal` that are taken for a person, and all boxes of it.

    A box counts when the surest answer on it (at least SURE, IoU 0.5) is a person.
    """
    taken = total = 0
    for each in seen:
        sure = each.scores >= SURE
        names = np.array(each.found_names, object)[sure]
        shared = iou_matrix(each.truth[np.array([name == animal for name in each.truth_names], bool)], each.found[sure])
        surest = np.where(shared >= 0.5, each.scores[sure], 0.0)
        total += len(shared)
        if surest.size:
            best = surest.argmax(axis=1)
            taken += int(((surest.max(axis=1) > 0) & (names[best] == "person")).sum())
    return taken, total


def _once(boxes: Floats, scores: Floats) -> tuple[Floats, Floats]:
    """Answers of several classes for one thing are one answer, the surest."""
    kept: list[int] = []
    shared = iou_matrix(boxes, boxes)
    for place in np.argsort(-scores, kind="stable"):
        if all(shared[place, other] < 0.7 for other in kept):
            kept.append(int(place))
    return boxes[kept], scores[kept]


@dataclass(frozen=True, slots=True)
class Reading:
    """Figures of one network on the whole set; mistaken: animals taken for a person, of how many, by animal."""

    figures: list[Figure]
    heights: dict[str, tuple[HeightFigures, ...]]
    mistaken: dict[str, tuple[int, int]]

    def mean(self, kinds: Sequence[str]) -> float:
        """Return the mean of persons' AP50 over those kinds; nan where none was measured."""
        values = [each.ap50 for each in self.figures if each.name == "person" and each.kind in kinds]
        return float(np.mean(values)) if values else float("nan")


def text(readings: dict[str, Reading], times: dict[str, float]) -> str:
    """Write, for people, AP50 of every network side by side, then the rest of each, then their costs."""
    names = list(readings)
    tables = [each.figures for each in readings.values()]
    first = tables[0]
    head = [" | ".join(names) + " |", "|---|" + "---|" * len(names)]
    lines = ["| kind of view, class (pictures, boxes) | " + head[0], head[1]]
    for place, row in enumerate(first):
        cells = [f"{each[place].ap50:.3f} ({each[place].low:.2f}-{each[place].high:.2f})" for each in tables]
        lines.append(f"| {row.kind}, {row.name} ({row.pictures}, {row.boxes}) | " + " | ".join(cells) + " |")
    lines += ["", "AP at IoU 0.7 / AP50:95 / precision, recall at 0.5 / calibration error:", ""]
    lines += ["| kind of view, class | " + head[0], head[1]]
    for place, row in enumerate(first):
        cells = [
            f"{one.ap70:.3f} / {one.ap:.3f} / {one.precision:.2f}, {one.recall:.2f} / {one.ece:.2f}"
            for one in (each[place] for each in tables)
        ]
        lines.append(f"| {row.kind}, {row.name} | " + " | ".join(cells) + " |")
    for title, kinds in (("public kinds", PUBLIC_KINDS), ("fixed cameras", CAMERA_KINDS)):
        means = [each.mean(kinds) for each in readings.values()]
        if not np.isnan(means).all():
            lines.append(f"| person, mean AP50 over {title} | " + " | ".join(f"{mean:.3f}" for mean in means) + " |")
    for animal in ANIMALS:
        cells = ["{} of {}".format(*each.mistaken[animal]) for each in readings.values()]
        lines.append(f"| {animal}s said to be a person, at 0.5 | " + " | ".join(cells) + " |")
    if times:
        base = times[names[0]]
        cells = [f"{times[name]:.1f} ms ({times[name] / base:.2f})" for name in names]
        lines.append("| CPU time of one look, one thread | " + " | ".join(cells) + " |")
    lines += ["", "Persons by height in the network's input, AP50 / AP at IoU 0.7 (boxes):", ""]
    lines += ["| pictures, px | " + head[0], head[1]]
    for group, ranges in readings[names[0]].heights.items():
        for place, row_range in enumerate(ranges):
            cells = [height_cell(each.heights[group][place]) for each in readings.values()]
            lines.append(f"| {group}, {range_text(row_range)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def range_text(row: HeightFigures) -> str:
    """Write a range of heights for people."""
    return f"{row.low:g}-{row.high:g}" if np.isfinite(row.high) else f"{row.low:g}+"


def height_cell(row: HeightFigures) -> str:
    """Write the figures of one range of heights for people."""
    return "-" if row.ap50 is None or row.ap70 is None else f"{row.ap50:.3f} / {row.ap70:.3f} ({row.boxes})"


def log_reading(path: Path, name: str, network: Path, pictures: int, reading: Reading) -> None:
    """Append one line of JSON: date, network and its sha256, how many pictures, persons' AP50 by kind and height."""
    line = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "network": name,
        "sha256": hashlib.sha256(network.read_bytes()).hexdigest(),
        "pictures": pictures,
        "ap50": {f"{each.kind}, {each.name}": round(each.ap50, 4) for each in reading.figures},
        "person_ap70": {each.kind: round(each.ap70, 4) for each in reading.figures if each.name == "person"},
        "heights": {
            group: {range_text(each): [each.boxes, each.ap50, each.ap70] for each in ranges}
            for group, ranges in reading.heights.items()
        },
    }
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, default=float) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m models.evaluation.kinds", description=__doc__)
    parser.add_argument("model", nargs="+", help="names of models.toml or .onnx files")
    parser.add_argument("--cache", type=Path, required=True, help="what models.evaluation.public and cameras brought")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this kind of view; repeatable")
    parser.add_argument("--threads", type=int, default=1)
    rounds = whole_number_between(0, 100_000, "count")
    parser.add_argument("--rounds", type=rounds, default=30, help="of the measurement of cost; 0: none (default 30)")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    parser.add_argument("--log", type=Path, default=READINGS, help="where this reading is logged (default %(default)s)")
    options = parser.parse_args(arguments)
    try:
        if options.rounds and any("+" in name for name in options.model):
            raise SetFault("the cost of NETWORK+RUNTIME is not measured here: add --rounds 0")
        rows = public.read(options.cache)
        if (options.cache / cameras.NAME).is_file():
            rows += public.read(options.cache, cameras.NAME)
        rows = [row for row in rows if not options.kind or row.kind in options.kind]
        if not rows:
            raise SetFault(f"{options.cache}: no pictures of that kind")
        readings, paths = {}, {}
        for name, short in zip(options.model, cost.short_names(options.model), strict=True):
            seen = list(judged(load(name, options.threads), public.labelled(options.cache, rows)))
            mistaken = {animal: taken_for_person(seen, animal) for animal in ANIMALS}
            readings[short] = Reading(figures(rows, seen), heights(rows, seen), mistaken)
            paths[short] = model_files.find_model(name.partition("+")[0]).path
            log_reading(options.log, short, paths[short], len(rows), readings[short])
            print(f"{short}: {len(rows)} pictures", file=sys.stderr)
        times = cost.measure(paths, options.rounds) if options.rounds else {}
    except VedetteError as error:
        print(error, file=sys.stderr)
        return 2
    print(text(readings, times))
    if options.json:
        whole = {name: asdict(reading) for name, reading in readings.items()}
        options.json.write_text(
            json.dumps({"readings": whole, "cpu_ms": times}, indent=1, default=float) + "\n", encoding="utf-8"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

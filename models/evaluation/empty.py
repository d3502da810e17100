"""False persons where nobody is: python -m models.evaluation.empty --log FILE --clones DIR NETWORK ...

Rendered: every scene of `fixtures.render.family` without its people; cars with headlights, dogs, rain, wet ground,
leaves and changing light stay. A place is drawn anew for every PLACE_ROUNDS rounds; grain, rain and the moments looked
at differ in each. Real: sequences of fixed cameras on which eyes saw nobody (`REAL`). Both are sampled as
the appliance looks, 5 times a second, or by --looks as often as it looks at a quiet scene. Each pass, a scene under one
seed or a real sequence, is a line of the log; what is in it for the same network and as many looks is not done again,
so that the command goes on after a stop. A false person is an answer from 0.5 on; one that stays in its place for three
looks is what a track would be made of.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import cv2
import numpy as np

from appliance.base.box_arrays import Floats, iou_matrix
from appliance.base.errors import UsageError, VedetteError
from appliance.bundle.manifest import sha256_of
from appliance.detect import model_files
from appliance.detect.detector import ObjectDetector
from fixtures.render.family.held_back import HELD_BACK
from fixtures.render.family.make import SCENES, film
from fixtures.render.family.staging import Take
from fixtures.render.family.studio import Studio
from fixtures.render.mesh import Noise
from fixtures.render.scene import PERSON
from models.evaluation.kinds import SURE, load
from models.evaluation.public import Pixels
from models.train.sources import Repository, find

LOOKS_A_SECOND = 5.0  # the appliance's detector.fps
STAYS_LOOKS = 3  # a track is confirmed after as many
STAYS_IOU = 0.5
SEED_STEP = 1000  # between the seeds of two rounds
PLACE_ROUNDS = 36  # a place takes 10 s of CPU time to draw, a picture of it .3 s: two places a scene in six hours


@dataclass(frozen=True, slots=True)
class CameraSequence:
    """Pictures of one fixed camera in a repository, in the order of their names; fps: how far they are apart."""

    name: str
    repository: str
    commit: str
    pattern: str
    fps: float


REAL = (
    CameraSequence(
        "highway", "MahmudHasanMenon/Moving-Object-Detection-and-Tracking", "22354cd37bc13065cf135a09ae11ce9ca8135652",
        r"^highway/input/in\d+\.jpg$", 30.0,
    ),
    CameraSequence(
        "office", "e-sha/Background-subtraction", "6fec8854e076ca5e53fab3ec343e58935c9f56dc",
        r"^data/office/input/in000([0-4]\d\d|5[0-5]\d)\.jpg$", 30.0,
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Answers of networks on one scene or sequence. stays: false persons that stayed for STAYS_LOOKS looks."""

    kind: str
    name: str
    network: str
    seconds: float
    looks: int
    answers: int
    stays: int
    worst: float

    @property
    def key(self) -> tuple[str, str, str]:
        return self.kind, self.name, self.network


def named(model: str) -> str:
    """Return a network's name with the start of its sha256: another file of that name is another network."""
    path = model_files.find_model(model).path
    return f"{path.stem}@{sha256_of(path)[:8]}"


def sources(
    clones: Path | None, rounds: int, scenes: Sequence[str], looks: float = LOOKS_A_SECOND
) -> Iterator[tuple[str, str, float, Iterator[Pixels]]]:
    """Yield kind, name, seconds and pictures of every pass. Raise UsageError."""
    if unknown := sorted(set(scenes) - set(SCENES | HELD_BACK)):
        raise UsageError(f"--scene {unknown[0]}: no such scene; there are {', '.join(SCENES | HELD_BACK)}")
    rate = "" if looks == LOOKS_A_SECOND else f"@{looks:g}"
    for name, seconds, pictures in real(clones, looks) if clones else ():
        yield "real", name + rate, seconds, pictures
    for first in range(0, rounds, PLACE_ROUNDS):
        for name, make in (SCENES | HELD_BACK).items():
            if not scenes or name in scenes:
                for known, seconds, pictures in rendered(
                    name, make(), range(first, min(first + PLACE_ROUNDS, rounds)), looks
                ):
                    yield "rendered", known + rate, seconds, pictures


def rendered(
    name: str, take: Take, rounds: Sequence[int], looks: float = LOOKS_A_SECOND
) -> Iterator[tuple[str, float, Iterator[Pixels]]]:
    """Yield (name, seconds, BGR pictures) of each round of a scene without people, all in the first one's place."""
    actors = tuple(actor for actor in take.actors if actor.mover.kind != PERSON)
    empty = replace(take, actors=actors, noise=Noise(take.seed + rounds[0] * SEED_STEP))
    studio = cache(lambda: Studio(empty))  # drawn when a picture is asked for
    step = max(1, round(take.fps / looks))
    for seed in rounds:
        seeded = replace(empty, seed=take.seed + seed * SEED_STEP)
        yield f"{name}-{seed}", take.seconds, _filmed(seeded, range(seed * 7 % step, take.frames, step), studio)


def _filmed(take: Take, frames: Sequence[int], studio: Callable[[], Studio]) -> Iterator[Pixels]:
    for _, picture, _ in film(take, frames, studio()):
        yield np.asarray(picture[:, :, ::-1], np.uint8)


def real(clones: Path, looks: float = LOOKS_A_SECOND) -> Iterator[tuple[str, float, Iterator[Pixels]]]:
    """Yield (name, seconds, BGR pictures) of the real sequences. Raise UsageError."""
    for each in REAL:
        repository = find(clones, each.repository, each.commit)
        names = sorted(name for name in repository.names() if re.search(each.pattern, name))
        if not names:
            raise UsageError(f"{each.repository}: nothing there is called {each.pattern}")
        step = max(1, round(each.fps / looks))
        yield each.name, len(names) / each.fps, (_picture(repository, name) for name in names[::step])


def _picture(repository: Repository, name: str) -> Pixels:
    """Read one BGR picture. Raise UsageError: a pass that lacks looks would have too few false persons."""
    content = repository.read(name)
    picture = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR) if content else None
    if picture is None:
        raise UsageError(f"{name}: not a picture")
    return np.asarray(picture, np.uint8)


def count(
    detectors: dict[str, ObjectDetector], kind: str, name: str, seconds: float, pictures: Iterator[Pixels]
) -> list[Pass]:
    """Return what each network took for a person in the pictures of one pass."""
    said: dict[str, list[Floats]] = {network: [] for network in detectors}
    worst = dict.fromkeys(detectors, 0.0)
    looks = 0
    for picture in pictures:
        looks += 1
        for network, each in detectors.items():
            found = each.detect([picture])[0]
            persons = np.array([each.labels[cls] == "person" for cls in found.class_ids], bool)
            worst[network] = max(worst[network], float(found.scores[persons].max(initial=0.0)))
            said[network].append(found.boxes[persons & (found.scores >= SURE)].astype(float))
    return [
        Pass(
            kind=kind, name=name, network=network, seconds=seconds, looks=looks,
            answers=sum(map(len, boxes)), stays=stays(boxes), worst=round(worst[network], 3),
        )
        for network, boxes in said.items()
    ]  # fmt: skip


def stays(looks: Sequence[Floats]) -> int:
    """Count the boxes that stayed in their place for STAYS_LOOKS looks one after another, each once."""
    total = 0
    lengths = np.zeros(0, int)
    before = np.zeros((0, 4))
    for boxes in looks:
        shared = iou_matrix(boxes, before) >= STAYS_IOU
        lengths = np.array([1 + int(lengths[row].max(initial=0)) for row in shared], int)
        total += int((lengths == STAYS_LOOKS).sum())
        before = boxes
    return total


def text(passes: Sequence[Pass]) -> str:
    """Write, for people, hours and false persons of each network, real and rendered and each rate of looks apart."""
    lines = [
        "| network | pictures of | hours | looks | answers from 0.5 on | that stay | surest |",
        "|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str], list[Pass]] = {}
    for each in passes:
        mark, rate = each.name.partition("@")[1:]
        groups.setdefault((each.network, f"{each.kind}{mark}{rate}"), []).append(each)
    networks = list(dict.fromkeys(each.network for each in passes))
    for (network, kind), mine in sorted(groups.items(), key=lambda group: (networks.index(group[0][0]), group[0][1])):
        hours = sum(each.seconds for each in mine) / 3600
        counts = (sum(getattr(each, name) for each in mine) for name in ("looks", "answers", "stays"))
        worst = max(each.worst for each in mine)
        lines.append(f"| {network} | {kind} | {hours:.2f} | " + " | ".join(map(str, counts)) + f" | {worst:.2f} |")
    return "\n".join(lines)


def logged(path: Path) -> list[Pass]:
    """Read the passes of a log; () where there is none. Raise UsageError."""
    try:
        return (
            [Pass(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
            if path.is_file()
            else []
        )
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{path}: not a log of models.evaluation.empty: {error}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, count until everything is in the log, and print; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m models.evaluation.empty", description=__doc__)
    parser.add_argument("model", nargs="+", help="names of models.toml or .onnx files")
    parser.add_argument("--log", type=Path, required=True, help="lines of what is done; the command goes on from there")
    parser.add_argument("--clones", type=Path, help="folder of git repositories, for the real sequences")
    parser.add_argument("--rounds", type=int, default=72, help="seeds of the rendered scenes; 72 are 6 h (default)")
    parser.add_argument("--scene", action="append", help="only these rendered scenes; repeatable")
    parser.add_argument("--looks", type=float, default=LOOKS_A_SECOND, help="a second (default %(default)s)")
    options = parser.parse_args(arguments)
    if options.looks <= 0:
        parser.error(f"--looks {options.looks:g}: more than 0 a second")
    try:
        passes = logged(options.log)
        detectors = {named(name): load(name) for name in options.model}
        for kind, name, seconds, pictures in sources(
            options.clones, options.rounds, options.scene or (), options.looks
        ):
            done = {each.key for each in passes}
            left = {network: each for network, each in detectors.items() if (kind, name, network) not in done}
            if left:
                found = count(left, kind, name, seconds, pictures)
                options.log.parent.mkdir(parents=True, exist_ok=True)
                with options.log.open("a", encoding="utf-8") as file:
                    file.writelines(json.dumps(asdict(each)) + "\n" for each in found)
                passes += found
                print(f"{kind} {name}", file=sys.stderr)
    except VedetteError as error:
        print(error, file=sys.stderr)
        return 2
    print(text(passes))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

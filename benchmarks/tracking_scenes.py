"""The detections that trackers are compared on: of a clip, kept in a file without inference, or of made-up scenes.

Scenes have known identities: a busy pavement, and a junction where cars wait. Boxes as a detector gives them: with
noise, missed frames, scores that dip, nothing of who is hidden. Each scene can be drawn, too, so that a tracker which
looks at pictures has some: everybody wears two colours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import av
import numpy as np
from numpy.typing import NDArray

from appliance.base.config_model import DetectorConfig
from appliance.media.frames import FrameConverter
from appliance.types import Box, Detections, TrackedObject, iou

LABELS = ("person", "car")
SIZE = (320, 180)  # pixels of the pictures
ASPECT = SIZE[0] / SIZE[1]
Colour = tuple[int, int, int]
Planes = tuple[NDArray[np.uint8], ...]
Answers = Sequence[tuple[int, Box]]
VISIBLE_MIN = 0.3  # less of a walker than that is not found
MISSED_SHARE = 0.06  # of the boxes of who stands free
DOUBTFUL_SHARE = 0.08  # of the boxes that score 0.2 to 0.5
SIDE_STD = 0.025  # of a side's place, in sizes of the box
HELD_LOOKS = 5  # a number belongs to whom it was on for a second: fewer are one slip in a crossing


@dataclass(frozen=True, slots=True)
class FrameDetections:
    """frame: 0-based index in the clip; t: seconds."""

    frame: int
    t: float
    found: Detections


@dataclass(frozen=True, slots=True)
class ClipDetections:
    """All examined frames of a clip of `size` (width, height), in order."""

    model: str
    labels: tuple[str, ...]
    size: tuple[int, int]
    looks: tuple[FrameDetections, ...]

    def every(self, fps: float, phase: int = 0) -> ClipDetections:
        """At most `fps` a second from frame `phase` on, evenly, as the appliance samples while something moves."""
        chosen, due = [], None
        for frame in self.looks[phase:]:
            due = frame.t if due is None else due
            if frame.t >= due - 0.002:
                chosen.append(frame)
                due = max(due + 1 / fps, frame.t)
        return replace(self, looks=tuple(chosen))


def detect_clip(clip: Path, model: str) -> ClipDetections:
    """Detect on every frame as the appliance does: scaled by the decoder, default score_min. Raise ModelError."""
    from appliance.detect import detector_loader  # needs ONNX Runtime; an environment of other trackers may lack it

    network, converter, found = detector_loader.load(DetectorConfig(model=model)), FrameConverter(), []
    with av.open(str(clip)) as film:
        stream = film.streams.video[0]
        for index, frame in enumerate(film.decode(stream)):
            picture = converter.bgr(frame, network.preferred_size(frame.width, frame.height))
            found.append(FrameDetections(index, round(float(frame.time or 0.0), 3), network.detect([picture])[0]))
        size = (stream.width, stream.height)
    return ClipDetections(network.name, network.labels, size, tuple(found))


def save_detections(path: Path, looks: ClipDetections) -> None:
    """As one .npz: rows of all frames one below the other, and how many belong to each."""
    found = [each.found for each in looks.looks]
    np.savez_compressed(
        path,
        model=looks.model,
        labels=np.array(looks.labels),
        size=np.array(looks.size),
        frame=np.array([each.frame for each in looks.looks]),
        t=np.array([each.t for each in looks.looks]),
        count=np.array([len(each) for each in found]),
        boxes=np.concatenate([each.boxes for each in found]),
        scores=np.concatenate([each.scores for each in found]),
        class_ids=np.concatenate([each.class_ids for each in found]),
    )


def load_detections(path: Path) -> ClipDetections:
    """Load the file that `save_detections` wrote."""
    with np.load(path) as kept:
        ends = np.cumsum(kept["count"])
        begins = ends - kept["count"]
        boxes, scores, class_ids = kept["boxes"], kept["scores"], kept["class_ids"]
        looks = tuple(
            FrameDetections(int(frame), float(t), Detections(boxes[a:b], scores[a:b], class_ids[a:b]))
            for frame, t, a, b in zip(kept["frame"], kept["t"], begins, ends, strict=True)
        )
        width, height = (int(side) for side in kept["size"])
        return ClipDetections(str(kept["model"]), tuple(str(each) for each in kept["labels"]), (width, height), looks)


@dataclass(frozen=True, slots=True)
class Actor:
    """A moving person or object on a path.

    `times` and `feet`: the middle of the lower side is at `feet` (shares of the frame) at `times`. `heights` are in
    shares of the frame at those places; `width` is in heights (pixels). `upper` and `lower` are brightness and colour.
    """

    number: int
    label: str
    times: tuple[float, ...]
    feet: tuple[tuple[float, float], ...]
    heights: tuple[float, ...]
    width: float
    upper: Colour
    lower: Colour

    def box(self, t: float) -> Box | None:
        """Return the whole box, also the part outside the frame; None when the actor is not there."""
        if not self.times[0] <= t <= self.times[-1]:
            return None
        x, y = (float(np.interp(t, self.times, [foot[axis] for foot in self.feet])) for axis in (0, 1))
        height = float(np.interp(t, self.times, self.heights))
        half = height * self.width / ASPECT / 2
        return x - half, y - height, x + half, y


@dataclass(frozen=True, slots=True)
class Scene:
    """looks: what was detected; truth: for each look who could be seen, and where (`Actor.number`, box)."""

    actors: tuple[Actor, ...]
    looks: tuple[FrameDetections, ...]
    truth: tuple[tuple[tuple[int, Box], ...], ...]
    ground: NDArray[np.uint8] = field(repr=False)

    def draw(self, t: float) -> Planes:
        """Brightness and two colour planes of the frame at `t`: who is nearer is before who is further away."""
        planes = (self.ground.copy(), np.full(SIZE[::-1], 128, np.uint8), np.full(SIZE[::-1], 128, np.uint8))
        there = [(box, actor) for actor in self.actors if (box := actor.box(t)) is not None]
        for box, actor in sorted(there, key=lambda each: each[0][3]):
            left, right = (round(min(1.0, max(0.0, box[side])) * SIZE[0]) for side in (0, 2))
            rows = [round(min(1.0, max(0.0, y)) * SIZE[1]) for y in (box[1], (box[1] + box[3]) / 2, box[3])]
            for plane, upper, lower in zip(planes, actor.upper, actor.lower, strict=True):
                plane[rows[0] : rows[1], left:right] = upper
                plane[rows[1] : rows[2], left:right] = lower
        return planes


@dataclass(frozen=True, slots=True)
class IdentityFigures:
    """actors: who was to be followed; numbers: how many they were given, in sum; mixed: numbers that two had."""

    actors: int
    numbers: int
    mixed: int

    @property
    def numbers_each(self) -> float:
        return self.numbers / max(1, self.actors)

    def __add__(self, other: IdentityFigures) -> IdentityFigures:
        return IdentityFigures(self.actors + other.actors, self.numbers + other.numbers, self.mixed + other.mixed)


def identity_figures(
    answers: Sequence[Answers], truth: Sequence[Sequence[tuple[int, Box]]], *, held_looks: int = HELD_LOOKS
) -> IdentityFigures:
    """Count the actors, the numbers that they had, and the numbers that more than one actor had.

    A number belongs to the actor that its box covers best (IoU of 0.5 or more). A number that was on an actor in fewer
    than `held_looks` frames is not counted, nor is an actor that could be seen in fewer than 4.
    """
    looks = Counter(actor for each in truth for actor, _ in each)
    held: Counter[tuple[int, int]] = Counter()
    for found, right in zip(answers, truth, strict=True):
        for number, box in found:
            shared, actor = max(((iou(box, other), actor) for actor, other in right), default=(0.0, 0))
            if shared >= 0.5:
                held[number, actor] += 1
    pairs = [(number, actor) for (number, actor), count in held.items() if count >= held_looks and looks[actor] >= 4]
    shared_by = Counter(number for number, _ in pairs)
    return IdentityFigures(
        sum(count >= 4 for count in looks.values()),
        len(pairs),
        sum(count > 1 for count in shared_by.values()),
    )


class _Follower(Protocol):
    def update(self, detections: Detections, t: float, planes: Planes = ()) -> Sequence[TrackedObject]: ...


def follow(tracker: _Follower, scene: Scene, *, pictures: bool) -> list[Answers]:
    """Return the tracker's answer to each frame of a scene."""
    return [
        [(each.track, each.box) for each in tracker.update(at.found, at.t, scene.draw(at.t) if pictures else ())]
        for at in scene.looks
    ]


def busy_pavement(seed: int, *, fps: float = 5.0, seconds: float = 40.0) -> Scene:
    """Return a scene of about six walkers at a time from both sides, each with a pace.

    Some stand for a while. After three in ten that leave over an edge another comes in there, half a second later.
    """
    rng = np.random.default_rng(seed)
    actors: list[Actor] = []
    begin = 0.0
    while begin < seconds - 4:
        actors.append(_walker(rng, len(actors) + 1, begin, from_left=bool(rng.random() < 0.5), y=None))
        if rng.random() < 0.3:
            gone = _gone_t(actors[-1])
            x, y = actors[-1].feet[-1]
            late = gone + float(rng.uniform(0.3, 0.8)) - 0.3
            actors.append(_walker(rng, len(actors) + 1, late, from_left=x < 0.5, y=y + float(rng.normal(0, 0.01))))
        begin += 0.6 + float(rng.exponential(1.6))
    return _film(rng, actors, fps, seconds)


def junction(seed: int, *, fps: float = 5.0, cars: int = 6, alike: bool = False) -> Scene:
    """Return a scene of cars on one lane: each stops at the line for 4 to 20 s, or not at all, and drives on.

    A lorry in the lane before hides the place while some of them leave, and the next car passes there without a stop.
    With `alike` they have one colour.
    """
    rng = np.random.default_rng(1000 + seed)
    actors: list[Actor] = []
    t, y, height = 0.5, 0.62, 0.16
    for turn in range(cars):
        waits = turn % 2 == 0
        stop_s = float(rng.uniform(4, 20)) if waits else 0.0
        actors.append(_car(rng, len(actors) + 1, t, stop_s, y + float(rng.normal(0, 0.004)), height, waits=waits))
        leaves = actors[-1].times[-3] if waits else actors[-1].times[-1] - 1.5
        if waits and rng.random() < 0.7:
            actors.append(_lorry(rng, len(actors) + 1, leaves - float(rng.uniform(0.6, 1.4))))
        t = leaves + float(rng.uniform(1.2, 3.0)) if waits else t + float(rng.uniform(2.0, 5.0))
    if alike:
        actors = [replace(each, upper=(90, 128, 128), lower=(70, 128, 128)) for each in actors]
    return _film(rng, actors, fps, max(each.times[-1] for each in actors) + 1)


def bus_stop(seed: int) -> Scene:
    """Return a scene of a person who has waited for 40 s when a bus stops before them for 12 s, and drives on."""
    rng = np.random.default_rng(2000 + seed)
    place, height = (float(rng.uniform(0.35, 0.45)), 0.62), 0.2
    waits = ((-0.06, 0.62), place, place)
    person = Actor(1, "person", (0.0, 6.0, 75.0), waits, (height,) * 3, 0.4, _colour(rng), _colour(rng))
    stops = ((1.6, 0.78), (0.5, 0.78), (0.5, 0.78), (-0.7, 0.78))
    bus = Actor(2, "car", (46.0, 50.0, 62.0, 66.0), stops, (0.5,) * 4, 2.2, _colour(rng), _colour(rng))
    return _film(rng, [person, bus], 5.0, 75.0)


def _walker(rng: np.random.Generator, number: int, begin: float, *, from_left: bool, y: float | None) -> Actor:
    foot = float(rng.uniform(0.45, 0.97)) if y is None else y
    to = float(np.clip(foot + rng.normal(0, 0.06), 0.42, 1.0))
    height = 0.12 + 0.36 * (foot - 0.4)
    end_height = 0.12 + 0.36 * (to - 0.4)
    pace = float(rng.uniform(0.65, 1.1)) * (height + end_height) / 2 / ASPECT  # heights a second
    width = float(rng.uniform(0.34, 0.44))
    aside = max(height, end_height) * width / ASPECT
    ends = [-aside, 1 + aside] if from_left else [1 + aside, -aside]
    walk_s = (1 + 2 * aside) / pace
    times, feet, heights = [begin, begin + walk_s], [(ends[0], foot), (ends[1], to)], [height, end_height]
    if rng.random() < 0.15:
        share, stand_s = float(rng.uniform(0.25, 0.75)), float(rng.uniform(3, 8))
        middle = (ends[0] + share * (ends[1] - ends[0]), foot + share * (to - foot))
        at, tall = begin + share * walk_s, height + share * (end_height - height)
        times = [begin, at, at + stand_s, begin + walk_s + stand_s]
        feet, heights = [feet[0], middle, middle, feet[1]], [height, tall, tall, end_height]
    return Actor(number, "person", tuple(times), tuple(feet), tuple(heights), width, _colour(rng), _colour(rng))


def _gone_t(actor: Actor) -> float:
    """Return when it has left the frame."""
    return actor.times[-1] - 0.2


def _car(
    rng: np.random.Generator, number: int, begin: float, stop_s: float, y: float, height: float, *, waits: bool
) -> Actor:
    pace, width = float(rng.uniform(0.28, 0.5) if waits else rng.uniform(0.5, 1.2)), float(rng.uniform(1.6, 2.0))
    stop = 0.5 + float(rng.normal(0, 0.01))
    if not waits:
        times, feet = [begin, begin + 1.4 / pace], [(-0.2, y), (1.2, y)]
    else:
        # It brakes and starts within a second and a half, each in four steps.
        brake = [
            (stop - 0.75 * pace * (1 - s) ** 2, begin + (stop - 0.75 * pace + 0.2) / pace + 1.5 * s) for s in _STEPS
        ]
        away_t = brake[-1][1] + stop_s
        start = [(stop + 0.75 * pace * s**2, away_t + 1.5 * s) for s in _STEPS]
        times = [begin, *(t for _, t in brake), *(t for _, t in start)]
        feet = [(-0.2, y), *((x, y) for x, _ in brake), *((x, y) for x, _ in start)]
        times.append(times[-1] + (1.2 - feet[-1][0]) / pace)
        feet.append((1.2, y))
    return Actor(number, "car", tuple(times), tuple(feet), (height,) * len(times), width, _colour(rng), _colour(rng))


_STEPS = (0.0, 0.25, 0.5, 0.75, 1.0)


def _lorry(rng: np.random.Generator, number: int, reaches: float) -> Actor:
    """Return a lorry that comes the other way, in the lane before.

    It hides the place of the waiting car from `reaches` on, for two seconds.
    """
    pace, y = float(rng.uniform(0.22, 0.3)), 0.72
    begin = reaches - 0.45 / pace
    times, feet = (begin, begin + 1.8 / pace), ((1.4, y), (-0.4, y))
    return Actor(number, "car", times, feet, (0.34, 0.34), 1.9, _colour(rng), _colour(rng))


def _colour(rng: np.random.Generator) -> Colour:
    y, u, v = rng.uniform((40, 100, 100), (210, 156, 156))
    return int(y), int(u), int(v)


def _film(rng: np.random.Generator, actors: list[Actor], fps: float, seconds: float) -> Scene:
    looks, truth = [], []
    for index in range(round(seconds * fps)):
        t = index / fps
        there = [(actor, box) for actor in actors if (box := actor.box(t)) is not None and inside(box) >= VISIBLE_MIN]
        there.sort(key=lambda each: -each[1][3])
        rows: list[tuple[Box, float, int]] = []
        seen = []
        for place, (actor, box) in enumerate(there):
            hidden = _hidden([other for _, other in there[:place]], box)
            visible = 1 - hidden
            if visible >= VISIBLE_MIN:
                seen.append((actor.number, _clip(box)))
            if rng.random() < (MISSED_SHARE if visible > 0.7 else 0.15 if visible > 0.5 else 0.97):
                continue
            doubtful = rng.random() < (DOUBTFUL_SHARE if visible > 0.7 else 0.5)
            score = float(rng.uniform(0.2, 0.5) if doubtful else rng.uniform(0.55, 0.92))
            rows.append((_clip(noisy(rng, box)), score, LABELS.index(actor.label)))
        found = Detections(
            np.array([box for box, _, _ in rows], np.float32).reshape(-1, 4),
            np.array([score for _, score, _ in rows], np.float32),
            np.array([label for _, _, label in rows], np.int32),
        )
        looks.append(FrameDetections(index, round(t, 3), found))
        truth.append(tuple(seen))
    ground = np.clip(rng.normal(120, 12, SIZE[::-1]), 0, 255).astype(np.uint8)
    return Scene(tuple(actors), tuple(looks), tuple(truth), ground)


def noisy(rng: np.random.Generator, box: Box) -> Box:
    """Return `box` as a detector places it."""
    wide, tall = box[2] - box[0], box[3] - box[1]
    size = np.sqrt(wide * tall * ASPECT)  # in shares of the height
    noise = rng.normal(0, SIDE_STD, 4) * np.array([size / ASPECT, size, size / ASPECT, size])
    x1, y1, x2, y2 = (float(side) + float(each) for side, each in zip(box, noise, strict=True))
    return x1, y1, x2, y2


def _hidden(nearer: Sequence[Box], box: Box) -> float:
    """Return the share of the box's columns, weighed by how much of their height, that lie behind nearer ones."""
    columns = np.linspace(box[0], box[2], 20)
    covered = np.zeros(len(columns))
    for other in nearer:
        tall = max(0.0, min(box[3], other[3]) - max(box[1], other[1])) / (box[3] - box[1])
        covered = np.maximum(covered, np.where((columns >= other[0]) & (columns <= other[2]), tall, 0.0))
    return float(covered.mean())


def inside(box: Box) -> float:
    """Return the share of `box` that lies in the frame."""
    x1, y1, x2, y2 = _clip(box)
    return max(0.0, x2 - x1) * max(0.0, y2 - y1) / ((box[2] - box[0]) * (box[3] - box[1]))


def _clip(box: Box) -> Box:
    x1, y1, x2, y2 = (min(1.0, max(0.0, side)) for side in box)
    return x1, y1, x2, y2

"""Judges an escalation with an object detector instead of a language model.

The detector examines each evidence image again, at full size, and each image votes whether the object is there. The
majority decides. The detector answers "is there such an object at this place?", not "is this an intruder?". Therefore
it never confirms an alert: if it finds the object, the verdict is `rechecked`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from appliance.base.clock import Clock
from appliance.base.errors import DetectorError, EngineError
from appliance.detect.detector import ObjectDetector
from appliance.types import Box, Decision, Detections, JudgeKind, is_same_place
from appliance.wire import FrameSupport, MediaRef, Need
from cloud_worker.decoding import Pixels
from cloud_worker.evidence import EvidenceFile, MediaRefused
from cloud_worker.judge import JudgeCase, Opinion

CROP_SCALE = 2.5  # sides of a crop against the sides of the alert's box: a small object is then large in its crop
UNSURE_SHARE = 0.5  # between this share of score_min and score_min an image does not vote

VoteAnswer = Literal["yes", "no", "unsure"]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Vote:
    """Holds an image's answer, and the best score at the place of the object."""

    ref: MediaRef
    answer: VoteAnswer
    score: float


class Redetect:
    """Owns a detector and the one thread that uses it (a detector belongs to one thread).

    score_min: the least score with which an object counts as found. The detector should report objects from half of
    this score on.
    """

    name = "redetect"
    kind: JudgeKind = "detector"
    prompt_version = ""
    answer_schema = ""
    uses: frozenset[Need] = frozenset({"crop", "frame"})

    def __init__(self, detector: ObjectDetector, score_min: float, clock: Clock) -> None:
        self._detector = detector
        self._score_min = score_min
        self._clock = clock
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="redetect")

    @property
    def model(self) -> str:
        return self._detector.name

    async def judge(self, case: JudgeCase) -> Opinion:
        """Return the opinion of the majority of the images. Raise EngineError if the detector failed."""
        label = case.escalation.label
        if label not in self._detector.labels:
            what = f"does not know what a {label} is" if label else "answers no question in words"
            return Opinion(decision="unsure", reason=f"The second detector, {self.model}, {what}.")
        votes, preprocess_s = await self._in_thread(lambda: self._votes(case, label))
        return self._opinion(votes, case, label, preprocess_s)

    async def check(self) -> str:
        await self._in_thread(lambda: self._detect([np.zeros((96, 96, 3), np.uint8)]))
        return (
            f"a second look by the detector {self.model}, which knows {len(self._detector.labels)} kinds of objects; "
            "it can reject or doubt an alert, and does not confirm any"
        )

    async def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _votes(self, case: JudgeCase, label: str) -> tuple[list[Vote], float]:
        class_id = self._detector.labels.index(label)
        votes, preprocess_s = [], 0.0
        for file in case.files:
            started = self._clock.monotonic()
            try:
                pixels = case.decoder.image(file)
            except MediaRefused:
                votes.append(Vote(file.ref, "unsure", 0.0))
                continue
            finally:
                preprocess_s += self._clock.monotonic() - started
            votes.append(self._vote(file, pixels, class_id))
        return votes, preprocess_s

    def _vote(self, file: EvidenceFile, pixels: Pixels, class_id: int) -> Vote:
        box = _flagged(file.ref)
        if box is None:  # the camera's detector found no object here: what this one finds may be something else
            best = max(_scores(self._detect([pixels])[0], class_id, None), default=0.0)
            return Vote(file.ref, "unsure", best)
        if file.ref.kind == "crop":  # the appliance has cut out the object as closely as `enlarged` does
            best = max(_scores(self._detect([pixels])[0], class_id, box), default=0.0)
            return Vote(file.ref, self._answer(best), best)
        crop, crop_box = enlarged(pixels, box)
        frame, close = self._detect([pixels, crop])
        best = max([*_scores(frame, class_id, box), *_scores(close, class_id, crop_box)], default=0.0)
        return Vote(file.ref, self._answer(best), best)

    def _answer(self, score: float) -> VoteAnswer:
        if score >= self._score_min:
            return "yes"
        return "unsure" if score >= self._score_min * UNSURE_SHARE else "no"

    def _detect(self, images: list[Pixels]) -> list[Detections]:
        try:
            return self._detector.detect(images)
        except DetectorError as error:
            raise EngineError(f"the second detector failed: {error}") from None

    def _opinion(self, votes: list[Vote], case: JudgeCase, label: str, preprocess_s: float) -> Opinion:
        decision, finding = _majority(label, votes)
        lost = f" {len(case.lost)} more could not be used." if case.lost else ""
        support = tuple(
            FrameSupport(media=vote.ref.id, t=vote.ref.t, supports=vote.answer, score=round(vote.score, 3))
            for vote in votes
        )
        reason = f"A second look by {self.model} {finding}.{lost}"
        return Opinion(
            decision=decision, reason=reason, support=support, preprocess_s=preprocess_s, more=decision == "unsure"
        )


def _majority(label: str, votes: list[Vote]) -> tuple[Decision, str]:
    """Return the decision of the images that voted, and its text. A tie, or no vote at all, is `unsure`."""
    yes = sum(vote.answer == "yes" for vote in votes)
    no = sum(vote.answer == "no" for vote in votes)
    best = max((vote.score for vote in votes), default=0.0)
    of = "1 frame" if len(votes) == 1 else f"{len(votes)} frames"
    if yes > no:
        return "rechecked", f"found the {label} again in {yes} of {of} (best {best:.2f})"
    if no > yes:
        return "rejected", f"found no {label} at that place in {no} of {of} (best {best:.2f})"
    return "unsure", f"could not tell whether there is a {label}: of {of}, {yes} say yes and {no} no"


def enlarged(pixels: Pixels, box: Box) -> tuple[Pixels, Box]:
    """Cut out the surroundings of `box` (shares of the image), and return them with the place of the box in them."""
    height, width = pixels.shape[:2]
    x1, y1, x2, y2 = box
    half = max((x2 - x1) * width, (y2 - y1) * height, 32.0) * CROP_SCALE / 2
    cx, cy = (x1 + x2) / 2 * width, (y1 + y2) / 2 * height
    left, top = int(max(0, cx - half)), int(max(0, cy - half))
    right, bottom = int(min(width, cx + half + 1)), int(min(height, cy + half + 1))
    crop = pixels[top:bottom, left:right]
    w, h = max(1, right - left), max(1, bottom - top)
    inside = ((x1 * width - left) / w, (y1 * height - top) / h, (x2 * width - left) / w, (y2 * height - top) / h)
    return np.ascontiguousarray(crop), inside


def _flagged(ref: MediaRef) -> Box | None:
    """Return the box in which the object should be; None: it is not known. A crop without a box is all object."""
    if ref.box is None:
        return (0.0, 0.0, 1.0, 1.0) if ref.kind == "crop" else None
    x1, y1, x2, y2 = (min(max(value, 0.0), 1.0) for value in ref.box)
    return (x1, y1, x2, y2) if x2 > x1 and y2 > y1 else None


def _scores(found: Detections, class_id: int, box: Box | None) -> list[float]:
    """Return the scores of the objects of the class: of those at `box`, or with None of all."""
    return [
        float(score)
        for at, score, kind in zip(found.boxes.tolist(), found.scores, found.class_ids, strict=True)
        if kind == class_id and (box is None or is_same_place(tuple(at), box))
    ]

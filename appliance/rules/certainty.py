"""Computes how sure the rules are of a track: median score, and sum of the log-odds of independent detections."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, hypot, inf, log

from appliance.types import Box

Calibration = Mapping[str, tuple[float, float]]
"""Label to (slope, offset): from a score's log-odds to those on the common scale; other labels keep their own."""


@dataclass(frozen=True, slots=True)
class CertaintyTuning:
    """Chosen on rendered clips in synthetic weather with the default network; docs/rules.md has the figures.

    scores_min, scores_max: of so many scores the median is taken. alike_max: of reports in a row with the same score
    and box so many count, less than half of `scores_max`. The tracker repeats the last detection of an object at rest
    where nothing was examined, for as long as something moves elsewhere: else one strong false detection would be the
    median by itself.
    step_min: a look is independent of the last such look when the object has moved by so much of its size. Clutter that
    a network half believes in gets the same wrong score in each look at it; what walks is seen anew at every step.
    prior: log-odds of a track that nothing is known of; doubtful boxes are on nothing in five of eight cases.
    look_offset: added to the log-odds of an independent look's score: of boxes that move with a track those of 0.27 are
    right as often as not. look_max: what one look may add at most, so that no strong one decides. detections_min: from
    so many on they count. sum_min: however long a track was doubtful, some good looks convince. sum_max: looks at one
    object are never wholly independent; beyond that (0.88) only the median leads.
    """

    scores_min: int = 2
    scores_max: int = 9
    alike_max: int = 4
    step_min: float = 0.25
    prior: float = -0.5
    look_offset: float = 1.0
    look_max: float = 0.7
    detections_min: int = 3
    sum_min: float = -2.0
    sum_max: float = 2.0
    odds_clip: float = 0.01


TUNING = CertaintyTuning()


class TrackCertainty:
    """The certainty, 0..1, that a track is what its label says, in two ways, each the highest that it has ever been.

    median: of the last nine scores, from two on. added_up: from the sum of the log-odds of its independent detections.
    A median is used so that one strong false detection cannot fire a rule and one weak one cannot hide a person. The
    lower of the two middle scores counts where their number is even, so that of two detections both must be good. A sum
    is used because a person who was seen a dozen times, at a score of 0.35 and each time a step further on, is there.

    A rule is satisfied by either (`at_least`). It gets the median where that is enough: how good the detections were.

    The highest so far counts, because a person who was well seen does not become less of a person behind a bush. Frames
    in which the object was not detected add nothing (adding zeros would make every occlusion a doubt).
    """

    __slots__ = ("_alike", "_detections", "_last", "_recent", "_reported", "_sum", "added_up", "median")

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=TUNING.scores_max)
        self._last: Box | None = None
        self._reported: tuple[float, Box] | None = None
        self._alike = 0
        self._detections = 0
        self._sum = TUNING.prior
        self.median = self.added_up = 0.0

    def at_least(self, score_min: float) -> float:
        """Return the median, or `added_up` if only that reaches `score_min`."""
        return self.added_up if self.median < score_min <= self.added_up else self.median

    def add(self, score: float, box: Box) -> None:
        """Note that it was detected once more, or that the tracker repeats its last detection (`TUNING.alike_max`).

        score: on the common scale.
        """
        self._alike = self._alike + 1 if (score, box) == self._reported else 1
        self._reported = score, box
        if self._alike > TUNING.alike_max:
            return
        self._recent.append(score)
        count = len(self._recent)
        if count >= TUNING.scores_min and score > self.median:
            self.median = max(self.median, sorted(self._recent)[(count - 1) // 2])
        if self._last is None or _steps(self._last, box) >= TUNING.step_min:
            self._last = box
            self._look(score)

    def _look(self, score: float) -> None:
        self._detections += 1
        added = min(TUNING.look_max, log_odds(score) + TUNING.look_offset)
        self._sum = min(TUNING.sum_max, max(TUNING.sum_min, self._sum + added))
        if self._detections >= TUNING.detections_min:
            self.added_up = max(self.added_up, probability(self._sum))


def calibrated(score: float, label: str, calibration: Calibration) -> float:
    """Convert a network's own score to the common scale."""
    line = calibration.get(label)
    if line is None:
        return score
    return probability(line[0] * log_odds(score) + line[1])


def log_odds(score: float) -> float:
    """Return the log-odds of a probability, kept away from 0 and 1."""
    score = min(1 - TUNING.odds_clip, max(TUNING.odds_clip, score))
    return log(score / (1 - score))


def probability(odds: float) -> float:
    """Return the probability for log-odds: the inverse of `log_odds`."""
    return 1 / (1 + exp(-odds))


def _steps(a: Box, b: Box) -> float:
    """Return the way from one box to another: sideways in widths, up and down in halves of the height."""
    width = (a[2] - a[0] + b[2] - b[0]) / 2
    height = (a[3] - a[1] + b[3] - b[1]) / 2
    if width <= 0 or height <= 0:
        return inf
    return hypot((b[0] + b[2] - a[0] - a[2]) / 2 / width, 2 * (b[3] - a[3]) / height)

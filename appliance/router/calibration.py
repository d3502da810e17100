"""The probability that an alert is real, and exact bounds of shares: plain arithmetic, without numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from operator import mul

from pydantic import TypeAdapter

from appliance.types import CalibratedChance, TrackStability

VERSION = 1  # of what is stored; another begins anew
INFERENCES_LOG_MAX = 5.0  # 32 detections; more make nothing surer
MOVED_MAX = 2.0  # sizes of the object; who has walked so far has walked
SURE_MIN = 0.95  # before anything is claimed an alert of this chance is likely sure
_SCORE_EDGE = 0.02  # scores nearer to 0 or 1 have log-odds that say nothing
CONFIDENCE = 0.95  # two-sided, as the documents state
_HALVINGS = 40  # 2^-40 is below what a float shows of a share

Weights = tuple[float, float, float, float, float]
"""By input: one, the score's log odds, the detections' binary logarithm, the way moved, the scores' spread."""

# The belief before anything was learnt: set by hand, from what trackers and detectors are like, on no footage. A
# score means odds, a track that is seen again and again and that moves is more often real than one that flickers on
# the spot. An appliance that learns keeps the signs (see SIGNS), whatever the reviews say.
PRIOR: Weights = (-1.0, 1.0, 0.5, 0.8, -2.0)
SIGNS: tuple[int, int, int, int, int] = (0, 1, 1, 1, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallClaim:
    """Claim about the alerts that are left out.

    Of `real` true alerts (weighted: `effective`), a share `recall` has a chance of at least `chance_min`. With 95 %
    confidence at least a share `recall_low` of future ones has it. chance_min 0: too few are known to leave any out.
    """

    chance_min: float = 0.0
    recall: float = 1.0
    recall_low: float = 0.0
    real: int = 0
    effective: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SureClaim:
    """Claim about the alerts of which the appliance is sure.

    Of `n` known alerts with a chance of at least `chance_max` (without a claim: of at least SURE_MIN) `wrong` were
    false. With 95 % confidence at most a share `error_high` of future ones is false. chance_max 1: too few are known to
    be sure of any. needed: the least number of known ones for a claim.
    """

    chance_max: float = 1.0
    error_high: float = 1.0
    wrong: int = 0
    n: int = 0
    needed: int = 1

    @property
    def holds(self) -> bool:
        return self.chance_max < 1

    def learn_share(self, error_max: float, cold_share: float) -> float:
        """Return the share of likely sure alerts to ask about while nothing is claimed.

        It is 1 at first and `cold_share` when as many are known as a claim needs. It is 1 again if too many of those
        were wrong, or once there is a claim.
        """
        if self.holds or self.n == 0 or self.wrong > error_max * self.n:
            return 1.0
        return 1 - (1 - cold_share) * min(1.0, self.n / self.needed)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFit:
    """Weights learnt for one group of alerts, from `n` of which `real` were true.

    claim: about the alerts that are left out; sure: about the alerts that the appliance keeps.
    """

    weights: Weights = PRIOR
    n: int = 0
    real: int = 0
    claim: RecallClaim = RecallClaim()
    sure: SureClaim = SureClaim()


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Fits for all alerts, each label, and each label on each camera; each is regularised towards the one before.

    cameras: by `camera/label`. Immutable; the same rows make the same calibration.
    """

    version: int = VERSION
    recall: float = 0.98
    everything: GroupFit = GroupFit()
    labels: Mapping[str, GroupFit]
    cameras: Mapping[str, GroupFit]

    def chance(
        self, camera: str, label: str, seen: TrackStability, error_max: float = 1.0, cold_share: float = 1.0
    ) -> CalibratedChance:
        """Return the chance of an alert of this camera and label with these features. Never 0 and never 1.

        error_max, cold_share: see `SureClaim.learn_share`.
        """
        own, sure = self.cameras.get(f"{camera}/{label}"), self.sure(camera, label)
        return CalibratedChance(
            chance=self.probability(camera, label, seen),
            chance_n=own.n if own else 0,
            chance_min=self.claim(camera, label).chance_min,
            chance_max=sure.chance_max,
            error_high=sure.error_high,
            learn_share=sure.learn_share(error_max, cold_share),
        )

    def probability(self, camera: str, label: str, seen: TrackStability) -> float:
        """Return the chance alone."""
        fit = self._chain(camera, label)[0]
        return sigmoid(sum(map(mul, fit.weights, features(seen))))

    def claim(self, camera: str, label: str) -> RecallClaim:
        """Return the claim about the alerts that the router leaves out for this camera and label."""
        return next((fit.claim for fit in self._chain(camera, label) if fit.claim.chance_min > 0), RecallClaim())

    def sure(self, camera: str, label: str) -> SureClaim:
        """Return the claim about the alerts of which the appliance is sure, whether it allows anything or not.

        It comes from the most specific group with enough known alerts.
        """
        chain = self._chain(camera, label)
        return next((fit.sure for fit in chain if fit.n >= fit.sure.needed), chain[-1].sure)

    def to_json(self) -> bytes:
        """Compact JSON; equal calibrations give equal bytes."""
        return _calibration.dump_json(self)

    def _chain(self, camera: str, label: str) -> tuple[GroupFit, ...]:
        """Return the fits that apply, the most particular first."""
        found = (self.cameras.get(f"{camera}/{label}"), self.labels.get(label), self.everything)
        return tuple(fit for fit in found if fit is not None)


def features(seen: TrackStability) -> Weights:
    """Return the features that the weights multiply."""
    score = min(max(seen.score, _SCORE_EDGE), 1 - _SCORE_EDGE)
    looks = min(math.log2(max(seen.looks, 1)), INFERENCES_LOG_MAX)
    return (1.0, math.log(score / (1 - score)), looks, min(max(seen.moved, 0.0), MOVED_MAX), max(seen.spread, 0.0))


def sigmoid(z: float) -> float:
    """1 / (1 + e^-z), for any z; kept off 0 and 1, for nothing is certain."""
    return 1 / (1 + math.exp(-min(max(z, -12.0), 12.0)))


UNTRAINED = Calibration(labels={}, cameras={})
_calibration: TypeAdapter[Calibration] = TypeAdapter(Calibration)


def error_bound(wrong: int, n: int, confidence: float = CONFIDENCE) -> float:
    """Return the upper bound of the share, when `wrong` of `n` were (C. Clopper, E. Pearson, 1934; one-sided)."""
    return 1 - recall_low(n - wrong, n, confidence)


def recall_low(kept: int, n: int, confidence: float = CONFIDENCE) -> float:
    """Return the lower bound of the share, when `kept` of `n` were kept (C. Clopper, E. Pearson, 1934; one-sided)."""
    if kept <= 0:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _at_least(kept, n, middle) <= 1 - confidence:
            low = middle
        else:
            high = middle
    return low


def missed_max(n: int, recall: float) -> int | None:
    """Return how many misses among `n` still prove the recall; None: even 0 misses do not."""
    if n <= 0 or _at_least(n, n, recall) > 1 - CONFIDENCE:
        return None
    low, high = 0, n
    while high - low > 1:
        middle = (low + high) // 2
        if _at_least(n - middle, n, recall) <= 1 - CONFIDENCE:
            low = middle
        else:
            high = middle
    return low


def _at_least(kept: int, n: int, p: float) -> float:
    """Return the probability of `kept` or more of `n` when each is kept with probability `p`."""
    if kept <= 0 or p >= 1:
        return 1.0
    if p <= 0:
        return 0.0
    whole, log_p, log_not = math.lgamma(n + 1), math.log(p), math.log1p(-p)
    return math.fsum(
        math.exp(whole - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * log_p + (n - k) * log_not)
        for k in range(kept, n + 1)
    )

"""What is before the router when it decides: one alert, and what asking about it would mean."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.config import Escalation
from appliance.types import EVIDENCE_STEPS, EvidenceStep, RouteInputs, When

FACTS_BYTES = 1500  # the question with subject and headers
CROP_FILL, FRAME_FILL = 0.8, 0.9  # how much of what is allowed a picture takes
JPEG_BYTES_A_PIXEL = 0.12  # of whole pictures at full quality
JUDGE_S = 1.0  # until a verdict says otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """How link and box are doing; None: unknown. load: 1 minute mean per core."""

    link_up: bool | None = None
    queue_age_s: float | None = None
    load: float | None = None
    temperature_c: float | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """What a question is expected to take."""

    bytes: int
    gpu_s: float
    money: float

    def of(self, what: str) -> float:
        """bytes, gpu_s or money."""
        return float(getattr(self, what))


@dataclass(frozen=True, slots=True)
class Limit:
    """One budget: `amount` of `what` (bytes, gpu_s, money), of which `spent` is gone, until `renew_t`. name: its key in
    the site file."""

    name: str
    what: str
    amount: float
    spent: float
    renew_t: float

    def has_room(self, cost: Cost, reserve: float) -> bool:
        """For a question that must leave the share `reserve` of it."""
        return self.spent + cost.of(self.what) <= self.amount * (1 - reserve)

    def ever_has_room(self, cost: Cost, reserve: float) -> bool:
        """Whether it would once it is renewed."""
        return cost.of(self.what) <= self.amount * (1 - reserve)


@dataclass(frozen=True, slots=True)
class Wait:
    """What a question waits for (budget, box, queue, off-peak), and not before until_t if that is known."""

    why: str
    until_t: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One alert, and all that the decision may depend on.

    uplink: the site file has one, whether it is up or not. costs: of each evidence step, in their order. now: UTC
    seconds live, of the footage in a replay.
    """

    alert: str
    rule: str
    escalate: bool
    uplink: bool
    inputs: RouteInputs
    costs: tuple[Cost, ...]
    limits: tuple[Limit, ...] = ()
    now: float = 0.0

    def cost(self, evidence: EvidenceStep) -> Cost:
        return self.costs[EVIDENCE_STEPS.index(evidence)]


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done, and why, for a person. priority: one of wire.PRIORITIES; empty when never.

    value: expected worth of the answer per 100 kB: a rank, to be compared with others of the same settings. cost: of
    the evidence it begins with. audit_share: above 0 it is asked only as one of a sample of what was left out.
    """

    when: When
    reason: str
    priority: str = ""
    evidence: EvidenceStep = "facts"
    value: float = 0.0
    cost: Cost = Cost(0, 0.0, 0.0)
    wait: Wait | None = None
    audit_share: float = 0.0

    @property
    def ask(self) -> bool:
        return self.when != "never"


def expected_bytes(settings: Escalation) -> tuple[int, ...]:
    """Bytes of a question that begins with each evidence step, in their order, as the site file sizes them."""
    crops = settings.crops * settings.crop_bytes_max * CROP_FILL
    frames = settings.frames * settings.frame_side_max**2 * 9 / 16 * JPEG_BYTES_A_PIXEL
    clip = settings.clip_bytes_max * FRAME_FILL
    return tuple(round(FACTS_BYTES + more) for more in (0, crops, frames, clip))

"""Cost and accuracy of the router's cascade, from escalating every alert to escalating none.

The labels tell which alerts are right. Each alert's chance is learnt from the alerts of all other clips, so that no
clip tells about itself; the surest alerts stay at the edge first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from appliance.lab.curve.curve_footage import ReplayedFootage
from appliance.lab.curve.ranking import LabelledIncident
from appliance.lab.curve.strategies import ranked_alerts
from appliance.router.calibration import TrackStability
from appliance.router.calibration_fit import AlertOutcome, fit
from appliance.types import Route

SHARE_GOAL = 0.85  # of the alerts, kept at the edge without an incident lost


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedAlert:
    """One alert with its label and its chance of being right.

    chance: by a calibration that was learnt without its clip; chance_min, chance_max: the bounds it claims. incidents:
    numbers of the labelled incidents that it shows; with none it is false. bytes, gpu_s, money: cost of escalating it.
    """

    chance: float
    chance_min: float
    chance_max: float
    incidents: frozenset[int]
    bytes: int
    gpu_s: float
    money: float

    @property
    def certainty(self) -> float:
        return max(self.chance, 1 - self.chance)

    @property
    def stays(self) -> bool:
        """By what is claimed."""
        return self.chance >= self.chance_max or self.chance < self.chance_min

    @property
    def edge_is_right(self) -> bool:
        return (self.chance >= 0.5) == bool(self.incidents)


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadePoint:
    """One way of dividing the alerts between edge and cloud.

    kept: the share that stays at the edge; sure, doubtful: how many there, on which side; asked: how many are
    escalated. bytes, gpu_s, money: of these. accuracy: the share that is answered right, by a judge as good as assumed.
    lost: incidents that raised an alert and of which all alerts are held for false at the edge.
    """

    kept: float
    sure: int
    doubtful: int
    asked: int
    bytes: int
    gpu_s: float
    money: float
    accuracy: float
    lost: int
    certainty_min: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadeCurve:
    """All points of the cascade, from escalating all alerts to escalating none.

    alerts: how many; right: how many of them are right. most: the most that can be kept without an incident lost.
    as_right: the same with no more wrong answers than the judge would give about all. claimed: the share that the
    router's claims allow with no more labels than these (see docs/router.md). judge_error: assumed.
    """

    alerts: int
    right: int
    points: tuple[CascadePoint, ...]
    most: CascadePoint
    as_right: CascadePoint
    claimed: CascadePoint
    goal: float = SHARE_GOAL
    judge_error: float = 0.0

    def at(self, kept: float) -> CascadePoint:
        """Return the point with the fewest alerts at the edge that has at least this share there."""
        return next((each for each in self.points if each.kept >= kept - 1e-9), self.points[-1])


def measure_cascade(
    footage: Sequence[ReplayedFootage], incidents: Sequence[LabelledIncident], judge_error: float
) -> CascadeCurve | None:
    """None: nothing raised an alert that could be escalated."""
    alerts = judged_alerts(footage, incidents)
    return cascade_of(alerts, judge_error) if alerts else None


def cascade_of(alerts: Sequence[JudgedAlert], judge_error: float) -> CascadeCurve:
    """There must be at least one alert."""
    order = sorted(alerts, key=lambda each: -each.certainty)
    points = tuple(_point(order[:count], order[count:], judge_error) for count in range(len(order) + 1))
    lossless = [each for each in points if each.lost == 0]
    as_right = [each for each in lossless if each.accuracy >= points[0].accuracy - 1e-9]
    kept = [each for each in alerts if each.stays]
    return CascadeCurve(
        alerts=len(alerts),
        right=sum(bool(each.incidents) for each in alerts),
        points=points,
        most=lossless[-1],
        as_right=as_right[-1],
        claimed=_point(kept, [each for each in alerts if not each.stays], judge_error),
        judge_error=judge_error,
    )


def judged_alerts(footage: Sequence[ReplayedFootage], incidents: Sequence[LabelledIncident]) -> list[JudgedAlert]:
    """Every alert of which the router saw a track, as it saw it last."""
    routes = [{route.alert: route for route in camera.routes} for camera in footage]
    shown = {
        (each.footage, each.alert): frozenset(n for n, one in enumerate(incidents) if each.finds(one))
        for each in ranked_alerts(footage)
        if each.alert in routes[each.footage]
    }
    asked = [{each.route.alert: each for each in camera.escalations} for camera in footage]
    outcomes = [
        _outcome(key, footage[key[0]].camera, routes[key[0]][key[1]], bool(found)) for key, found in shown.items()
    ]
    clips = [footage[number].clip for number, _ in shown]
    learnt = {
        clip: fit([each for each, own in zip(outcomes, clips, strict=True) if own != clip]) for clip in set(clips)
    }
    found = []
    for (number, alert), outcome, clip in zip(shown, outcomes, clips, strict=True):
        chance = learnt[clip].chance(outcome.camera, outcome.label, outcome.stability)
        route, sent = routes[number][alert], asked[number].get(alert)
        found.append(
            JudgedAlert(
                chance=chance.p,
                chance_min=chance.p_min,
                chance_max=chance.sure.chance_max,
                incidents=shown[number, alert],
                bytes=sent.bytes if sent else route.bytes,
                gpu_s=route.gpu_s,
                money=route.money,
            )
        )
    return found


def _outcome(key: tuple[int, str], camera: str, route: Route, real: bool) -> AlertOutcome:
    seen = route.inputs
    return AlertOutcome(
        id=f"{key[0]}/{key[1]}",
        camera=camera,
        label=seen.label,
        stability=TrackStability(score=seen.score, spread=seen.spread, looks=seen.looks, moved=seen.moved),
        real=real,
    )


def _point(kept: Sequence[JudgedAlert], asked: Sequence[JudgedAlert], judge_error: float) -> CascadePoint:
    saved = {n for each in (*asked, *(one for one in kept if one.chance >= 0.5)) for n in each.incidents}
    raised = {n for each in (*asked, *kept) for n in each.incidents}
    right = sum(each.edge_is_right for each in kept) + (1 - judge_error) * len(asked)
    sure = sum(each.chance >= 0.5 for each in kept)
    return CascadePoint(
        kept=len(kept) / (len(kept) + len(asked)),
        sure=sure,
        doubtful=len(kept) - sure,
        asked=len(asked),
        bytes=sum(each.bytes for each in asked),
        gpu_s=round(sum(each.gpu_s for each in asked), 3),
        money=round(sum(each.money for each in asked), 6),
        accuracy=right / (len(kept) + len(asked)),
        lost=len(raised - saved),
        certainty_min=min((each.certainty for each in kept), default=1.0),
    )

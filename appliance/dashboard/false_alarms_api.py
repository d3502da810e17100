"""`/api/v1/cameras/{name}/proposals`: proposals for a rule from false alarms at one place.

A proposal is a higher `score_min`, a limit of height, or to ignore the place. Nothing is kept and nothing is changed:
proposals are made anew from the reviews, so that one that is taken back counts no more, and it is a person who changes
the rule, in the editor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import Depends

from appliance.config import CameraConfig, LineRule
from appliance.dashboard.schemas import API
from appliance.store.database import Database
from appliance.store.reviews import ReviewedBox, reviewed_boxes
from appliance.types import Box
from appliance.web.routes import RouteList, provided

ALARMS_MIN = 3  # at one place, before anything is proposed
LOST_SHARE_MAX = 0.1  # of what a person called right: a limit that costs more is not proposed
SCORE_MAX = 0.95  # a score_min above it would leave out nearly all that is right
SCORE_STEP = 0.01  # two decimals, as a person writes a score
HEIGHT_RATIO_MIN = 1.5  # between false alarms and what is right: a box of the same object varies by a tenth
_NEAR = 0.75  # widths and heights that two centres may lie apart
_SIZE_RATIO_MAX = 2.0  # widths or heights; boxes of one object vary by a tenth, so double is another one


@dataclass(frozen=True, slots=True)
class RuleProposal:
    """A rule, a label and a place with false alarms.

    Attributes:
        place: the mean box, in shares of the frame. alarms: ids of the false alarms, newest first.
        score_high: the highest of their scores; score_min: what would have kept all of them away, None: that would cost
            too much of what is right. height_min, height_max: where no score does, the limit that keeps them away and
            nothing of what is right; both None: ignore the place.
        right, lost: of the same rule and label, what a person called right, and how much of it that score would cost.
        zone: of the rule, "" for a line.
    """

    rule: str
    label: str
    zone: str
    place: Box
    alarms: tuple[str, ...]
    score_high: float
    score_min: float | None
    height_min: float | None
    height_max: float | None
    right: int
    lost: int

    @property
    def sentences(self) -> str:
        """Return the proposal in words for a person."""
        many = f"{len(self.alarms)} false alarms of {self.label}"
        text = f"{many} at this place and size, scores up to {self.score_high:.2f}."
        kept = f"of {self.right} that you called right, {self.lost or 'none'} would be missed" if self.right else ""
        if self.score_min is not None:
            return f"{text} With score_min {self.score_min:.2f} none of them would have come" + (
                f"; {kept}." if kept else "."
            )
        if self.lost:
            text = f"{text} A higher score_min would cost too much: {kept}."
        for key, limit in (("height_min", self.height_min), ("height_max", self.height_max)):
            if limit is not None:
                return f"{text} With {key} {limit:g} none of them would have come, and all that is right would."
        return f"{text} Ignore this place, if nothing matters there."


@dataclass(slots=True)
class _Place:
    boxes: list[Box] = field(default_factory=list)
    best: dict[str, float] = field(default_factory=dict)  # by alert

    def mean(self) -> Box:
        x1, y1, x2, y2 = (round(sum(side) / len(self.boxes), 3) for side in zip(*self.boxes, strict=True))
        return (x1, y1, x2, y2)


def propose(events: Sequence[ReviewedBox], camera: CameraConfig) -> list[RuleProposal]:
    """Proposals for the rules of a camera, the most false alarms first. events: reviewed ones, newest first."""
    found = []
    for rule in camera.rules:
        mine = [each for each in events if each.rule == rule.name]
        for label in sorted({each.label for each in mine if each.is_false}):
            right: dict[str, float] = {}
            for each in mine:
                if each.label == label and not each.is_false:
                    right[each.alert] = max(each.score, right.get(each.alert, 0.0))
            for place in _places([each for each in mine if each.label == label and each.is_false]):
                high = max(place.best.values())
                if len(place.best) < ALARMS_MIN or high < rule.score_min:  # the rule was changed since
                    continue
                wanted = round(math.floor(round(high / SCORE_STEP, 6) + 1) * SCORE_STEP, 2)  # 0.29 / 0.01 is 28.99...
                lost = sum(score < wanted for score in right.values())
                fits = wanted <= SCORE_MAX and lost <= LOST_SHARE_MAX * len(right)
                zone = "" if isinstance(rule, LineRule) else rule.zone
                low, high_limit = (None, None) if fits else _height_limits(place, mine, label)
                found.append(
                    RuleProposal(
                        rule.name, label, zone, place.mean(), tuple(place.best), high, wanted if fits else None,
                        low, high_limit,
                        len(right), lost,
                    )
                )  # fmt: skip
    return sorted(found, key=lambda each: (-len(each.alarms), each.rule, each.label))


def _height_limits(place: _Place, events: Sequence[ReviewedBox], label: str) -> tuple[float | None, float | None]:
    """Least and greatest height that leave the false alarms out and everything right in, well between the two."""
    right = [each.box[3] - each.box[1] for each in events if each.label == label and not each.is_false]
    false = [box[3] - box[1] for box in place.boxes]
    if not right:
        return None, None
    if max(false) * HEIGHT_RATIO_MIN <= min(right):
        return round((max(false) + min(right)) / 2, 2), None
    if min(false) >= max(right) * HEIGHT_RATIO_MIN:
        return None, round((min(false) + max(right)) / 2, 2)
    return None, None


def _places(events: Sequence[ReviewedBox]) -> list[_Place]:
    """Events of about the same place and size together, each with the first that it is near to."""
    places: list[_Place] = []
    for event in events:
        place = next((each for each in places if _is_near(each.boxes[0], event.box)), None)
        if place is None:
            place = _Place()
            places.append(place)
        place.boxes.append(event.box)
        place.best[event.alert] = max(event.score, place.best.get(event.alert, 0.0))
    return places


def _is_near(a: Box, b: Box) -> bool:
    for low, high in ((0, 2), (1, 3)):
        one, other = a[high] - a[low], b[high] - b[low]
        if abs(a[low] + a[high] - b[low] - b[high]) / 2 > _NEAR * max(one, other):
            return False
        if max(one, other) > _SIZE_RATIO_MAX * max(1e-6, min(one, other)):
            return False
    return True


router = RouteList(prefix=f"{API}/cameras", tags=["cameras"])


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalItem(RuleProposal):
    """False alarms at one place propose a change of a rule.

    The change is `score_min` (null: that would cost too much), else a limit of height that nothing right meets, else
    (all null) to ignore the place. `right`, `lost`: what a person confirmed, and how much of it would be missed.
    `editor`: the page where it can be tried, with the change made and not saved.
    """

    words: str
    editor: str

    @classmethod
    def of(cls, camera: str, found: RuleProposal) -> ProposalItem:
        place = ",".join(f"{each:g}" for each in found.place)
        query = {"rule": found.rule, "place": place}
        limits = {"score_min": found.score_min, "height_min": found.height_min, "height_max": found.height_max}
        query |= {key: f"{value:g}" for key, value in limits.items() if value is not None} or {"ignore": "1"}
        editor = f"/cameras/{quote(camera, safe='')}/edit?{urlencode(query)}"
        return cls(**asdict(found), words=found.sentences, editor=editor)


class FalseAlarmReader:
    """Propose changes of rules from the false alarms of each camera. Any thread may call."""

    def __init__(self, db: Database, cameras: Mapping[str, CameraConfig]) -> None:
        self._db = db
        self._cameras = cameras

    def proposals(self, camera: str) -> list[ProposalItem]:
        """Return the proposals of a camera, the most false alarms first; none if it is not in the site file."""
        config = self._cameras.get(camera)
        if config is None:
            return []
        return [ProposalItem.of(camera, each) for each in propose(reviewed_boxes(self._db, camera), config)]


FalseAlarms = Annotated[FalseAlarmReader, Depends(provided(FalseAlarmReader))]


@router.get("/{name}/proposals")
def camera_proposals(alarms: FalseAlarms, name: str) -> list[ProposalItem]:
    """Return what the alerts that were called false alarms in the last 30 days propose for the rules.

    Nothing is changed.
    """
    return alarms.proposals(name)

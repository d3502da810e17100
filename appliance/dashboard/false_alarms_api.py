"""`/api/v1/cameras/{name}/proposals`: what the alerts that a person called false alarms propose for the rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import Depends

from appliance.config import CameraConfig
from appliance.dashboard.schemas import API, ApiModel
from appliance.settings.false_alarm_memory import RuleProposal, propose
from appliance.store.database import Database
from appliance.store.review_writes import reviewed_boxes
from appliance.types import Box
from appliance.web.dependencies import provided
from appliance.web.route_list import RouteList

router = RouteList(prefix=f"{API}/cameras", tags=["cameras"])


class ProposalItem(ApiModel):
    """False alarms at one place propose a change of a rule.

    The change is `score_min` (null: that would cost too much), else a limit of height that nothing right meets, else
    (all null) to ignore the place. `right`, `lost`: what a person confirmed, and how much of it would be missed.
    `editor`: the page where it can be tried, with the change made and not saved.
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
    words: str
    editor: str

    @classmethod
    def of(cls, camera: str, found: RuleProposal) -> ProposalItem:
        place = ",".join(f"{each:g}" for each in found.place)
        query = {"rule": found.rule, "place": place}
        limits = {"score_min": found.score_min, "height_min": found.height_min, "height_max": found.height_max}
        query |= {key: f"{value:g}" for key, value in limits.items() if value is not None} or {"ignore": "1"}
        editor = f"/cameras/{quote(camera, safe='')}/edit?{urlencode(query)}"
        return cls.of_row(found, editor=editor)


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

"""Where the objects of reviewed alerts stood when their rules fired."""

from __future__ import annotations

import json
from dataclasses import dataclass

from appliance.store.database import Database
from appliance.types import Box

DAYS = 30  # reviews that still say something of the scene: seasons and parked cars change
ALERTS_MAX = 500  # of those days, the newest


@dataclass(frozen=True, slots=True)
class ReviewedBox:
    """An event of a reviewed alert. is_false: a person called it a false alarm."""

    alert: str
    rule: str
    label: str
    score: float
    box: Box
    is_false: bool


def reviewed_boxes(db: Database, camera: str) -> list[ReviewedBox]:
    """Return boxes of a camera's newest reviewed alerts, at most ALERTS_MAX and DAYS days old, newest first.

    Raise StoreError.
    """
    with db.read() as connection:
        rows = connection.execute(
            """SELECT found.id AS alert, found.review, event.rule, event.label, event.score, event.box
               FROM (SELECT id, review, t_start FROM alert WHERE camera = ? AND t_start > ? AND review IS NOT NULL
                     ORDER BY t_start DESC LIMIT ?) AS found JOIN event ON event.alert = found.id
               ORDER BY found.t_start DESC, event.t""",
            (camera, db.clock.now() - DAYS * 86400, ALERTS_MAX),
        ).fetchall()
    return [
        ReviewedBox(
            row["alert"], row["rule"], row["label"], row["score"], tuple(json.loads(row["box"])),
            row["review"] == "false_alarm",
        )
        for row in rows
    ]  # fmt: skip

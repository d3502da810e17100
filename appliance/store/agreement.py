"""Reads alerts with their reviews and verdicts, from which drift and agreement are computed."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from appliance.store.database import Database
from appliance.types import TEACHING_KINDS

ALERTS_MAX = 20_000  # of one reading, the newest: some 6 MB, and more than a busy site has in a quarter
DAY_S = 86400.0  # seconds

_ANSWERED_ALERTS = f"""SELECT id, camera, coalesce(json_extract(labels, '$[0]'), '') AS label, t_start AS t,
        CAST(strftime('%H', t_start, 'unixepoch', 'localtime') AS INTEGER) AS hour, model, score,
        (SELECT json_extract(inputs, '$.chance') FROM decision WHERE decision.alert = alert.id ORDER BY id DESC LIMIT 1)
            AS chance,
        CASE review WHEN 'reviewed' THEN 1 WHEN 'false_alarm' THEN 0 END AS person,
        CASE WHEN judge IN ({", ".join(map(repr, TEACHING_KINDS))})
            THEN CASE verdict WHEN 'confirmed' THEN 1 WHEN 'rejected' THEN 0 END END AS judge
    FROM alert WHERE audit = 0 AND t_start >= ? ORDER BY t_start DESC, id DESC LIMIT ?"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredAlert:
    """An alert and whether it was right as a person and as a language model say; None: they said nothing (yet).

    label: of its first object; t: UTC seconds of its begin; hour: of the day on the site; model: the network that
    raised it, '' if not known; chance: of being right as the router took it when it decided, None: there was no router.
    """

    id: str
    camera: str
    label: str
    t: float
    hour: int
    model: str
    score: float
    chance: float | None = None
    person: bool | None = None
    judge: bool | None = None

    @property
    def real(self) -> bool | None:
        """Return whether it was right; a person outranks the judge."""
        return self.judge if self.person is None else self.person


def answered_alerts(db: Database, since_t: float) -> list[AnsweredAlert]:
    """Return the newest alerts that began at `since_t` or later, judged or not, the oldest first. Raise StoreError."""
    return [_alert(dict(row)) for row in reversed(db.rows(_ANSWERED_ALERTS, (since_t, ALERTS_MAX)))]


def _alert(row: dict[str, Any]) -> AnsweredAlert:
    """Return the alert. All of them share their few names, which would be a third of what is held for months."""
    names = {name: sys.intern(row[name]) for name in ("camera", "label", "model")}
    return AnsweredAlert(**{**row, **names, "person": _answer(row["person"]), "judge": _answer(row["judge"])})


def _answer(stored: int | None) -> bool | None:
    return None if stored is None else bool(stored)

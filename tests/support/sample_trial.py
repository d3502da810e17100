"""A trial of other settings that has ended: the one alert of eight seconds is no longer reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from appliance.dashboard.trial_store import (
    LeftOut,
    TrialHead,
    TrialResult,
    TrialStore,
    TriedAlert,
    TriedAlertPair,
    TriedTotals,
)


def keep_trial(root: Path, number: str, t0: float, diff: str, **found: Any) -> None:
    """Store it in `root` as a trial of the camera gate. found: other values of the result."""
    before = TriedTotals(looks=40, tracks=1, events=1, alerts=1, questions=0)
    alert = TriedAlert(
        t_start=t0 + 3, t_end=t0 + 5, rules=("intruder",), labels=("person",), severity="alert", tracks=1, best_t=t0 + 4
    )
    result = TrialResult(
        same=False, settings=(), models=("a", "a"), totals=(before, before.model_copy(update={"alerts": 0})),
        events=[], tracks=[], missing=[], alerts=[TriedAlertPair(change="missing", before=alert, after=None)],
        unread=[], left_out=LeftOut(alerts=0, events=0, tracks=0), replayed=1,
    ).model_copy(update=found)  # fmt: skip
    head = TrialHead(
        id=number, camera="gate", began_t=t0, who="anna", why="", spans=[(t0, t0 + 8)], diff=diff, state="done"
    )
    TrialStore(root).put(head, result)

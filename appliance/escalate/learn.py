"""From what the store knows of past alerts to what a calibration is learnt from."""

from __future__ import annotations

from collections.abc import Iterable

from appliance.escalate.calibration import Stability
from appliance.escalate.calibration_fit import Outcome
from appliance.store.decisions import OutcomeRow

AUDIT_WEIGHT_MAX = 200.0


def outcomes_of(rows: Iterable[OutcomeRow]) -> list[Outcome]:
    """Alerts that were reviewed or judged, as the router saw them when it decided.

    One that was asked about as one of an audit sample stands for all that were left out like it, so that what is not
    asked is not forgotten (inverse probability weighting; D. Horvitz, D. Thompson, 1952).
    """
    return [
        Outcome(
            id=row.alert,
            camera=row.camera,
            label=row.inputs.label,
            seen=Stability(
                score=row.inputs.score, spread=row.inputs.spread, looks=row.inputs.looks, moved=row.inputs.moved
            ),
            real=row.real,
            weight=min(1 / row.inputs.audit_share, AUDIT_WEIGHT_MAX) if row.inputs.audit_share > 0 else 1.0,
        )
        for row in rows
    ]

"""What of the recording the alerts that are not finished still need."""

from __future__ import annotations

ROLL_S_MAX = 65.0  # pre-roll, post-roll and escalation span are at most 60 s

_WAITING = "state = 'waiting'"
_UNSETTLED = "state IN ('waiting', 'ready', 'sent') OR wait <> ''"


def held(before_s: float = ROLL_S_MAX, after_s: float = ROLL_S_MAX, *, unanswered: bool = False) -> str:
    """A `WITH held (camera, t0, t1)`: of open alerts, and of those of which evidence or a question is still to be cut.

    unanswered: and of those whose question is not answered yet, for the cloud may ask to see more.
    """
    return f"""WITH held AS (
        SELECT camera, t_start - {before_s:g} AS t0, coalesce(t_end, 9e15) + {after_s:g} AS t1 FROM alert
        WHERE t_end IS NULL OR id IN (SELECT alert FROM evidence WHERE {_WAITING})
        OR id IN (SELECT alert FROM escalation WHERE {_UNSETTLED if unanswered else _WAITING}))"""


HELD = held()
NOT_HELD = """NOT EXISTS (SELECT 1 FROM held WHERE held.camera = segment.camera
    AND segment.t_end > held.t0 AND segment.t_start < held.t1)"""

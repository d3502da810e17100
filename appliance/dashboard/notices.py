"""Who was told of an alert, in words, and which targets cannot be told."""

from __future__ import annotations

from typing import Literal

from appliance.dashboard.desk import Desk
from appliance.dashboard.shapes import AlertFull, Shape
from appliance.store.alerts import AlertDetail
from appliance.store.notices import NoticeRow, NoticeState, Standing

FAILING_S = 60.0  # a target that fails for shorter than this is tried again, and nobody need know

_TOLD_AS: dict[Standing | Literal[""], str] = {
    "": "",
    "edge": "as the box saw it",
    "unverified": "as unverified",
    "confirmed": "as confirmed",
    "withdrawn": "that it was nothing",
    "unsure": "that the cloud is not sure",
}


class NoticeItem(Shape):
    """A target of an alert. held_until: it waits for a verdict until then at the latest; null: it does not.

    told_t: when the first message arrived, last_t: the last, standing: what that one said, messages: how many did.
    reason: the last problem, or why nothing (more) is sent. words: all this as a person reads it.
    """

    target: str
    state: NoticeState
    held_until: float | None
    told_t: float | None
    last_t: float | None
    standing: Standing | Literal[""]
    messages: int
    attempts: int
    reason: str
    words: str

    @classmethod
    def of(cls, row: NoticeRow, now: float) -> NoticeItem:
        held = row.state == "waiting" and not row.attempts and now < row.due_t
        return cls(
            target=row.target,
            state=row.state,
            held_until=row.due_t if held else None,
            told_t=row.told_t,
            last_t=row.last_t,
            standing=row.standing,
            messages=row.messages,
            attempts=row.attempts,
            reason=row.reason,
            words=_words(row, held),
        )


class AlertTold(AlertFull):
    """Everything about one alert, and who was told of it."""

    notices: list[NoticeItem]

    @classmethod
    def read(cls, desk: Desk, detail: AlertDetail) -> AlertTold:
        return cls(**dict(AlertFull.of(detail)), notices=notices_of(desk, detail.alert.id))


def notices_of(desk: Desk, alert: str) -> list[NoticeItem]:
    """Who is told of an alert, by name."""
    now = desk.clock.now()
    return [NoticeItem.of(row, now) for row in desk.notices.of(alert)]


def failing(desk: Desk) -> list[str]:
    """A sentence for each target that has not taken a message for long."""
    now = desk.clock.now()
    return [
        f"notify: {state.name} cannot be told for {(now - state.failing_since) / 60:.0f} min, {state.waiting} waiting: "
        f"{state.error}"
        for state in desk.targets()
        if state.failing_since is not None and now - state.failing_since >= FAILING_S
    ]


def _words(row: NoticeRow, held: bool) -> str:
    if row.messages:
        told = f"Told {_TOLD_AS[row.standing]}" + (f" ({row.messages} messages)" if row.messages > 1 else "")
        if row.state == "changed":
            return f"{told}; an update is on its way" + (f": {row.reason}" if row.reason else "")
        return told + (f"; {row.reason}" if row.reason else "")
    if row.state == "waiting":
        if held:
            return "Held for the cloud's verdict"
        return f"Being sent; {row.reason}" if row.reason else "Being sent"
    return row.reason[:1].upper() + row.reason[1:]

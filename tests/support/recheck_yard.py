"""The rendered yard as a box recorded it: one segment on disk, boxes in the store, alerts about who is there and who
is not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from appliance import wire
from appliance.store.alerts import AlertStore
from appliance.store.boxes import BoxStore
from appliance.store.database import Database
from appliance.store.segments import SegmentStore
from appliance.types import (
    Alert,
    AlertChange,
    BestView,
    Box,
    Event,
    FrameBoxes,
    SegmentRow,
    Severity,
    TrackedObject,
)

CLIPS = Path(__file__).parents[2] / "fixtures" / "clips"
FPS, SIZE, FRAMES = 15, (960, 540), 930
WALKER, FIRST, LAST = 1, 175, 235  # somebody crosses the yard in these frames
AWAY = (0.0, -0.3)  # from where the walker is, to where nobody is
PATH = "segments/gate/yard.mp4"


def record(root: Path, db: Database, t0: float) -> None:
    """Frame 0 is at `t0`."""
    (root / PATH).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(CLIPS / "yard.mp4", root / PATH)
    size = (root / PATH).stat().st_size
    SegmentStore(db).put(
        SegmentRow(
            camera="gate", path=PATH, t_start=t0, t_end=t0 + FRAMES / FPS, bytes=size, frames=FRAMES, codec="h264",
            size=SIZE, complete=True,
        )
    )  # fmt: skip


def walk(*, away: bool = False) -> dict[int, Box]:
    """Where the walker is by frame, a look each third frame; away: moved to where nobody is."""
    found: dict[int, Box] = {}
    for line in (CLIPS / "yard.gt.txt").read_text().splitlines():
        frame, number, x, y, width, height = (float(value) for value in line.split(",")[:6])
        if number == WALKER and FIRST <= frame <= LAST and (frame - FIRST) % 3 == 0:
            right, down = AWAY if away else (0.0, 0.0)
            found[int(frame) - 1] = (
                x / SIZE[0] + right,
                y / SIZE[1] + down,
                (x + width) / SIZE[0] + right,
                (y + height) / SIZE[1] + down,
            )
    return found


def alert_of(
    db: Database,
    t0: float,
    name: str = "a1",
    *,
    away: bool = False,
    track: int = 7,
    severity: Severity = "alert",
    ask: Callable[[Alert, Event], wire.Escalation] | None = None,
    gone_s: float | None = None,
) -> Alert:
    """An alert about the walker that is over, written with its boxes as the core writes them; ask: its question.

    gone_s: the rule fired so long after the walker was last seen, as one for who leaves the picture does.
    """
    inferences = walk(away=away)
    frames = [
        FrameBoxes(
            camera="gate",
            seq=n,
            frame=frame,
            t=t0 + frame / FPS,
            looked=True,
            objects=(TrackedObject(track=track, label="person", score=0.7, box=box),),
        )
        for n, (frame, box) in enumerate(inferences.items())
    ]
    BoxStore(db).append("gate", f"r{track}", frames)
    best = frames[len(frames) // 2] if gone_s is None else frames[-1]
    t_start = frames[0].t if gone_s is None else frames[-1].t + gone_s
    alert = Alert(
        camera="gate", id=name, rules=("intruder",), severity=severity, t_start=t_start, t_end=None, tracks=(track,),
        labels=("person",), score=0.7, run=f"r{track}",
        best=BestView(track=track, label="person", t=best.t, score=0.7, box=best.objects[0].box),
    )  # fmt: skip
    event = Event(
        camera="gate", rule="intruder", kind="enter", track=track, label="person", t=t_start, score=0.7, zone="yard",
        severity=severity, id=f"e-{name}",
    )  # fmt: skip
    alerts, priority, escalation = AlertStore(db), wire.PRIORITY_OF[severity], ask(alert, event) if ask else None
    alerts.apply(AlertChange("opened", alert, event), escalation=escalation, priority=priority)
    over = replace(alert, t_end=max(t_start, frames[-1].t), end_reason="quiet")
    alerts.apply(AlertChange("ended", over), escalation=None, priority=priority)
    return over

"""Ready-made alerts, escalations and verdicts for tests of the store and of what builds on it."""

from __future__ import annotations

from appliance import wire
from appliance.types import Alert, AlertChange, BestView, Box, Event, FrameBoxes, TrackedObject

BOX: Box = (0.25, 0.25, 0.5, 0.75)
T0 = 1_700_000_000.0


def event(t: float = T0, *, track: int = 7, rule: str = "intruder", name: str = "", camera: str = "yard") -> Event:
    return Event(
        camera=camera, rule=rule, kind="enter", track=track, label="person", t=t, score=0.8, box=BOX, zone="z", id=name
    )


def best(t: float = T0, *, score: float = 0.8, box: Box = BOX) -> BestView:
    return BestView(track=7, label="person", t=t, score=score, box=box)


def alert(
    name: str = "a1",
    *,
    t: float = T0,
    t_end: float | None = None,
    camera: str = "yard",
    view: BestView | None = None,
    reason: str = "",
) -> Alert:
    return Alert(
        camera=camera,
        id=name,
        rules=("intruder",),
        severity="warning",
        t_start=t,
        t_end=t_end,
        tracks=(7,),
        labels=("person",),
        score=0.8,
        run="r1",
        best=view or best(t),
        end_reason=reason,
    )


def opened(name: str = "a1", *, t: float = T0, camera: str = "yard", view: BestView | None = None) -> AlertChange:
    return AlertChange("opened", alert(name, t=t, camera=camera, view=view), event(t, camera=camera, name=f"e-{name}"))


def ended(
    name: str = "a1", *, t: float = T0, t_end: float = T0 + 3, camera: str = "yard", view: BestView | None = None
) -> AlertChange:
    return AlertChange("ended", alert(name, t=t, t_end=t_end, camera=camera, view=view, reason="quiet"))


def sample_escalation(name: str = "q1", *, of: str = "a1", t: float = T0, camera: str = "yard") -> wire.Escalation:
    return wire.Escalation(
        id=name,
        site="depot",
        camera=camera,
        alert=of,
        rule="intruder",
        kind="enter",
        label="person",
        severity="warning",
        question="Is there a person?",
        t=t,
        created_t=t,
    )


def sample_verdict(to: str = "q1", *, of: str = "a1", decision: str = "confirmed", site: str = "depot") -> wire.Verdict:
    return wire.Verdict(
        escalation=to,
        site=site,
        alert=of,
        decision=decision,  # type: ignore[arg-type]
        reason="A person stands there.",
        confidence=0.9,
        engine="openai",
        model="m",
        seconds=0.1,
        judged_t=T0 + 2,
    )


def sample_frame(t: float, *, seq: int, box: Box | None = BOX, camera: str = "yard", track: int = 7) -> FrameBoxes:
    """One examined frame with one person in it, or (box None) with none."""
    person = () if box is None else (TrackedObject(track=track, label="person", score=0.8, box=box),)
    return FrameBoxes(camera=camera, seq=seq, frame=seq, t=t, looked=True, objects=person)

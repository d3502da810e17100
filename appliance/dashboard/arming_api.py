"""`/api/v1/arming`: which profile is in force and until when, what is paused, and both changed."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Depends, Request
from pydantic import Field

from appliance.base.clock import iso_utc
from appliance.base.errors import PreconditionError
from appliance.dashboard.schemas import API, ApiModel, Flag, RequestModel
from appliance.rules.arming import PAUSE_S_MAX, Arming
from appliance.web.problems import Problem, refused_as
from appliance.web.routes import RouteList, provided
from appliance.web.visitor import visitor

router = RouteList(prefix=API, tags=["arming"])
ArmingPart = Annotated[Arming, Depends(provided(Arming))]
Minutes = Annotated[float, Field(gt=0, le=PAUSE_S_MAX / 60)]
PAUSE_LENGTHS = ((15, "15 min"), (60, "1 h"), (240, "4 h"), (720, "12 h"), (1440, "24 h"))
Why = Annotated[str, Field(max_length=200)]


class PauseItem(ApiModel):
    """A camera, or one of its rules, that reports nothing until then; with `target`, that one is not notified of it."""

    camera: str
    rule: str
    target: str
    since_t: float
    until_t: float | None
    who: str
    why: str


class ArmingReport(ApiModel):
    """The profile in force.

    by: the week of the site file or a person, who and why. until_t null: until somebody changes it; `following` is the
    profile then. reports: whether anything reports at all. profiles: those that may be chosen. pauses, snoozes: of the
    visitor's cameras.
    """

    profile: str
    by: Literal["schedule", "person"]
    since_t: float | None
    until_t: float | None
    following: str
    who: str
    why: str
    reports: bool
    profiles: tuple[str, ...]
    week: bool
    pauses: list[PauseItem]
    snoozes: list[PauseItem]

    @classmethod
    def of(cls, arming: Arming, camera: str | None = None) -> ArmingReport:
        """camera: pauses of this one alone."""
        state = arming.in_force()
        return cls.of_row(
            state, profile=state.name, reports=arming.reports, profiles=arming.config.names,
            week=bool(arming.config.schedule),
            pauses=[PauseItem.of_row(row) for row in arming.pauses.paused(camera) if visitor().sees(row.camera)],
            snoozes=[PauseItem.of_row(row) for row in arming.pauses.snoozed() if visitor().sees(row.camera)],
        )  # fmt: skip


class ChooseProfile(RequestModel, strict=True):
    """The choice of a profile, and when it ends.

    profile null: the week decides. until: when it ends: after `minutes`, at `until_t` (UTC seconds), with `turn` when
    the week turns to the next profile; none of them: when a person changes it.
    """

    profile: Annotated[str, Field(max_length=32)] | None
    minutes: Minutes | None = None
    until_t: float | None = None
    turn: Flag = False
    why: Why = ""


class PauseCamera(RequestModel, strict=True):
    """rule '': all of the camera. It ends after `minutes` or at `until_t` (UTC seconds); minutes 0: now."""

    rule: Annotated[str, Field(max_length=100)] = ""
    minutes: Annotated[float, Field(ge=0, le=PAUSE_S_MAX / 60)] | None = None
    until_t: float | None = None
    why: Why = ""


@router.get("/arming")
def arming_state(arming: ArmingPart) -> ArmingReport:
    """Return the profile in force, until when, and what is paused."""
    return ArmingReport.of(arming)


@router.post("/arming")
def choose_profile(request: Request, arming: ArmingPart, wanted: ChooseProfile) -> ArmingReport:
    """Choose the profile of the site, or take the choice back."""
    until = _end(arming, wanted.minutes, wanted.until_t)
    if until is None and wanted.turn:
        until = arming.next_turn(arming.now)
    with refused_as({PreconditionError: 422}):
        if wanted.profile is None:
            arming.follow_schedule()
        else:
            arming.choose(wanted.profile, until, visitor().name, wanted.why.strip())
    request.state.about = _about(arming.profile, until, wanted.why)
    return ArmingReport.of(arming)


@router.post("/cameras/{name}/pause")
def pause_camera(request: Request, arming: ArmingPart, name: str, wanted: PauseCamera) -> ArmingReport:
    """Let a camera or one of its rules report nothing for a while; `minutes: 0` ends that."""
    what = f"{name}, rule {wanted.rule}" if wanted.rule else name
    if wanted.minutes == 0:
        with refused_as({PreconditionError: 422}):
            arming.pauses.end(name, wanted.rule)
        request.state.about = f"{what}: it reports"
        return ArmingReport.of(arming)
    until = _end(arming, wanted.minutes, wanted.until_t)
    if until is None:
        raise Problem(422, "Say when the pause ends: `minutes`, or `until_t`.")
    with refused_as({PreconditionError: 422}):
        arming.pauses.begin(name, wanted.rule, until, visitor().name, wanted.why.strip())
    request.state.about = _about(what, until, wanted.why)
    return ArmingReport.of(arming)


def _end(arming: Arming, minutes: float | None, until_t: float | None) -> float | None:
    """Return the UTC seconds when a choice ends; None: no time is given. Raise Problem if it is not ahead."""
    if minutes is not None:
        return arming.now + minutes * 60
    if until_t is not None and not arming.now < until_t < arming.now + 10 * 365 * 86400:
        raise Problem(422, "`until_t` is not ahead.")
    return until_t


def _about(what: str, until: float | None, why: str) -> str:
    return (
        what + (f" until {iso_utc(until)}" if until is not None else "") + (f": {why.strip()}" if why.strip() else "")
    )

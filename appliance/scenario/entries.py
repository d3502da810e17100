"""A scenario's entries as patterns of events, and the events that true boxes make under the same rules."""

from __future__ import annotations

from math import inf

from appliance.pipeline import Pipeline
from appliance.replay.result import ReplayResult
from appliance.scenario.expect import Barred, Pattern, Wanted
from appliance.scenario.plan import Plan
from appliance.scenario.sections import Derived, Described, Expected
from appliance.scenario.spool import Spool, true_looks
from appliance.scenario.truth import TrueFrames
from appliance.types import Event, StreamHeader

# An entry that gives only a moment (`at`) is looked for this long before and after it.
AT = Derived()


def wanted(plan: Plan) -> list[Wanted]:
    """The entries of `expect`."""
    return [
        Wanted(
            pattern=_pattern(entry, _window(entry)),
            source=plan.place("expect", index),
            at=entry.at,
            min=entry.count.min,
            max=entry.count.max,
            note=entry.note,
        )
        for index, entry in enumerate(plan.scenario.expect)
    ]


def barred(plan: Plan) -> list[Barred]:
    """The entries of `never`."""
    return [
        Barred(pattern=_pattern(entry, entry.between), source=plan.place("never", index), note=entry.note)
        for index, entry in enumerate(plan.scenario.never)
    ]


def derived(plan: Plan, result: ReplayResult, spool: Spool, frames: TrueFrames, settings: Derived) -> list[Wanted]:
    """What a perfect detector and tracker would have made the camera's rules report at the same frames."""
    return [
        Wanted(
            pattern=Pattern(
                camera=result.camera if len(plan.parts) > 1 else "",
                rule=event.rule,
                label=event.label,
                start=max(0.0, event.t - settings.before_s),
                end=event.t + settings.after_s,
            ),
            source=f"truth, object {event.track}",
            at=event.t,
            box=event.box,
        )
        for event in _true_events(plan, result, spool, frames)
    ]


def _true_events(plan: Plan, result: ReplayResult, spool: Spool, frames: TrueFrames) -> list[Event]:
    pipeline = Pipeline(result.camera, plan.config.cameras[result.camera], plan.config.alerts)
    pipeline.feed(StreamHeader(camera=result.camera, clip="", model="truth", size=result.size, run="truth"))
    events: list[Event] = []
    for frame in true_looks(spool, frames):
        step = pipeline.feed(frame)
        held = {event.id for event in step.suppressed}
        events += [event for event in step.events if event.id not in held]
    return events


def _window(entry: Expected) -> tuple[float, float] | None:
    if entry.between is None and entry.at is not None:
        return max(0.0, entry.at - AT.before_s), entry.at + AT.after_s
    return entry.between


def _pattern(entry: Described, window: tuple[float, float] | None) -> Pattern:
    start, end = window or (0.0, inf)
    return Pattern(
        camera=entry.camera or "",
        rule=entry.rule or "",
        zone=entry.zone or "",
        line=entry.line or "",
        label=entry.label or "",
        start=start,
        end=end,
    )

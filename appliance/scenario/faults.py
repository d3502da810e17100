"""Everything that is wrong with a scenario's run, in words that a person can act on."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.replay.cassette_words import missing_words
from appliance.replay.report import clock_time
from appliance.replay.result import ReplayResult
from appliance.scenario.expect import FalseAlarm, Miss
from appliance.scenario.measures import Estimate, EventFigures
from appliance.scenario.sections import AtMost, Require
from appliance.scenario.sighting import Sighting, nearest_words
from appliance.scenario.verdict import Fault, Moment, TrackFigures, Watched


def miss_fault(miss: Miss, sighting: Sighting | None, camera: str, *, fails: bool) -> Fault:
    """sighting: what the looks of that time say, None where too many were missed to look into each."""
    wanted = miss.wanted
    come = f" ({wanted.min - miss.missing} of {wanted.min} came)" if wanted.min > 1 else ""
    moments = sighting.moments() if sighting else ()
    begin = wanted.pattern.start if not moments else moments[len(moments) // 2].t
    t = wanted.at if wanted.at is not None else begin
    parts = [sighting.sentence() if sighting else "", nearest_words(miss)]
    return Fault(
        kind="miss",
        title=f"missed at {clock_time(t)}: {wanted.pattern.words()}{come}",
        detail="; ".join(part for part in parts if part),
        source=wanted.source,
        note=wanted.note,
        camera=camera,
        t=t,
        zone=wanted.pattern.zone or (sighting.zone if sighting else ""),
        line=wanted.pattern.line or (sighting.line if sighting else ""),
        fails=fails,
        moments=moments,
    )


def alarm_fault(alarm: FalseAlarm, moment: Moment | None, *, fails: bool) -> Fault:
    event = alarm.event
    place = f"zone {event.zone}" if event.zone else f"line {event.line}"
    return Fault(
        kind="false alarm",
        title=f"false alarm at {clock_time(event.t)}: rule {event.rule}, {event.label}, {place}",
        detail=f"{alarm.reason}; track {event.track}, score {event.score:.2f}",
        note=alarm.note,
        camera=event.camera,
        t=event.t,
        zone=event.zone,
        line=event.line,
        fails=fails,
        moments=(moment,) if moment else (),
    )


def footage_faults(result: ReplayResult) -> list[Fault]:
    """A clip that broke off or looks that the detector did not answer: nobody knows what happened there."""
    found = []
    if result.error:
        found.append(Fault(kind="footage", title=result.error, camera=result.camera, t=result.footage_s))
    if result.unlooked:
        title = f"the detector did not answer for {result.unlooked} of {result.examined} looks at {result.clip}"
        found.append(Fault(kind="footage", title=title, camera=result.camera))
    return found


def answer_faults(results: Sequence[ReplayResult], *, fails: bool) -> list[Fault]:
    """Questions that have no answer: nobody said anything is not nobody objected."""
    return [
        Fault(kind="footage", title=missing_words(result), camera=result.camera, source="verdicts", fails=fails)
        for result in results
        if result.unanswered
    ]


def limit_faults(at_most: AtMost, watched: Sequence[Watched], bytes_: int) -> list[Fault]:
    found = []
    alerts = [alert for part in watched for alert in part.alerts]
    if at_most.alerts is not None and len(alerts) > at_most.alerts:
        times = ", ".join(clock_time(alert.t_start) for alert in alerts[:12])
        found.append(
            Fault(
                kind="limit",
                title=f"{len(alerts)} alerts; at most {at_most.alerts} are allowed",
                detail=f"they begin at {times}{' …' if len(alerts) > 12 else ''}",
                source="at_most.alerts",
            )
        )
    if at_most.bytes is not None and bytes_ > at_most.bytes:
        title = f"{bytes_:,} bytes would go to the cloud; at most {at_most.bytes:,} are allowed"
        found.append(Fault(kind="limit", title=title, source="at_most.bytes"))
    return found


def figure_faults(require: Require, events: EventFigures, tracks: TrackFigures | None) -> list[Fault]:
    """A required figure that was not reached, or that could not be measured at all."""
    figures = (
        ("recall", require.recall, events.recall),
        ("precision", require.precision, events.precision),
        ("hota", require.hota, _exact(tracks.hota if tracks else None)),
        ("idf1", require.idf1, _exact(tracks.idf1 if tracks else None)),
        ("mota", require.mota, _exact(tracks.mota if tracks else None)),
        ("ap50", require.ap50, _exact(tracks.ap50 if tracks else None)),
    )
    found = [
        _short(name, figure, f"at least {least:g}")
        for name, least, figure in figures
        if least is not None and (figure.value is None or figure.value < least)
    ]
    latest, delay = require.delay_s, events.delay_s
    if latest is not None and (delay.value is None or delay.value > latest):
        found.append(_short("delay_s", delay, f"at most {latest:g}"))
    return found


def _exact(value: float | None) -> Estimate:
    return Estimate(value, None, None, 1)


def _short(name: str, figure: Estimate, wanted: str) -> Fault:
    got = "could not be measured" if figure.value is None else f"is {said(figure)}"
    return Fault(kind="figure", title=f"{name} {got}; {wanted} is required", source=f"require.{name}")


def said(figure: Estimate) -> str:
    """`0.83 (0.61 to 0.97)`, or `-` where nothing was observed."""
    if figure.value is None:
        return "-"
    if figure.low is None or figure.high is None:
        return f"{figure.value:.2f}"
    return f"{figure.value:.2f} ({figure.low:.2f} to {figure.high:.2f})"

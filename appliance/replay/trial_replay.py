"""Replays stretches of the recording with the settings in force and with others, and compares the results."""

from __future__ import annotations

import io
import os
from collections.abc import Generator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from appliance.base.clock import SystemClock
from appliance.base.errors import SourceError
from appliance.detect import detector as detectors
from appliance.detect.detector import ObjectDetector
from appliance.explain.recording_tasks import TrialSetup, TrialSpan, TrialTask, local_time_from
from appliance.replay.footage import RecordingSource, TimeSpan
from appliance.replay.memoized_detector import MemoizedDetector
from appliance.replay.replay_diff import compare_logs
from appliance.replay.replay_diff_match import alert_pairs
from appliance.replay.replay_log_writer import Replayed
from appliance.replay.replay_plan import ReplayInput, ReplayOptions, ReplayPlan
from appliance.replay.replay_result import RecordedLog, parse_log
from appliance.replay.replay_runner import playing
from appliance.types import Alert, Gap

LISTED_MAX = 200  # of alerts, of events, of tracks; all are counted
PROGRESS_EVERY_S = 1.0  # of footage
TOTALS = ("looks", "tracks", "events", "alerts", "questions")


@dataclass(slots=True)
class _Found:
    """The differences, of all stretches together. alerts: all of them; events, tracks: those that are not alike."""

    alerts: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    tracks: list[dict[str, Any]] = field(default_factory=list)
    missing: list[dict[str, Any]] = field(default_factory=list)
    totals: tuple[dict[str, int], dict[str, int]] = field(
        default_factory=lambda: (dict.fromkeys(TOTALS, 0), dict.fromkeys(TOTALS, 0))
    )
    settings: tuple[str, ...] = ()
    same: bool = True

    def add(self, span: TrialSpan, before: RecordedLog, after: RecordedLog) -> None:
        difference = compare_logs(before, after)
        self.settings = difference.settings
        self.same &= difference.same
        for side, total in zip(self.totals, (difference.total_before, difference.total_after), strict=True):
            for name in TOTALS:
                side[name] += getattr(total, name)
        for pair in alert_pairs(*([line for line in log.lines if isinstance(line, Alert)] for log in (before, after))):
            change: Literal["same", "changed", "missing", "new"] = "changed" if pair.what else "same"
            if pair.before is None or pair.after is None:
                change = "new" if pair.before is None else "missing"
            sides = {"before": _alert(pair.before, span.t0), "after": _alert(pair.after, span.t0)}
            self.alerts.append({"change": change, **sides})
        for event in difference.events:
            self.events.append({**asdict(event), "t": round(event.t + span.t0, 3)})
        for track in difference.tracks:
            begin, end = round(track.t_start + span.t0, 3), round(track.t_end + span.t0, 3)
            self.tracks.append({**asdict(track), "t_start": begin, "t_end": end})
        for gap in (line for line in before.lines if isinstance(line, Gap) and line.t_end is not None):
            begin, end = round(gap.t_start + span.t0, 3), round((gap.t_end or 0.0) + span.t0, 3)
            self.missing.append({"t_start": begin, "t_end": end, "reason": gap.reason})

    def report(self, *, every_alert: bool) -> dict[str, Any]:
        most = {"alerts": None if every_alert else LISTED_MAX, "events": LISTED_MAX, "tracks": LISTED_MAX}
        listed = {name: getattr(self, name) for name in ("alerts", "events", "tracks")}
        self.alerts.sort(key=lambda each: (each["change"] == "same", (each["before"] or each["after"])["t_start"]))
        return {
            **{name: rows[: most[name]] for name, rows in listed.items()},
            "left_out": {name: len(rows) - len(rows[: most[name]]) for name, rows in listed.items()},
            "missing": self.missing[:LISTED_MAX], "totals": list(self.totals), "settings": list(self.settings),
            "same": self.same,
        }  # fmt: skip


def _alert(alert: Alert | None, t0: float) -> dict[str, Any] | None:
    if alert is None:
        return None
    end, best = alert.t_start if alert.t_end is None else alert.t_end, alert.best
    return {
        "t_start": round(alert.t_start + t0, 3), "t_end": round(end + t0, 3), "rules": alert.rules,
        "labels": alert.labels, "severity": alert.severity, "tracks": len(alert.tracks),
        "best_t": round((best.t if best else alert.t_start) + t0, 3),
    }  # fmt: skip


def settings_compared(task: TrialTask) -> Generator[float, None, dict[str, Any]]:
    """Yield the share that is done; return all that differs, as plain values. Raises SourceError, ModelError.

    Each stretch begins as a replay does: what stood there before, and which rule had just reported, is not known.
    """
    length_s = sum(span.t1 - span.t0 for span in task.spans)
    logs: list[dict[int, RecordedLog]] = [{}, {}]
    unread: list[str] = []
    names: list[str] = []
    detector: ObjectDetector | None = None
    for side, setup in enumerate((task.now, task.then)):
        if detector is None or setup.site.detector != task.now.site.detector:
            detector = _loaded(setup)
        names.append(detector.name)
        done_s = 0.0
        for number, span in enumerate(task.spans):
            try:
                steps = _replayed(task, setup, span, detector)
                while True:
                    try:
                        t = next(steps)
                    except StopIteration as end:
                        logs[side][number], error = end.value
                        break
                    yield round((side + (done_s + min(t, span.t1 - span.t0)) / length_s) / 2, 4)
            except SourceError as failed:
                error = str(failed)
            unread += [error] if error and error not in unread else []
            done_s += span.t1 - span.t0
    found = _Found()
    both = sorted(logs[0].keys() & logs[1].keys())
    if not both:
        raise SourceError(unread[0])
    for number in both:
        found.add(task.spans[number], logs[0][number], logs[1][number])
    return {**found.report(every_alert=task.every_alert), "unread": unread[:20], "models": names, "replayed": len(both)}


def _loaded(setup: TrialSetup) -> ObjectDetector:
    if setup.model_folder:
        os.environ["VEDETTE_MODELS"] = setup.model_folder
    return MemoizedDetector(detectors.load(setup.site.detector))


def _replayed(
    task: TrialTask, setup: TrialSetup, span: TrialSpan, detector: ObjectDetector
) -> Generator[float, None, tuple[RecordedLog, str]]:
    """Yield the seconds that are done; return the log, and what could not be read. Raises SourceError."""
    camera, at = task.camera, local_time_from(span.t0, span.local_begin)
    source = RecordingSource(Path(task.root), camera, TimeSpan(span.t0, span.t1), span.rows, span.gaps)
    replayed = Replayed(
        camera=camera, kind="recording", clip=source.name, run=f"trial-{span.t0:.0f}", files=len(span.rows),
        t_from=span.t0, t_to=span.t1,
    )  # fmt: skip
    inputs = (ReplayInput(source, replayed),)
    plan = ReplayPlan(inputs, setup.site, detector, local_time=lambda t: at(span.t0 + t))
    log, progress_t = io.BytesIO(), 0.0
    for t, _ in playing(plan, log, ReplayOptions(SystemClock())):
        if t - progress_t >= PROGRESS_EVERY_S:
            progress_t = t
            yield t
    log.seek(0)
    return parse_log(Path(source.name), enumerate(log, 1)), source.error or ""

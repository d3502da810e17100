"""Keeps a reviewed alert as a scenario: its footage, the camera's section, and what it must and must not report.

The clip's packets are copied from the recording or from the alert's own clip; the section has the rules that were
armed then.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path

from appliance.alerts.pipeline import Pipeline
from appliance.base.clock import Clock, local_weekday_minute
from appliance.base.errors import EvidenceError, PreconditionError, StoreError, UsageError
from appliance.base.local_files import DiskWriteError, write_file
from appliance.config import AlertsConfig, CameraConfig, DecisionConfig, DwellRule, Rule
from appliance.media.recorded import ROUNDING_S, ClipFile, RecordedSegment
from appliance.media.recording_reader import READ_DIRECTLY, RecordingReader
from appliance.rules.conditions import Calibration
from appliance.rules.engine import rule_place
from appliance.rules.weekly_hours import ArmedHours
from appliance.rules.zones_and_lines import TUNING
from appliance.scenario.scenario_file import (
    TOLERANCE_S,
    EventStanding,
    KnownEvent,
    ReviewedAs,
    ScenarioContent,
    StoodThere,
    derive_truth,
    scenario_text,
)
from appliance.scenario.scenario_store import CARD, NOTE_LENGTH_MAX, ScenarioCard, ScenarioStore, StoredScenario
from appliance.store.alerts import AlertDetail
from appliance.store.paths import EVIDENCE, SCENARIOS, SEGMENTS, inside
from appliance.store.storage_reader import StorageArchive
from appliance.track.standstill import is_unmoved
from appliance.types import Event, FrameBoxes, Review, StreamHeader, TrackedObject

ROLL_WAIT_S = 2.0  # the recorder flushes once a second
ROLL_S_MAX = 60.0  # of pre-roll and post-roll, see config.AlertsConfig
LOOK_BACK_S = 60.0  # before the clip: for how long something is seen to have stood there
STOOD_S_MIN = 1.0  # what walks is somewhere else when a replay has made sure of it
INITIAL_S = 1.0  # a track of this first part of a clip was there before
REVIEWED_AS: dict[Review, ReviewedAs] = {"reviewed": "right", "false_alarm": "false"}
_REVIEW_TEXTS = {"right": "right", "false": "a false alarm"}
HOLE_S_MAX = 30.0  # a clip with a longer one is played as if it had none, and all times after it would be wrong

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepOptions:
    """How an alert is to be kept. name "": by camera and time; truth None: as it was reviewed.

    complete: the reviewer has seen the whole clip and says that nothing else in it should be reported.
    """

    name: str = ""
    note: str = ""
    truth: ReviewedAs | None = None
    complete: bool = False


class ScenarioExporter:
    """Owner of the folder of kept scenarios; one alert is kept at a time. Any thread may call.

    Reads the store and the recording, writes only below its own folder. It leaves storage.disk_free_min_mb free.
    """

    def __init__(
        self,
        root: Path,
        config: DecisionConfig,
        disk_free_min_mb: float,
        clock: Clock,
        folder: Path | None = None,
        free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
        reader: RecordingReader = READ_DIRECTLY,
        *,
        settings_at: Callable[[float], DecisionConfig | None] = lambda t: None,
    ) -> None:
        """root: the storage folder; folder: where scenarios go, if not `scenarios` in it.

        settings_at: the settings that were in force at a time (UTC seconds); None: they are not known.
        """
        self.root = root
        self._settings_at = settings_at
        self._reader = reader
        self.store = ScenarioStore(folder or root / SCENARIOS, clock)
        self._archive = StorageArchive(root)
        self.config = config
        self._disk_free_min_mb = disk_free_min_mb
        self._clock = clock
        self._free_bytes = free_bytes
        self._lock = threading.Lock()

    def find(self, alert_id: str) -> StoredScenario | None:
        """Return the scenario that was kept of an alert, the newest if there are several."""
        return next((each for each in self.store.all() if each.card and each.card.alert == alert_id), None)

    def keep(self, alert_id: str, options: KeepOptions) -> StoredScenario:
        """Write the scenario; nothing is left after an error.

        Raises UsageError (PreconditionError: something has to be done first), EvidenceError (the footage is gone),
        DiskWriteError and StoreError.
        """
        with self._lock:
            return self._keep(alert_id, options)

    def _keep(self, alert_id: str, options: KeepOptions) -> StoredScenario:
        detail = self._archive.alert(alert_id)
        if detail is None:
            raise UsageError(f"there is no alert {alert_id}: its id stands on its page, and in /api/v1/alerts")
        reviewed_as = _truth_of(detail, options)
        name = self._name(detail, options)
        alerts, camera = self._of_that_time(detail)
        window = clip_window(detail, camera, alerts)
        self._must_be_over(detail, window.t1)
        if len(options.note) > NOTE_LENGTH_MAX:
            raise UsageError(f"the note has {len(options.note)} characters; at most {NOTE_LENGTH_MAX}")
        if any(each == "\0" or "\ud800" <= each <= "\udfff" for each in options.note):
            raise UsageError("the note has characters that no text file holds: the scenario could not be read")
        self._must_have_room(detail, window.t0, window.t1)
        with self.store.placing(name) as folder:
            clip = cut_alert_clip(self._archive, self._reader, detail, window, folder / f"{name}.mp4")
            known = self._known(detail, camera, clip, reviewed_as, complete=options.complete)
            frames = self._archive.examined_frames(
                detail.alert.camera, clip.t_start - LOOK_BACK_S, clip.t_end, detail.alert.run
            )
            stood = what_stood(frames, clip.t_start, {each.event.track for each in known if each.event.kind == "enter"})
            shown = [frame for frame in frames if frame.t >= clip.t_start]
            initial = initial_events(
                detail.alert.camera, camera, alerts, shown, clip.size, known_before=stood is not None,
                calibration=self._archive.calibration(detail.alert.camera, detail.alert.run),
            )  # fmt: skip
            new = [event for event in initial if not any(_same(event, each.event) for each in known)]
            known += [KnownEvent(event, "there already") for event in new]
            content = ScenarioContent(
                name=name, note=options.note, clip=f"{name}.mp4", alert=alert_id, reviewed_as=reviewed_as,
                begin=clip.t_start, end=clip.t_end, lacks=clip.note, camera_name=detail.alert.camera, camera=camera,
                alerts=alerts, detector=self.config.detector,
                truth=derive_truth(known, (clip.t_start, clip.t_end)), complete=options.complete, stood=stood,
            )  # fmt: skip
            write_file(folder / f"{name}.scenario.yaml", scenario_text(content).encode())
            write_file(folder / CARD, self._card(content).model_dump_json(indent=2).encode())
        found = next((each for each in self.store.all() if each.name == name), None)
        if found is None:
            raise EvidenceError(f"the scenario {name} was deleted while it was being kept")
        return found

    def _name(self, detail: AlertDetail, options: KeepOptions) -> str:
        """Return the name of the options, or one made of camera and time. Raises UsageError: taken or invalid."""
        if options.name:
            self.store.must_be_free(options.name)
            return options.name
        before = self.find(detail.alert.id)
        if before is not None:
            raise PreconditionError(f"this alert is kept as `{before.name}` already: delete that, or give another name")
        begin = datetime.fromtimestamp(detail.alert.t_start, tz=timezone.utc)
        name = f"{detail.alert.camera}-{begin:%Y%m%d-%H%M%S}"
        self.store.must_be_free(name)
        return name

    def _of_that_time(self, detail: AlertDetail) -> tuple[AlertsConfig, CameraConfig]:
        """Return the settings by which the alert was decided, so that a zone may have another name today.

        Where they are not kept any more, or do not fit the alert, those of today.
        """
        alert, then = detail.alert, self._settings_at(detail.alert.t_start)
        if then is not None and alert.camera in then.cameras:
            with contextlib.suppress(PreconditionError):
                camera = then.cameras[alert.camera]
                return then.alerts, camera_as_armed(alert.camera, camera, detail.events, alert.t_start)
        today = self.config.cameras.get(alert.camera)
        if today is None:
            raise PreconditionError(
                f"the site file has no camera {alert.camera} any more: keep the alert with the file of that time"
            )
        return self.config.alerts, camera_as_armed(alert.camera, today, detail.events, alert.t_start)

    def _must_be_over(self, detail: AlertDetail, t1: float) -> None:
        if detail.alert.t_end is None:
            raise PreconditionError("the alert still lasts: keep it when it is over")
        if not detail.events:
            raise PreconditionError(
                "nothing is known any more of what this alert reported, so there is nothing to prove"
            )
        wait_s = t1 + ROLL_WAIT_S - self._clock.now()
        if 0 < wait_s < ROLL_S_MAX + ROLL_WAIT_S:  # beyond, the camera's clock is wrong
            raise PreconditionError(
                f"the last seconds of the clip are still being recorded: try again in {wait_s:.0f} s"
            )

    def _must_have_room(self, detail: AlertDetail, t0: float, t1: float) -> None:
        needed = sum(row.bytes for row in self._archive.segments(detail.alert.camera, t0, t1))
        place = next(each for each in (self.store.folder, *self.store.folder.parents) if each.exists())
        spare = self._free_bytes(place) - self._disk_free_min_mb * 1e6
        if needed > spare:
            raise DiskWriteError(
                f"the clip needs up to {needed / 1e6:.0f} MB, and the disk must keep "
                f"{self._disk_free_min_mb:.0f} MB free (storage.disk_free_min_mb): make room first"
            )

    def _known(
        self, detail: AlertDetail, camera: CameraConfig, clip: ClipFile, reviewed_as: ReviewedAs, *, complete: bool
    ) -> list[KnownEvent]:
        """Return the events of the clip's time, and what is known of each."""
        alert = detail.alert
        known = [KnownEvent(event, reviewed_as, lead_s(camera, event), alert.t_end or 0.0) for event in detail.events]
        for other in self._archive.events(alert.camera, clip.t_start, clip.t_end):
            if other.alert == alert.id or not _still_known(camera, other.event):
                continue
            review = _reviewed_as(other.review)
            if review is not None:
                known.append(KnownEvent(other.event, review, lead_s(camera, other.event)))
                continue
            if other.alert is not None and complete:
                raise PreconditionError(
                    f"alert {other.alert} of this camera is in the same clip and nobody has reviewed it: review it "
                    "first, or do not say that the clip is complete"
                )
            standing: EventStanding = "open" if other.alert is not None else "held back"
            known.append(KnownEvent(other.event, standing))
        return known

    def _card(self, content: ScenarioContent) -> ScenarioCard:
        must = sum(not entry.optional for entry in content.truth.expect)
        return ScenarioCard(
            name=content.name, alert=content.alert, camera=content.camera_name, truth=content.reviewed_as,
            complete=content.complete, note=content.note, kept_t=self._clock.now(), t_start=content.begin,
            t_end=content.end, expect=must, never=len(content.truth.never), lacks=content.lacks,
        )  # fmt: skip


def _truth_of(detail: AlertDetail, options: KeepOptions) -> ReviewedAs:
    reviewed = _reviewed_as(detail.row.reviewed.review)
    if reviewed is None and options.truth is None:
        raise PreconditionError(
            "nobody has reviewed this alert, so its truth is not known: mark it reviewed or as a false alarm first "
            "(on the command line: --as right, or --as false)"
        )
    if reviewed is not None and options.truth not in (None, reviewed):
        raise PreconditionError(f"this alert was reviewed as {_REVIEW_TEXTS[reviewed]}: take that review back first")
    return options.truth or reviewed or "right"


def what_stood(frames: Sequence[FrameBoxes], begin: float, entering: Set[int]) -> tuple[StoodThere, ...] | None:
    """Return what stood still when the clip began, so that its replay decides as the camera's session did.

    frames: of that session, which knew what stood there, from LOOK_BACK_S before `begin` on. entering: tracks of which
    a kept event says that they entered a zone in the clip: a replay that knew them from before would not let them
    enter. None: the session began with the clip, and so does a replay.
    """
    before = [frame for frame in frames if frame.looked and frame.t < begin - ROUNDING_S]
    if not before:
        return None
    first = next((frame for frame in frames if frame.looked and frame.t >= begin - ROUNDING_S), before[-1])
    stood = [StoodThere(found.label, found.box, round(_stood_s(found, first.t, before), 1)) for found in first.objects
             if found.track not in entering]  # fmt: skip
    return tuple(each for each in stood if each.seconds >= STOOD_S_MIN)


def _stood_s(found: TrackedObject, t: float, before: Sequence[FrameBoxes]) -> float:
    """For how long it has not moved at `t`, as far back as the frames go or it is known from before them."""
    since, known_s = t, 0.0
    for frame in reversed(before):
        for each in frame.objects:
            if each.track == found.track:
                if not is_unmoved(each.box, found.box):
                    return t - since
                since, known_s = frame.t, each.stood_s or 0.0
    return t - since + known_s


def initial_events(
    name: str, camera: CameraConfig, alerts: AlertsConfig, frames: Sequence[FrameBoxes], size: tuple[int, int],
    *, known_before: bool = False, calibration: Calibration | None = None,
) -> list[Event]:  # fmt: skip
    """Return the events that the camera's rules make of `frames` for tracks that are there when the clip begins.

    To a replay these tracks are new, so rules may fire for them once more.

    frames: those examined, oldest first, from the clip's beginning on; size: of a frame. Times are those of the frames.
    known_before, calibration: see `StreamHeader`.
    """
    if not frames:
        return []
    there = {found.track for frame in frames if frame.t <= frames[0].t + INITIAL_S for found in frame.objects}
    pipeline = Pipeline(name, camera, alerts)
    pipeline.feed(
        StreamHeader(
            camera=name, clip="", model="", size=size, run="kept", known_before=known_before,
            calibration=calibration or {},
        )
    )  # fmt: skip
    found = [event for frame in frames for event in pipeline.feed(frame).events]
    return [event for event in found if event.track in there]


def _reviewed_as(review: Review | None) -> ReviewedAs | None:
    return None if review is None else REVIEWED_AS.get(review)


def _still_known(camera: CameraConfig, event: Event) -> bool:
    return any(rule.name == event.rule and event.label in rule.labels for rule in camera.rules)


def _same(event: Event, other: Event) -> bool:
    return (event.rule, event.track) == (other.rule, other.track) and abs(event.t - other.t) <= TOLERANCE_S


def camera_as_armed(name: str, camera: CameraConfig, events: Iterable[Event], t: float) -> CameraConfig:
    """Return the camera without the rules that were not armed at `t`: in a scenario every rule is always armed.

    Raise PreconditionError if one of the events could not be reported by the rules as they stand today.
    """
    wanted = {event.rule for event in events}
    for event in events:
        _must_be_reportable(name, camera, event)
    armed = tuple(rule for rule in camera.rules if rule.name in wanted or _armed(rule, t))
    return camera.model_copy(update={"rules": armed})


def lead_s(camera: CameraConfig, event: Event) -> float:
    """How long before an event its rule must have watched to report it."""
    rule = next((each for each in camera.rules if each.name == event.rule), None)
    return rule.seconds if isinstance(rule, DwellRule) else TUNING.settle_s


def _armed(rule: Rule, t: float) -> bool:
    return rule.schedule is None or ArmedHours(rule.schedule).armed(*local_weekday_minute(t))


def _must_be_reportable(name: str, camera: CameraConfig, event: Event) -> None:
    rule = next((each for each in camera.rules if each.name == event.rule), None)
    if rule is None:
        there = ", ".join(each.name for each in camera.rules) or "none"
        raise PreconditionError(
            f"camera {name} has no rule `{event.rule}` any more (there is: {there}), so no scenario could ask for it: "
            "put the rule back, or keep the alert with the site file of that time"
        )
    if (event.zone, event.line) != rule_place(rule) or event.label not in rule.labels:
        raise PreconditionError(
            f"the rule `{event.rule}` of camera {name} watches something else today than when it reported a "
            f"{event.label} {f'at line {event.line}' if event.line else f'in zone {event.zone}'}: "
            "keep the alert with the site file of that time"
        )


@dataclass(frozen=True, slots=True)
class ClipWindow:
    """The camera's time that is wanted (t0..t1), and the part of it without which the clip proves nothing."""

    t0: float
    t1: float
    first_t: float
    last_t: float


def clip_window(detail: AlertDetail, camera: CameraConfig, rolls: AlertsConfig) -> ClipWindow:
    """Return the window from the pre-roll before the first event could begin to the post-roll after the alert.

    A dwell of 20 s began 20 s before its event.
    """
    alert = detail.alert
    first = min((event.t - lead_s(camera, event) for event in detail.events), default=alert.t_start)
    last = max((event.t for event in detail.events), default=alert.t_start)
    end = alert.t_start if alert.t_end is None else alert.t_end
    return ClipWindow(min(first, alert.t_start) - rolls.pre_roll_s, max(end, last) + rolls.post_roll_s, first, last)


def cut_alert_clip(
    archive: StorageArchive, reader: RecordingReader, detail: AlertDetail, window: ClipWindow, path: Path
) -> ClipFile:
    """Cut the window to `path`. Raises DiskWriteError, and EvidenceError when what is left does not show the alert."""
    reasons = []
    for source in (recorded_segments(archive, detail.alert.camera, window.t0, window.t1), own_clip(archive, detail)):
        if not source:
            continue
        try:
            clip = _cut_unbroken(reader, source, window, path)
        except DiskWriteError:
            raise
        except EvidenceError as error:
            reasons.append(str(error))
            continue
        if clip.t_start <= window.first_t + ROUNDING_S and clip.t_end >= window.last_t:
            return clip
        path.unlink()
        reasons.append("what is left of it does not reach from before the first event to the last")
    why = (
        "; ".join(dict.fromkeys(reasons)) or "neither the recording (storage.keep_hours) nor the alert's clip is there"
    )
    raise EvidenceError(f"the footage of this alert cannot be kept any more: {why}")


def recorded_segments(archive: StorageArchive, camera: str, t0: float, t1: float) -> list[RecordedSegment]:
    """Return the segments of a camera that overlap t0..t1 and are still there. Raise StoreError."""
    found = []
    for row in archive.segments(camera, t0, t1):
        try:
            found.append(RecordedSegment(inside(archive.root, row.path, SEGMENTS), row.t_start, row.t_end))
        except StoreError as error:
            logger.warning("passed over a segment: %s", error)
    return [each for each in found if each.path.is_file()]


def own_clip(archive: StorageArchive, detail: AlertDetail) -> list[RecordedSegment]:
    """Return the clip of an alert as a segment; []: it is not there. Raise StoreError."""
    row = detail.piece("clip")
    if row is None or row.state != "ready":
        return []
    path = inside(archive.root, row.path, EVIDENCE)
    return [RecordedSegment(path, row.t_start, row.t_end)] if path.is_file() else []


def _cut_unbroken(
    reader: RecordingReader, source: Sequence[RecordedSegment], window: ClipWindow, path: Path
) -> ClipFile:
    whole = _unbroken(source, window)
    clip = reader.clip(source, whole.t0, whole.t1, path, hold_t=whole.first_t)
    hole_s = reader.longest_step_s(RecordedSegment(path, clip.t_start, clip.t_end))
    if hole_s < HOLE_S_MAX:
        return clip
    path.unlink()
    raise EvidenceError(f"the recording has a hole of {hole_s:.0f} s in it")


def _unbroken(source: Sequence[RecordedSegment], window: ClipWindow) -> ClipWindow:
    """Return the window without what lies before or after a long hole."""
    for before, after in pairwise(source):
        if after.t_start - before.t_end < HOLE_S_MAX:
            continue
        if after.t_start <= window.first_t:
            window = replace(window, t0=max(window.t0, after.t_start))
        elif before.t_end >= window.last_t:
            window = replace(window, t1=min(window.t1, before.t_end))
    return window

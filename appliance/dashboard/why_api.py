"""`/api/v1/cameras/{name}/why`: why a camera did or did not report somebody, from stored boxes or a new examination."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import Depends
from pydantic import ValidationError

from appliance.alerts.pipeline import Pipeline
from appliance.alerts.span_explanation import SENTENCES, SpanExplanation, Stage, explain_stored
from appliance.base.clock import Clock, local_weekday_minute
from appliance.base.errors import ModelError
from appliance.config import CameraConfig, DecisionConfig
from appliance.dashboard.recording_jobs import JobRunning, RecordingJob, RecordingJobs, model_places
from appliance.dashboard.recording_jobs_api import JobId, JobItem, Jobs, job_of
from appliance.dashboard.schemas import API, ApiModel, RequestModel
from appliance.dashboard.timeline_api import From, Moment, TimelineReader, TimelineReport, To
from appliance.replay.recording_tasks import LEAD_S, SPAN_TASK, SpanTask, without_secrets
from appliance.rules.arming import Arming
from appliance.store.boxes import BoxStore
from appliance.store.cameras import CameraStore
from appliance.store.database import Database
from appliance.store.segments import SegmentStore
from appliance.store.timeline import StoredEvent, TimelineStore
from appliance.types import Box, FrameBoxes, StreamHeader
from appliance.web.problems import Problem, sentence
from appliance.web.routes import RouteList, provided

SPAN_S_MAX = 120.0  # a replay decides it again while a person waits
RECALL_S_MAX = 86400.0  # the longest cooldown

router = RouteList(prefix=f"{API}/cameras", tags=["why"])


class OutcomeItem(ApiModel):
    """How far a track came with a rule: where it was held back (`stage`), in words, and until when a cooldown did."""

    rule: str
    stage: Stage
    text_key: str
    values: dict[str, str]
    text: str
    until: float | None = None


class StageSpanItem(ApiModel):
    """A stretch in which a track was held back at one stage."""

    t_start: float
    t_end: float
    stage: Stage


class TrackItem(ApiModel):
    """A track in the span, with the furthest that it came with each rule. score, box: of its best look."""

    track: int
    label: str
    t_start: float
    t_end: float
    score: float
    box: Box
    furthest: OutcomeItem | None
    outcomes: list[OutcomeItem]
    spans: list[StageSpanItem]


class SpanEventItem(ApiModel):
    """An event of the span. held_until: a cooldown held it back until then; null: it was reported.

    alert, moment, reason: of a stored one, the alert it became, when the cloud is asked about that, and why.
    """

    t: float
    rule: str
    track: int
    label: str
    score: float
    held: bool
    held_until: float | None = None
    alert: str | None = None
    moment: str = ""
    reason: str = ""


class MomentItem(ApiModel):
    """A decoded frame: examined because of motion, examined because it was due, or gated (not examined).

    keys_only: only key frames were being decoded then. motion: the share of the frame that moved; parts: how many parts
    of it the detector was shown, 0: all of it.
    """

    t: float
    what: Literal["motion", "due", "gated"]
    keys_only: bool
    motion: float
    parts: int


class DetectionItem(ApiModel):
    """A detection, and what the tracker made of it.

    It is of a reported object (confirmed), of one seen too seldom (unconfirmed) or too doubtful (tentative) to be
    reported, or of nothing (unused).
    """

    t: float
    label: str
    score: float
    box: Box
    use: Literal["confirmed", "unconfirmed", "tentative", "unused"]


class RouteItem(ApiModel):
    """The router's decision about an alert of the span, as it would be."""

    t: float
    alert: str
    when: str
    reason: str


class ReplayedItem(ApiModel):
    """The facts that only a replay finds.

    skipped: packets that were not decoded. unread: what could not be read, in words. model: the network.
    """

    moments: list[MomentItem]
    detections: list[DetectionItem]
    detections_left_out: int
    routes: list[RouteItem]
    skipped: int
    unread: str
    model: str


class WhyReport(ApiModel):
    """A span of a camera, explained. source: of what is stored, or decided again from the recording.

    sentence: why nobody was reported, or who was. looks: times of examined frames and whether the detector answered.
    events: of the same source. timeline: recording, gaps, faults and alerts as stored.
    """

    camera: str
    t_start: float
    t_end: float
    source: Literal["stored", "replay"]
    sentence: str
    sentence_key: str
    sentence_values: dict[str, str]
    because: OutcomeItem | None
    looks: list[tuple[float, bool]]
    tracks: list[TrackItem]
    tracks_left_out: int
    events: list[SpanEventItem]
    stored_events: list[SpanEventItem]
    timeline: TimelineReport
    replay: ReplayedItem | None = None
    page: str


class ReplaySpan(RequestModel):
    t_start: Moment
    t_end: Moment


class WhyReader:
    """Explains spans of the cameras' time. Any thread may call."""

    def __init__(
        self,
        db: Database,
        config: DecisionConfig,
        clock: Clock,
        timelines: TimelineReader,
        jobs: RecordingJobs,
        root: str,
        arming: Arming,
    ) -> None:
        self._boxes, self._cameras, self._segments = BoxStore(db), CameraStore(db), SegmentStore(db)
        self._timeline_store = TimelineStore(db)
        self._config = config
        self._clock = clock
        self._timelines = timelines
        self._jobs = jobs
        self._root = root
        self._arming = arming

    def stored(self, name: str, t0: float, t1: float) -> WhyReport:
        """By what the appliance stored. Raises Problem."""
        camera = self._camera(name, t0, t1)
        row = self._cameras.get(name)
        size = row.size if row is not None and row.size[0] else (16, 9)
        pipeline = Pipeline(name, camera, self._config.alerts, local_weekday_minute)
        lead = [each for each in self._timeline_store.events(name, t0 - RECALL_S_MAX, t0 - LEAD_S) if each.alert]
        pipeline.policy.recall([each.event for each in lead])
        stored = self._timeline_store.events(name, t0 - LEAD_S, t1)
        reported = {each.event.rule for each in stored if each.alert}
        found = explain_stored(
            camera, pipeline, self._sessions(name, size, t0, t1), (t0, t1),
            off=lambda t: self._arming.off_rules(name, t) - reported,  # the profile may have been another one then
        )  # fmt: skip
        return self._report(name, camera, (t0, t1), found, [each for each in stored if each.event.t >= t0])

    def replay_span(self, name: str, t0: float, t1: float) -> RecordingJob:
        """Begin to decide the span again. Raises Problem."""
        camera = self._camera(name, t0, t1)
        begin = t0 - LEAD_S
        rows = self._segments.covering(name, begin, t1)
        if not rows or rows[-1].t_end < t0:
            raise Problem(404, "Nothing is recorded of this time, so it cannot be decided again.")
        site = without_secrets(self._config, name, self._root)
        lead = [each for each in self._timeline_store.events(name, t0 - RECALL_S_MAX, begin) if each.alert]
        try:
            folder, models = model_places(site.detector)
            task = SpanTask(
                root=self._root, camera=name, t0=t0, t1=t1, lead_s=LEAD_S, site=site, rows=tuple(rows),
                gaps=self._timeline_store.gaps(name, begin, t1), reported=tuple(each.event for each in lead),
                local_begin=local_weekday_minute(begin), model_folder=folder,
            )  # fmt: skip
            about = {"t0": t0, "t1": t1, "camera": camera}
            job = self._jobs.start("replay_span", name, SPAN_TASK.dump_python(task, mode="json"), models, about)
        except ModelError as error:
            raise Problem(422, f"The network cannot be loaded: {error}") from None
        except JobRunning as error:
            raise Problem(409, sentence(error), {"Retry-After": "10"}) from None
        job.about["page"] = f"{page_at(name, (t0 + t1) / 2, t1 - t0)}&job={job.id}"
        return job

    def replayed(self, job: RecordingJob) -> WhyReport:
        """Return what a finished job found. Raise Problem if its result makes no sense."""
        t0, t1, camera = job.about["t0"], job.about["t1"], job.about["camera"]
        try:
            found = SpanExplanation.of(job.result["explanation"])
            replay = ReplayedItem.model_validate(job.result)
        except (ValidationError, KeyError, TypeError):
            raise Problem(500, "The sandbox answered what makes no sense; the span was not explained.") from None
        return self._report(
            job.camera, camera, (t0, t1), found, self._timeline_store.events(job.camera, t0, t1), replay
        )

    def newest(self, name: str) -> float:
        """Return the newest recorded moment of a camera, or now."""
        until = self._segments.covered_until(name)
        return self._clock.now() if until is None else until

    def _camera(self, name: str, t0: float, t1: float) -> CameraConfig:
        camera = self._config.cameras.get(name)
        if camera is None:
            raise Problem(404, "There is no such camera in the site file.")
        if not t0 < t1 <= t0 + SPAN_S_MAX:
            raise Problem(422, f"`to` must come after `from`, by at most {SPAN_S_MAX:g} s.")
        return camera

    def _sessions(
        self, name: str, size: tuple[int, int], t0: float, t1: float
    ) -> list[tuple[StreamHeader, Sequence[FrameBoxes]]]:
        """Return stored boxes by session.

        Nothing is known of the time before the first of them, so no object that is there then counts as new.
        """
        found: list[tuple[StreamHeader, Sequence[FrameBoxes]]] = []
        for _, rows in groupby(self._boxes.scan(name, t0 - LEAD_S, t1), key=lambda row: row.run):
            some = list(rows)
            header = self._boxes.header(some[0], size, follows=bool(found))
            found.append((header, [row.read() for row in some]))
        return found

    def _report(
        self, name: str, camera: CameraConfig, span: tuple[float, float], found: SpanExplanation,
        stored: Sequence[StoredEvent], replay: ReplayedItem | None = None,
    ) -> WhyReport:  # fmt: skip
        (t0, t1), (key, values, because) = span, found.sentence(camera)
        if key == "reported" and not any(each.alert for each in stored):
            key = "not_then"
        words = SENTENCES[key].format(**values, **({"why": because.text} if because else {}))
        return WhyReport(
            camera=name, t_start=t0, t_end=t1, source="stored" if replay is None else "replay", sentence=words,
            sentence_key=key, sentence_values=dict(values), because=OutcomeItem.of_row(because) if because else None,
            looks=found.examined,
            tracks=[
                TrackItem.of_row(
                    each, furthest=OutcomeItem.of_row(each.furthest) if each.furthest else None,
                    outcomes=[OutcomeItem.of_row(outcome) for outcome in each.outcomes.values()],
                    spans=[StageSpanItem.model_validate(part) for part in each.spans],
                )
                for each in found.tracks
            ],
            tracks_left_out=found.tracks_left_out,
            events=[
                SpanEventItem(
                    t=each.t, rule=each.rule, track=each.track, label=each.label, score=each.score,
                    held=each.held_until is not None, held_until=each.held_until,
                )
                for each in found.events
            ],
            stored_events=[_stored(each) for each in stored],
            timeline=self._timelines.report(name, t0, t1), replay=replay,
            page=page_at(name, (t0 + t1) / 2, t1 - t0),
        )  # fmt: skip


Why = Annotated[WhyReader, Depends(provided(WhyReader))]


def _stored(found: StoredEvent) -> SpanEventItem:
    event = found.event
    return SpanEventItem(
        t=event.t, rule=event.rule, track=event.track, label=event.label, score=event.score, held=found.alert is None,
        alert=found.alert, moment=found.moment, reason=found.reason,
    )  # fmt: skip


def page_at(name: str, t: float, span: float) -> str:
    """Return the page of a span around `t`."""
    return f"/cameras/{quote(name, safe='')}/why?t={max(0.0, t):.1f}&span={span:g}"


@router.get("/{name}/why")
def why(reader: Why, name: str, t0: From, t1: To) -> WhyReport:
    """Why a camera reported nobody, or whom, between two times at most two minutes apart, by what is stored."""
    return reader.stored(name, t0, t1)


@router.post("/{name}/why/replay", status_code=202)
def replay_span(reader: Why, name: str, wanted: ReplaySpan) -> JobItem:
    """Decide the span again from the recording: a job. 409: another job is at work. 404: nothing is recorded of it."""
    return JobItem.of(reader.replay_span(name, wanted.t_start, wanted.t_end))


@router.get("/{name}/why/replay/{job}")
def why_replayed(reader: Why, jobs: Jobs, name: str, job: JobId) -> WhyReport:
    """Return what a replay found. 409: the job is not done."""
    found = job_of(jobs, name, job)
    if found.kind != "replay_span" or found.state != "done":
        raise Problem(409, "This job has no explanation: it is not done, failed or was cancelled.")
    return reader.replayed(found)

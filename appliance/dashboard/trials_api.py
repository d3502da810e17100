"""`/api/v1/cameras/{name}/trials`: changed settings tried on the recording beside those in force; 20 are kept."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Annotated
from urllib.parse import quote

from fastapi import Depends, Request
from fastapi import Path as PathParameter
from pydantic import Field, ValidationError

from appliance.base.clock import local_weekday_minute
from appliance.base.errors import ModelError
from appliance.base.local_files import DiskWriteError
from appliance.canary.candidate_comparison import Outcome, judged_alerts
from appliance.config import DecisionConfig
from appliance.dashboard.recording_jobs import JobRunning, RecordingJob, RecordingJobs, model_places
from appliance.dashboard.schemas import API, ApiModel, RequestModel
from appliance.dashboard.settings_api import ChangeSettings, Settings, settings_problems, user_of
from appliance.dashboard.timeline_api import AlertMarkItem, Moment, TimelineReader
from appliance.dashboard.trial_store import TrialHead, TrialResult, TrialStore, TriedAlertPair
from appliance.replay.recording_tasks import (
    TRIAL_TASK,
    TrialSetup,
    TrialSpan,
    TrialTask,
    around_alert,
    merged_spans,
    without_secrets,
)
from appliance.store.alerts import AlertStore
from appliance.store.database import Database
from appliance.store.segments import SegmentStore
from appliance.store.timeline import TimelineStore
from appliance.web.problems import Problem, sentence
from appliance.web.routes import RouteList, provided

logger = logging.getLogger(__name__)

SECONDS_MAX = 3600.0  # of recording in one trial
SPANS_MAX = 50  # stretches and alerts of one trial; each is replayed
NEAR_S = 5.0  # an alert of the store this near is the same
WALL_S_MAX = 4 * 3600.0  # four hours: a trial that takes longer than a night's part is given up
RESTARTED = "The appliance was restarted while it ran; begin it again."

router = RouteList(prefix=f"{API}/cameras", tags=["trials"])
TrialId = Annotated[str, PathParameter(max_length=64)]


class TrialSpanItem(RequestModel):
    t_start: Moment
    t_end: Moment


class TrySettings(ChangeSettings):
    """The changes to try, and the part of the recording to try them on.

    The part is `spans`, the seconds around `alerts`, or the newest `minutes`; one of these, at most an hour together.
    """

    spans: Annotated[list[TrialSpanItem], Field(max_length=SPANS_MAX)] = []
    alerts: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=SPANS_MAX)] = []
    minutes: Annotated[float, Field(gt=0, le=SECONDS_MAX / 60, allow_inf_nan=False)] | None = None


class TrialItem(TrialHead):
    """A trial in a list. share: of it that is done, 0..1. job: to cancel it by, while it runs."""

    share: float
    job: str
    page: str


class TriedAlertItem(TriedAlertPair):
    """An alert that a trial would raise.

    alert: the one that was really raised at that time, with a person's review of it. still: an image of the recording,
    null: it is gone. timeline: the page of that moment.
    """

    alert: AlertMarkItem | None
    still: str | None
    timeline: str


class TrialJudgement(ApiModel):
    """The outcome for the changed settings by the alerts that people reviewed; lacking: what "better" would need."""

    outcome: Outcome
    reasons: tuple[str, ...]
    lacking: tuple[str, ...]


class TriedReport(TrialItem):
    """A trial with what it found; result null: it is not done, failed or was cancelled. alerts: of the result."""

    result: TrialResult | None
    judgement: TrialJudgement | None
    alerts: list[TriedAlertItem]


class TrialList(ApiModel):
    """Newest first; the last 20 of all cameras are kept."""

    trials: list[TrialItem]


class SettingsTrials:
    """Begins trials and tells of them. Any thread may call."""

    def __init__(
        self,
        db: Database,
        config: DecisionConfig,
        jobs: RecordingJobs,
        store: TrialStore,
        timelines: TimelineReader,
        root: str,
    ) -> None:
        self._alerts, self._segments, self._timeline_store = AlertStore(db), SegmentStore(db), TimelineStore(db)
        self._config = config
        self._jobs = jobs
        self._store = store
        self._timelines = timelines
        self._root = root
        self._beginning = threading.Lock()

    def begin(self, name: str, then: DecisionConfig, diff: str, wanted: TrySettings, who: str) -> TrialItem:
        """Begin a trial. Raise Problem if it cannot begin."""
        self._known(name)
        if name not in then.cameras:
            raise Problem(422, f"The changed settings have no camera {name}.")
        spans = [
            TrialSpan(
                t0, t1, tuple(rows), self._timeline_store.gaps(name, t0, t1), local_weekday_minute(t0)
            )
            for t0, t1 in self._spans(name, wanted)
            if (rows := self._segments.covering(name, t0, t1))
        ]  # fmt: skip
        if not spans:
            raise Problem(404, "Nothing is recorded of this time, so nothing can be tried on it.")
        try:
            sites = [without_secrets(each, name, self._root) for each in (self._config, then)]
            places = [model_places(site.detector) for site in sites]
        except ModelError as error:
            raise Problem(422, f"The network cannot be loaded: {error}") from None
        setups = [TrialSetup(site, folder) for site, (folder, _) in zip(sites, places, strict=True)]
        task = TrialTask(self._root, name, tuple(spans), setups[0], setups[1])
        seconds = sum(span.t1 - span.t0 for span in spans)
        folders = tuple(dict.fromkeys(each for _, all_of in places for each in all_of))
        kept = [(span.t0, span.t1) for span in spans]
        about = {"who": who, "why": wanted.why, "spans": kept, "diff": diff}
        try:
            with self._beginning:  # it is kept as begun before it can be over
                job = self._jobs.start(
                    "try_settings", name, TRIAL_TASK.dump_python(task, mode="json"), folders, about,
                    wall_s=min(WALL_S_MAX, 600.0 + 8 * seconds), ended=self._ended,
                )  # fmt: skip
                job.about["page"] = f"{page_of(name)}/{job.id}"
                self._store.put(_head(job))
        except JobRunning as error:
            raise Problem(409, sentence(error), {"Retry-After": "10"}) from None
        except DiskWriteError as error:
            self._jobs.cancel(job)
            raise Problem(507, str(error)) from None
        return self._item(_head(job))

    def all(self, name: str) -> list[TrialItem]:
        """Return the trials of one camera, newest first. Raise Problem for an unknown camera."""
        self._known(name)
        return [self._item(each) for each in self._store.all(name)]

    def report(self, name: str, trial: str) -> TriedReport:
        """Return a trial with what it found. Raise Problem if there is none."""
        head, result = self._found(name, trial)
        item = self._item(head)
        if item.state != "done":  # it is kept already, and its job is not quite over
            result = None
        alerts = self._alert_items(name, head.spans, result) if result else []
        judgement = TrialJudgement.of_row(judged_alerts(map(_known, alerts))) if result else None
        found = {"result": result, "alerts": alerts, "judgement": judgement}
        return TriedReport.model_validate({**item.model_dump(), **found})

    def delete(self, name: str, trial: str) -> None:
        """Delete a trial; if it runs, it is ended before. Raise Problem if there is none."""
        self._found(name, trial)
        if (job := self._jobs.find(name, trial)) is not None:
            self._jobs.cancel(job)
        self._store.delete(trial)

    def _known(self, name: str) -> None:
        if name not in self._config.cameras:
            raise Problem(404, "There is no such camera in the site file.")

    def _found(self, name: str, trial: str) -> tuple[TrialHead, TrialResult | None]:
        found = self._store.get(name, trial)
        if found is None:
            raise Problem(404, "There is no such trial: the last 20 are kept.")
        return found

    def _spans(self, name: str, wanted: TrySettings) -> list[tuple[float, float]]:
        """Return the requested stretches, oldest first, none twice.

        Raise Problem if there is not exactly one kind of request, an alert is not of this camera, a span is empty, or
        they are too long together.
        """
        if (bool(wanted.spans) + bool(wanted.alerts) + (wanted.minutes is not None)) != 1:
            raise Problem(422, "Say what to try it on: `spans`, `alerts` or `minutes`, one of them.")
        asked = [(each.t_start, each.t_end) for each in wanted.spans]
        for alert_id in wanted.alerts:
            row = self._alerts.get(alert_id)
            if row is None or row.alert.camera != name:
                raise Problem(404, f"There is no alert {alert_id} of this camera.")
            asked.append(around_alert(row.alert.t_start, row.alert.t_end))
        if wanted.minutes is not None:
            until = self._segments.covered_until(name)
            asked = [] if until is None else [(until - 60 * wanted.minutes, until)]
        if any(begin >= end for begin, end in asked):
            raise Problem(422, "Each span must end after it begins.")
        merged = merged_spans(asked)
        if sum(end - begin for begin, end in merged) > SECONDS_MAX:
            raise Problem(422, f"At most {SECONDS_MAX / 60:g} minutes of recording can be tried at once.")
        return merged

    def _ended(self, job: RecordingJob) -> None:
        """In the job's thread: keep what it found."""
        head, result = _head(job), None
        if job.state == "done":
            try:
                result = TrialResult.model_validate(job.result)
            except ValidationError:
                error = "The sandbox answered what makes no sense; nothing was compared."
                head = head.model_copy(update={"state": "failed", "error": error})
        job.result = None
        try:
            with self._beginning:
                self._store.put(head, result, only_known=True)
        except DiskWriteError as error:
            logger.warning("the trial %s is lost: %s", job.id, error)
            job.about["lost"] = f"The result could not be kept: {error}."

    def _item(self, head: TrialHead) -> TrialItem:
        job = self._jobs.find(head.camera, head.id)
        known = head.model_dump()
        if job is not None and job.state == "running":
            known |= {"state": "running", "seconds": 0.0, "error": ""}
        elif head.state == "running" and (job is None or "lost" in job.about):
            known |= {"state": "failed", "error": RESTARTED if job is None else job.about["lost"]}
        runs = known["state"] == "running" and job is not None
        share = job.share if runs and job else 1.0 if known["state"] == "done" else 0.0
        page = f"{page_of(head.camera)}/{head.id}"
        return TrialItem.model_validate({**known, "share": share, "job": head.id if runs else "", "page": page})

    def _alert_items(
        self, name: str, spans: Sequence[tuple[float, float]], result: TrialResult
    ) -> list[TriedAlertItem]:
        """With what is in the store of the same moments: alerts, and whether there are pictures."""
        key = quote(name, safe="")
        marks = [mark for t0, t1 in spans for mark in self._timelines.report(name, t0, t1).alerts]
        found = []
        for pair in result.alerts:
            shown = pair.shown
            near = [
                mark for mark in marks
                if mark.t_start - NEAR_S <= shown.t_end and shown.t_start <= (mark.t_end or mark.t_start) + NEAR_S
            ]  # fmt: skip
            recorded = self._segments.covering(name, shown.best_t - 1.0, shown.best_t + 1.0)
            still = f"{API}/cameras/{key}/frame?t={shown.best_t:.1f}&size=small" if recorded else None
            found.append(
                TriedAlertItem(
                    **dict(pair), alert=min(near, key=lambda each: abs(each.t_start - shown.t_start), default=None),
                    still=still, timeline=f"/cameras/{key}/timeline?t={shown.t_start:.1f}",
                )
            )  # fmt: skip
        return found


Trials = Annotated[SettingsTrials, Depends(provided(SettingsTrials))]


def page_of(name: str) -> str:
    """Return the page that lists a camera's trials."""
    return f"/cameras/{quote(name, safe='')}/trials"


def _known(pair: TriedAlertItem) -> tuple[bool, bool, bool | None]:
    """Return which settings raise it, and whether it is right, as `judged_alerts` takes it."""
    review = pair.alert.review if pair.alert is not None else None
    return pair.before is not None, pair.after is not None, None if review is None else review == "reviewed"


def _head(job: RecordingJob) -> TrialHead:
    about = job.about
    return TrialHead(
        id=job.id, camera=job.camera, began_t=job.began_t, who=about["who"], why=about["why"], spans=about["spans"],
        diff=about["diff"], state=job.state, seconds=job.seconds, error=job.error,
    )  # fmt: skip


@router.get("/{name}/trials")
def trials(reader: Trials, name: str) -> TrialList:
    """Return the trials of a camera."""
    return TrialList(trials=reader.all(name))


@router.post("/{name}/trials", status_code=202)
def begin_trial(request: Request, reader: Trials, part: Settings, name: str, wanted: TrySettings) -> TrialItem:
    """Replay the recording with the settings in force and with changed ones: a job.

    409: another job is at work. 404: nothing is recorded of that time. 422: what cannot be, such as a network that is
    not installed.
    """
    with settings_problems():
        proposal = part.service.propose(wanted.parsed(), wanted.base)
    return reader.begin(name, proposal.after.config.for_decisions(), proposal.diff, wanted, user_of(request))


@router.get("/{name}/trials/{trial}")
def trial_report(reader: Trials, name: str, trial: TrialId) -> TriedReport:
    """Return a trial with what it found."""
    return reader.report(name, trial)


@router.delete("/{name}/trials/{trial}")
def delete_trial(reader: Trials, name: str, trial: TrialId) -> TrialList:
    """Delete a trial, ended before if it runs; answers with those that are left."""
    reader.delete(name, trial)
    return TrialList(trials=reader.all(name))

"""Serves `/api/v1/cameras/{name}/jobs`: how far a job on a camera's recording is, and its end."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path

from appliance.dashboard.recording_jobs import JobState, RecordingJob, RecordingJobs
from appliance.dashboard.schemas import API, ApiModel
from appliance.web.problems import Problem
from appliance.web.routes import RouteList, provided

router = RouteList(prefix=f"{API}/cameras", tags=["why"])


class JobItem(ApiModel):
    """A job on the recording of a camera. share: of it that is done, 0..1; error: why it failed; page: its result."""

    id: str
    kind: str
    camera: str
    state: JobState
    share: float
    seconds: float
    error: str
    page: str

    @classmethod
    def of(cls, job: RecordingJob) -> JobItem:
        return cls.of_row(job, page=str(job.about.get("page", "")))


JobId = Annotated[str, Path(max_length=64)]
Jobs = Annotated[RecordingJobs, Depends(provided(RecordingJobs))]


def job_of(jobs: RecordingJobs, name: str, job: str) -> RecordingJob:
    """Return a camera's job. Raise Problem if there is none."""
    found = jobs.find(name, job)
    if found is None:
        raise Problem(404, "There is no such job: the last eight are kept, until the appliance restarts.")
    return found


@router.get("/{name}/jobs/{job}")
def job_state(jobs: Jobs, name: str, job: JobId) -> JobItem:
    """How far a job on this camera's recording is."""
    return JobItem.of(job_of(jobs, name, job))


@router.delete("/{name}/jobs/{job}")
def cancel_job(jobs: Jobs, name: str, job: JobId) -> JobItem:
    """End a job now. One that is over stays what it is."""
    found = job_of(jobs, name, job)
    jobs.cancel(found)
    return JobItem.of(found)

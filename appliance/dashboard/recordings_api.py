"""`/api/v1/cameras/{name}/frame` and `…/recording`: a moment of the recording as a picture, a stretch of it as MP4."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Literal
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import FileResponse, Response

from appliance.clock import iso_utc
from appliance.dashboard.cameras_api import Cameras
from appliance.dashboard.deps import provided
from appliance.dashboard.problems import Problem
from appliance.dashboard.recordings import SPAN_S_MAX, FrameCache, RecordingCut, RecordingCuts, TooBusy
from appliance.dashboard.schemas import API, ApiModel
from appliance.dashboard.timeline_api import T_MAX, From, To
from appliance.errors import EvidenceError
from appliance.media.atomic_file import DiskWriteError
from appliance.sandbox import SandboxError

SIDES = {"small": 320, "large": 960}  # pixels of a frame's longer side

router = APIRouter(prefix=f"{API}/cameras", tags=["timeline"])

Frames = Annotated[FrameCache, Depends(provided(FrameCache))]
Cuts = Annotated[RecordingCuts, Depends(provided(RecordingCuts))]


class RecordingItem(ApiModel):
    """A stretch that is ready at `url` (with HTTP ranges): at `currentTime` it shows camera time t_start + currentTime.

    It begins at the key frame at or before what was asked for. note: what is missing of it, "" if nothing is.
    """

    url: str
    download: str
    t_start: float
    t_end: float
    codec: str
    width: int
    height: int
    bytes: int
    note: str


@asynccontextmanager
async def _as_problems() -> AsyncIterator[None]:
    try:
        yield
    except TooBusy as error:
        raise Problem(503, _sentence(error), {"Retry-After": "2"}) from None
    except DiskWriteError as error:
        raise Problem(507, _sentence(error)) from None
    except EvidenceError as error:
        raise Problem(404, _sentence(error)) from None
    except SandboxError as error:
        raise Problem(503, f"The recording cannot be read now: {error}.", {"Retry-After": "2"}) from None


@router.get("/{name}/frame", response_class=Response, responses={200: {"content": {"image/jpeg": {}}}})
async def recorded_frame(
    request: Request,
    cameras: Cameras,
    frames: Frames,
    name: str,
    t: Annotated[float, Query(ge=0, le=T_MAX, allow_inf_nan=False)],
    size: Literal["small", "large"] = "small",
) -> Response:
    """The key frame at camera time `t` as JPEG (the last one before it); `X-Frame-Time` is its own time.

    small: at most 320 pixels, large: 960. 404: nothing is recorded within five seconds of `t`.
    """
    _known(cameras, name)
    async with _as_problems():
        found = await frames.at(name, t, SIDES[size])
    headers = {
        "ETag": found.etag,
        "Cache-Control": "private, no-cache",  # after signing out a browser may not show what it kept
        "X-Frame-Time": f"{found.snapshot.t!r}",
        "X-Frame-Time-UTC": iso_utc(found.snapshot.t),
    }
    if found.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(found.snapshot.jpeg, media_type="image/jpeg", headers=headers)


@router.get("/{name}/recording")
async def recording(cameras: Cameras, cuts: Cuts, name: str, t0: From, t1: To) -> RecordingItem:
    """A stretch of the recording, at most 15 minutes, made ready to play: where it is, and what is missing of it."""
    cut = await _cut(cameras, cuts, name, t0, t1)
    query = urlencode({"from": repr(t0), "to": repr(t1)})
    url = f"{API}/cameras/{quote(name, safe='')}/recording.mp4?{query}"
    clip = cut.clip
    return RecordingItem(
        url=url, download=f"{url}&download=true", t_start=clip.t_start, t_end=clip.t_end, codec=cut.codec,
        width=clip.size[0], height=clip.size[1], bytes=clip.written.bytes, note=clip.note,
    )  # fmt: skip


@router.get("/{name}/recording.mp4", response_class=FileResponse)
@router.head("/{name}/recording.mp4", include_in_schema=False)
async def recording_file(
    request: Request, cameras: Cameras, cuts: Cuts, name: str, t0: From, t1: To, download: bool = False
) -> Response:
    """The stretch itself, copied without encoding it again; `download` makes it an attachment with a name of its own.

    `X-Recording-Start` is the camera's time of its first frame, `X-Recording-Note` says what is missing of it.
    """
    cut = await _cut(cameras, cuts, name, t0, t1)
    headers = {
        "ETag": cut.etag,
        "Cache-Control": "private, no-cache",
        "X-Recording-Start": f"{cut.clip.t_start!r}",
        "X-Recording-Note": cut.clip.note.encode("ascii", "replace").decode(),
    }
    if cut.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    stamp = iso_utc(cut.clip.t_start)[:19].replace("-", "").replace(":", "")
    return FileResponse(
        cut.path, media_type="video/mp4", headers=headers, filename=f"{name}-{stamp}Z.mp4",
        content_disposition_type="attachment" if download else "inline",
    )  # fmt: skip


async def _cut(cameras: Cameras, cuts: RecordingCuts, name: str, t0: float, t1: float) -> RecordingCut:
    _known(cameras, name)
    if not t0 < t1 <= t0 + SPAN_S_MAX:
        raise Problem(422, f"`to` must come after `from`, by at most {SPAN_S_MAX / 60:g} minutes.")
    async with _as_problems():
        return await cuts.get(name, t0, t1)


def _known(cameras: Cameras, name: str) -> None:
    if name not in cameras.configured:
        raise Problem(404, "There is no such camera in the site file.")


def _sentence(error: Exception) -> str:
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}."

"""Moments and stretches of the recording: `/api/v1/cameras/{name}/frame` as an image, `…/recording` as MP4."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlencode

from fastapi import Depends, Query, Request
from starlette.responses import FileResponse, JSONResponse, Response

from appliance.base.clock import iso_utc
from appliance.base.errors import EvidenceError
from appliance.base.local_files import DiskWriteError
from appliance.dashboard.access_rights import tell_view
from appliance.dashboard.cameras_api import Cameras
from appliance.dashboard.openapi import media
from appliance.dashboard.recordings import SPAN_S_MAX, FrameCache, RecordingCut, RecordingCuts, TooBusy
from appliance.dashboard.renditions import SPAN_S_MAX as RENDITION_S_MAX
from appliance.dashboard.renditions import Renditions
from appliance.dashboard.schemas import API, ApiModel
from appliance.dashboard.timeline_api import T_MAX, From, To
from appliance.media.recorded import even_size
from appliance.sandbox.sandbox import SandboxError
from appliance.web.problems import Problem, sentence
from appliance.web.routes import RouteList, provided

SIDES = {"small": 320, "large": 960}  # pixels of a frame's longer side

router = RouteList(prefix=f"{API}/cameras", tags=["timeline"])

Frames = Annotated[FrameCache, Depends(provided(FrameCache))]
Cuts = Annotated[RecordingCuts, Depends(provided(RecordingCuts))]
RenditionsPart = Annotated[Renditions, Depends(provided(Renditions))]
Codec = Annotated[Literal["as_recorded", "h264"], Query(description="h264: converted where it is something else")]


class RecordingItem(ApiModel):
    """A stretch that is ready at `url` (with HTTP ranges): at `currentTime` it shows camera time t_start + currentTime.

    It begins at the key frame at or before what was asked for. converted: it is not what the camera sent, but a smaller
    copy. note: what is missing of it, "" if nothing is.
    """

    url: str
    download: str
    t_start: float
    t_end: float
    codec: str
    width: int
    height: int
    bytes: int
    converted: bool = False
    sound: bool = False
    note: str


class RenditionProgress(ApiModel):
    """An H.264 copy is being made: how much of it is done, 0..1. Ask again in a moment."""

    progress: float


RENDITION_RESPONSES: dict[int | str, dict[str, Any]] = {202: {"model": RenditionProgress}}


@asynccontextmanager
async def as_problems() -> AsyncIterator[None]:
    """Turn what keeps a recording from being read into a response."""
    try:
        yield
    except TooBusy as error:
        raise Problem(503, sentence(error), {"Retry-After": "2"}) from None
    except DiskWriteError as error:
        raise Problem(507, sentence(error)) from None
    except EvidenceError as error:
        raise Problem(404, sentence(error)) from None
    except SandboxError as error:
        raise Problem(503, f"The recording cannot be read now: {error}.", {"Retry-After": "2"}) from None


@router.get("/{name}/frame", response_class=Response, responses=media("image/jpeg"))
async def recorded_frame(
    request: Request,
    cameras: Cameras,
    frames: Frames,
    name: str,
    t: Annotated[float, Query(ge=0, le=T_MAX, allow_inf_nan=False)],
    size: Literal["small", "large"] = "small",
) -> Response:
    """Return the key frame at camera time `t` as JPEG (the last one before it); `X-Frame-Time` is its own time.

    small: at most 320 pixels, large: 960. 404: nothing is recorded within five seconds of `t`.
    """
    _known(cameras, name)
    async with as_problems():
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


def kept_file(request: Request, path: Path, etag: str, media_type: str = "video/mp4", **more: Any) -> Response:
    """Return a file that a browser asks about each time whether it may show what it kept: signed out it may not."""
    headers = {"ETag": etag, "Cache-Control": "private, no-cache", **more.pop("headers", {})}
    if etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return FileResponse(path, headers=headers, media_type=media_type, **more)


@router.get("/{name}/recording", response_model=RecordingItem, responses=RENDITION_RESPONSES)
async def recording(
    cameras: Cameras, cuts: Cuts, renditions: RenditionsPart, name: str, t0: From, t1: To, codec: Codec = "as_recorded"
) -> RecordingItem | Response:
    """Make a stretch of the recording ready to play, at most 15 minutes: where it is, and what is missing of it.

    With `codec=h264` it is a smaller copy for browsers that cannot play the camera's codec, of at most two minutes: 202
    with `progress` while it is made. It is made only while it is requested.
    """
    cut = await _cut(cameras, cuts, name, t0, t1)
    query = {"from": repr(t0), "to": repr(t1)}
    clip, size, bytes_ = cut.clip, cut.clip.size, cut.clip.written.bytes
    converted = codec == "h264" and cut.clip.codec != "h264"
    if converted:
        if t1 - t0 > RENDITION_S_MAX:
            raise Problem(422, f"At most {RENDITION_S_MAX / 60:g} minutes are converted at a time.")

        async def source() -> Path:
            return (await cuts.get(name, t0, t1)).path

        async with as_problems():
            found = await renditions.ask((name, t0, t1), source)
        if isinstance(found, float):
            return in_progress(found)
        query, size, bytes_ = {**query, "codec": "h264"}, even_size(*size), found.written.bytes
    url = f"{API}/cameras/{quote(name, safe='')}/recording.mp4?{urlencode(query)}"
    return RecordingItem(
        url=url, download=f"{url}&download=true", t_start=clip.t_start, t_end=clip.t_end,
        codec="h264" if converted else cut.clip.codec, width=size[0], height=size[1], bytes=bytes_, converted=converted,
        sound=clip.sound,
        note=clip.note,
    )  # fmt: skip


def in_progress(share: float) -> Response:
    """202: a rendition is being made."""
    return JSONResponse(RenditionProgress(progress=share).model_dump(), 202, {"Retry-After": "1"})


class _StretchQuery:
    """Which stretch, and how."""

    def __init__(self, t0: From, t1: To, download: bool = False, codec: Codec = "as_recorded") -> None:
        self.t0, self.t1, self.download, self.codec = t0, t1, download, codec


@router.get("/{name}/recording.mp4", response_class=FileResponse, responses=media("video/mp4", ranges=True))
@router.head("/{name}/recording.mp4", include_in_schema=False)
async def recording_file(
    request: Request,
    cameras: Cameras,
    cuts: Cuts,
    renditions: RenditionsPart,
    name: str,
    asked: Annotated[_StretchQuery, Depends()],
) -> Response:
    """Return the stretch itself, copied without encoding it; `download` makes it an attachment with a name of its own.

    `X-Recording-Start` is the camera's time of its first frame, `X-Recording-Note` names what is missing of it. With
    `codec=h264` it is the copy that `recording` has made; 404 if that was not requested.
    """
    cut = await _cut(cameras, cuts, name, asked.t0, asked.t1)
    path, etag = cut.path, cut.etag
    if asked.codec == "h264" and cut.clip.codec != "h264":
        made = renditions.kept((name, asked.t0, asked.t1))
        if made is None:
            raise Problem(404, "This stretch is not converted; ask for it by /recording?codec=h264 first.")
        path, etag = made.path, made.etag
    if asked.download:
        tell_view(request, what="downloaded a recording", about=f"{iso_utc(asked.t0)} to {iso_utc(asked.t1)}")
    note = cut.clip.note.encode("ascii", "replace").decode()
    headers = {"X-Recording-Start": f"{cut.clip.t_start!r}", "X-Recording-Note": note}
    stamp = iso_utc(cut.clip.t_start)[:19].replace("-", "").replace(":", "")
    return kept_file(
        request, path, etag, headers=headers, filename=f"{name}-{stamp}Z.mp4",
        content_disposition_type="attachment" if asked.download else "inline",
    )  # fmt: skip


async def _cut(cameras: Cameras, cuts: RecordingCuts, name: str, t0: float, t1: float) -> RecordingCut:
    _known(cameras, name)
    if not t0 < t1 <= t0 + SPAN_S_MAX:
        raise Problem(422, f"`to` must come after `from`, by at most {SPAN_S_MAX / 60:g} minutes.")
    async with as_problems():
        return await cuts.get(name, t0, t1)


def _known(cameras: Cameras, name: str) -> None:
    if name not in cameras.configured:
        raise Problem(404, "There is no such camera in the site file.")

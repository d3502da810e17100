"""`/api/v1/live`: live video of several cameras over one connection, taken from the recording as it is written."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Depends, Query, Request
from starlette.responses import StreamingResponse

from appliance.dashboard.access_rights import tell_view
from appliance.dashboard.cameras_api import Cameras
from appliance.dashboard.event_stream import TooManyViewers, ViewerResponse
from appliance.dashboard.live_feed import LiveHub
from appliance.dashboard.live_files import LiveChoice
from appliance.dashboard.schemas import API
from appliance.web.auth import AccessPart
from appliance.web.problems import Problem, sentence
from appliance.web.routes import RouteList, provided
from appliance.web.visitor import visitor

CAMERAS_MAX = 64  # of one wall
MEDIA_TYPE = "application/vnd.vedette.live"

router = RouteList(prefix=API, tags=["cameras"])


class _Wanted:
    """Which video, and when."""

    def __init__(
        self,
        when: Literal["always", "active"] = "always",
        stream: Literal["main", "sub"] = "main",
        codec: Literal["as_recorded", "h264"] = "as_recorded",
    ) -> None:
        self.only_active = when == "active"
        self.choice = LiveChoice(substream=stream == "sub", h264=codec == "h264")


@router.get("/live", response_class=StreamingResponse, responses={200: {"content": {MEDIA_TYPE: {}}}})
async def live_video(
    request: Request,
    access: AccessPart,
    cameras: Cameras,
    hub: Annotated[LiveHub, Depends(provided(LiveHub))],
    camera: Annotated[list[str], Query(min_length=1, max_length=CAMERAS_MAX)],
    wanted: Annotated[_Wanted, Depends()],
) -> StreamingResponse:
    """H.264 or H.265 as it is recorded, about a second behind, and the boxes of it.

    A stream without end of messages: one byte of kind, one of which `camera` (from 0), a length (32 bits, big endian)
    and so many bytes. `c`: the media type with its codecs, then `v`: bytes of a fragmented MP4 of that type, whose
    times are camera time (UTC seconds); `b`: boxes of examined frames as JSON; `n`: JSON, whether something moves
    (`active`) and why there is no video (`problem`); `p`: nothing, every 5 s of silence. `when=active`: of each camera,
    video only while something moves before it; `stream=sub`: of its second stream, where it has one for detection.
    `codec=h264`: of a camera that sends something else, its second stream where that is H.264, else a small copy of at
    most ten frames a second, which costs the appliance's processor; `n` says `instead`, which of the two.
    A client that reads too slowly goes on at the newest key frame.
    """
    if any(name not in cameras.configured or not visitor().sees(name) for name in camera):
        raise Problem(404, "There is no such camera among yours.")
    try:
        viewer = hub.join(
            list(dict.fromkeys(camera)), access.still(request), only_active=wanted.only_active, choice=wanted.choice
        )
    except TooManyViewers as error:
        raise Problem(503, sentence(error), {"Retry-After": "10"}) from None
    tell_view(request, cameras=list(dict.fromkeys(camera)))
    return ViewerResponse(viewer, MEDIA_TYPE)

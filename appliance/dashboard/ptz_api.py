"""`/api/v1/cameras/{name}/ptz`: turns a camera that can be turned; every movement ends by itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from fastapi import Depends, Request
from pydantic import Field, model_validator

from appliance.base.clock import Clock
from appliance.base.errors import SourceError, SourceLost
from appliance.config import CameraConfig
from appliance.dashboard.schemas import API, ApiModel, RequestModel
from appliance.onvif.camera_client import CameraClient, PtzPreset
from appliance.onvif.soap_client import CALL_S_MAX, OnvifAddress, SoapClient
from appliance.store.users import AccessLog
from appliance.web.auth import address_of
from appliance.web.problems import Problem
from appliance.web.routes import RouteList, provided
from appliance.web.visitor import visitor

logger = logging.getLogger(__name__)

MOVE_S_MAX = 10.0  # a camera turns round in that time; a lost stop ends it
_STOP_TRIES = 5  # a camera that still turns is worse than five calls

router = RouteList(prefix=f"{API}/cameras", tags=["cameras"])
Speed = Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)]


class PtzCommand(RequestModel):
    """`move` turns for `seconds`, or until the next command, with speeds of -1 to 1: to the right, up, in."""

    action: Literal["move", "stop", "preset", "home"]
    pan: Speed = 0.0
    tilt: Speed = 0.0
    zoom: Speed = 0.0
    seconds: Annotated[float, Field(gt=0, le=MOVE_S_MAX, allow_inf_nan=False)] = 1.0
    preset: Annotated[str, Field(max_length=128)] = ""

    @model_validator(mode="after")
    def _complete(self) -> PtzCommand:
        if self.action == "move" and not (self.pan or self.tilt or self.zoom):
            raise ValueError("a move needs pan, tilt or zoom")
        if self.action == "preset" and not self.preset:
            raise ValueError("name the preset")
        return self


class PtzReport(ApiModel):
    """presets: directions that are stored in the camera. turning: by us, now."""

    presets: tuple[PtzPreset, ...]
    turning: bool


class PtzState(ApiModel):
    turning: bool


class _TurnedCamera:
    """One camera. Owner: the dashboard's loop; `lock` is held for each request to the camera."""

    def __init__(self, url: str, clock: Clock) -> None:
        self.url = url
        self.lock = asyncio.Lock()
        self.turning = False
        self.stopper: asyncio.Task[None] | None = None
        self.soap = SoapClient(OnvifAddress.parse(url), clock)
        self.client = CameraClient(self.soap, clock)


class PtzControl:
    """Turns the site's cameras. Owner: the dashboard's loop, except `cameras`, which any thread may set.

    Invariant: whatever was set in motion is stopped by us when its seconds are over, also when nobody asks again: the
    time-out that a camera is given is one that not all of them heed.
    """

    def __init__(self, clock: Clock) -> None:
        self.cameras: Mapping[str, CameraConfig] = {}
        self._clock = clock
        self._turned: dict[str, _TurnedCamera] = {}

    async def presets(self, name: str) -> tuple[PtzPreset, ...]:
        """Return a camera's presets. Raise Problem if it cannot be asked for them."""
        camera = await self._camera(name)
        with _in_words():
            async with camera.lock:
                return await camera.client.presets()

    def is_turning(self, name: str) -> bool:
        return name in self._turned and self._turned[name].turning

    async def move(self, name: str, command: PtzCommand) -> None:
        """Move a camera. Raise Problem if it cannot be moved."""
        camera = await self._camera(name)
        with _in_words():
            async with camera.lock:
                # Armed before the camera is asked: a request whose answer is lost may have set it in motion.
                camera.turning = True
                self._stop_in(name, camera, command.seconds + CALL_S_MAX)
                await camera.client.move(command.pan, command.tilt, command.zoom, command.seconds)
                self._stop_in(name, camera, command.seconds)

    async def stop(self, name: str) -> None:
        """Stop a camera. Raise Problem if that fails; it is retried all the same."""
        camera = await self._camera(name)
        with _in_words():
            async with camera.lock:
                self._stop_in(name, camera, 0.5)
                await camera.client.stop()
                camera.turning = False
                self._disarm(camera)

    async def go_to(self, name: str, preset: str) -> None:
        """To a preset; '': to the home position. This ends a movement, and its stop. Raises Problem."""
        camera = await self._camera(name)
        with _in_words():
            async with camera.lock:
                await (camera.client.go_to(preset) if preset else camera.client.go_home())
                camera.turning = False
                self._disarm(camera)  # not before: a camera that refuses turns on

    async def close(self) -> None:
        """Stop what turns, and let go of all connections."""
        for name in list(self._turned):
            await self._let_go(self._turned.pop(name))

    async def _let_go(self, camera: _TurnedCamera) -> None:
        self._disarm(camera)
        if camera.turning:
            with contextlib.suppress(SourceError):
                await camera.client.stop()
        await camera.soap.close()

    async def _camera(self, name: str) -> _TurnedCamera:
        settings = self.cameras.get(name)
        if settings is None or settings.onvif is None:
            raise Problem(404, f"Of a camera {name} the site file has no `onvif`: it cannot be turned from here.")
        known = self._turned.get(name)
        if known is not None and known.url != settings.onvif:
            await self._let_go(self._turned.pop(name))
        if name not in self._turned:
            with _in_words():
                self._turned[name] = _TurnedCamera(settings.onvif, self._clock)
        return self._turned[name]

    def _stop_in(self, name: str, camera: _TurnedCamera, seconds: float) -> None:
        self._disarm(camera)
        camera.stopper = asyncio.create_task(self._stop_after(name, camera, seconds), name=f"ptz stop {name}")

    def _disarm(self, camera: _TurnedCamera) -> None:
        if camera.stopper is not None:
            camera.stopper.cancel()
            camera.stopper = None

    async def _stop_after(self, name: str, camera: _TurnedCamera, seconds: float) -> None:
        for attempt in range(_STOP_TRIES):
            await asyncio.sleep(seconds if attempt == 0 else 2.0**attempt / 4)
            try:
                async with camera.lock:
                    await camera.client.stop()
                    camera.turning, camera.stopper = False, None
                    return
            except SourceError as error:
                failure = error
        camera.turning = False
        logger.warning("camera %s: it was asked to stop turning %d times in vain: %s", name, _STOP_TRIES, failure)


@contextlib.contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except SourceLost as error:
        raise Problem(503, f"The camera: {error}.") from None
    except SourceError as error:
        raise Problem(422, f"The camera: {error}.") from None


Control = Annotated[PtzControl, Depends(provided(PtzControl))]


@router.get("/{name}/ptz")
async def ptz(control: Control, name: str) -> PtzReport:
    """Where a camera can be sent. 404: the site file names no ONVIF address of it."""
    return PtzReport(presets=await control.presets(name), turning=control.is_turning(name))


@router.post("/{name}/ptz")
async def turn(
    request: Request,
    control: Control,
    log: Annotated[AccessLog, Depends(provided(AccessLog))],
    name: str,
    command: PtzCommand,
) -> PtzState:
    """Turn, stop, go to a preset or home. A movement ends after `seconds`, at most 10, whoever is gone meanwhile."""
    begins = command.action in ("preset", "home") or (command.action == "move" and not control.is_turning(name))
    if command.action == "move":
        await control.move(name, command)
    elif command.action == "stop":
        await control.stop(name)
    else:
        await control.go_to(name, command.preset if command.action == "preset" else "")
    if begins:  # not each second of it
        await asyncio.to_thread(log.write, visitor().name, address_of(request.scope), "turned a camera", name)
    return PtzState(turning=control.is_turning(name))

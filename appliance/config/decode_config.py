"""The `decode` section: which hardware decodes the streams that are examined, for the site and for one camera."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from appliance.base.config_model import ConfigModel
from appliance.types import DecodeHardware

# YAML 1.1 reads `off` as false.
Hardware = Annotated[DecodeHardware, BeforeValidator(lambda given: "off" if given is False else given)]


class CameraDecodeConfig(ConfigModel):
    """The decode settings of one camera; None: as the site's `decode` section says."""

    hardware: Hardware | None = None
    fallback: bool | None = None


class DecodeConfig(ConfigModel):
    """The decoders of all cameras.

    hardware: what decodes. fallback: a camera whose hardware decoder fails is decoded in software meanwhile; with
    `auto` it always is. sessions_max: cameras decoded by hardware at once. device: which one of several, as FFmpeg
    calls it; None: its first. ffmpeg: the system's, for what the FFmpeg inside PyAV cannot do.
    """

    hardware: Hardware = "off"
    fallback: bool = False
    sessions_max: Annotated[int, Field(ge=1, le=256)] = 16
    device: Annotated[str, Field(pattern=r"^[A-Za-z0-9/_.:-]{1,64}$")] | None = None
    ffmpeg: Path = Path("ffmpeg")

    def hardware_of(self, camera: CameraDecodeConfig) -> DecodeHardware:
        """Return what decodes this camera."""
        return camera.hardware or self.hardware

    def falls_back(self, camera: CameraDecodeConfig) -> bool:
        """Return True if software may take over where the hardware fails."""
        allowed = self.fallback if camera.fallback is None else camera.fallback
        return allowed or self.hardware_of(camera) == "auto"

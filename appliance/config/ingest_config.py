"""The sections `decode` and `second_look`, and all that the ingest process is given of the site file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field

from appliance.base.config_model import ConfigModel, DetectorConfig
from appliance.config.camera_config import CameraConfig, CameraDecodeConfig, CameraName, Hardware
from appliance.config.health_config import HealthConfig
from appliance.config.storage_config import StorageConfig
from appliance.config.values import Share
from appliance.types import DecodeHardware

OWN_NETWORKS_MAX = 1  # beside that of all cameras: each takes some 50 MB, and its part of the one detector's time


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


class RecheckConfig(ConfigModel):
    """When and how the appliance re-checks an alert itself while the cloud does not answer. See docs/recheck.md.

    after_s: when a verdict is late; detector_load_max: the share of the time in which the detector may be at work;
    model: another network for it, None: the one of `detector`.
    """

    enabled: bool = True
    per_minute: Annotated[int, Field(ge=1, le=60)] = 6
    after_s: Annotated[float, Field(ge=1, le=3600)] = 20.0
    detector_load_max: Share = 0.7
    model: Annotated[str, Field(min_length=1)] | None = None


class IngestConfig(ConfigModel):
    """The sections that the ingest process reads. It never gets to see the broker, targets or the dashboard's token."""

    model_config = ConfigDict(extra="ignore")

    storage: StorageConfig = StorageConfig()
    detector: DetectorConfig = DetectorConfig()
    decode: DecodeConfig = DecodeConfig()
    cameras: dict[CameraName, CameraConfig]
    health: HealthConfig = HealthConfig()
    second_look: RecheckConfig = RecheckConfig()

    def own_networks(self) -> tuple[DetectorConfig, ...]:
        """Return the detectors that cameras have for themselves, each once; labels and precision are their own."""
        named = {camera.model for camera in self.cameras.values() if camera.enabled and camera.model}
        return tuple(self.detector.with_model(model) for model in sorted(named - {self.detector.model}))
